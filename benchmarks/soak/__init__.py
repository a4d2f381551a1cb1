"""A long run of the service under faults and attacks, which watches its processes: `make soak`."""
