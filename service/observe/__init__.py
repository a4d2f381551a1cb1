"""Follows requests, if the operator asks for it: the access log, and traces for OpenTelemetry."""
