"""Adapters of engines and small servers that run in the peers' environments.

Except for `ours.py`, they import only this package, numpy and the peer.
"""
