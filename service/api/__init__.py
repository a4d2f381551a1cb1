"""The HTTP side: routes, strict request bodies, keys, timings and error shapes; no model and no Ray.

`create_app` is imported with its first use: Ray's processes need single modules, and would import the whole
application, which takes most of a second.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headroom.service.api.app import create_app

__all__ = ["create_app"]


def __getattr__(name: str) -> Any:
    """Import what the package offers, with its first use."""
    if name in __all__:
        from headroom.service.api import app

        return getattr(app, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
