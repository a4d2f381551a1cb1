"""What the scenario `soak` does to a server, and what it looks at meanwhile."""
