"""Measurements. `make bench` writes benchmarks/results; docs/PERFORMANCE.md sums them up."""
