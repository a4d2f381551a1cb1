"""The HTTP side: routes, strict request bodies, keys, timings and error shapes; no model and no Ray."""

from service.http.app import create_app
from service.http.backend import Backend

__all__ = ["Backend", "create_app"]
