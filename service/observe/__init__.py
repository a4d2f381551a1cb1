"""Metrics of all requests, and the access log, if the operator asks for it."""
