"""What runs in the peers' own environments: adapters of engines and small servers. Imports nothing of ours
but this package, numpy, and the peer (`ours.py` excepted)."""
