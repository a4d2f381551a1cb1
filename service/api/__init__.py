"""The HTTP side: routes, strict request bodies, keys, timings and error shapes; no model and no Ray."""

from service.api.app import create_app

__all__ = ["create_app"]
