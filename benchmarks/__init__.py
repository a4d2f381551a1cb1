"""Measurements: every number in docs/PERFORMANCE.md comes out of `make bench`."""
