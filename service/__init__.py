"""The relevance server: request validation, scheduling, the forward thread and Ray Serve."""
