"""The network, its masks and the studies of its heads."""
