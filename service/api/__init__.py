"""The HTTP side: routes, strict request bodies, keys, timings and error shapes; no model and no Ray."""

from headroom.service.api.app import create_app

__all__ = ["create_app"]
