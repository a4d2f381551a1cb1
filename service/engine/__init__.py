"""Batches that are shared fairly between requests; start reading in `scheduler`."""
