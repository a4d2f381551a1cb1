"""Serves `/docs`: Swagger UI from our own files, on a page that asks for an API key if the service has keys.

The page and its files need no key, so that a browser can load them. The OpenAPI document, which the page
fetches afterwards, does need one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse

_OURS = Path(__file__).parent / "page"
_SWAGGER = Path(str(files("fastapi_swagger") / "resources"))

# The page's addresses are relative, so it also works behind a path prefix.
_FILES = {
    "/docs": (_OURS / "docs.html", "text/html"),
    "/docs/docs.js": (_OURS / "docs.js", "text/javascript"),
    "/docs/swagger-ui-bundle.js": (_SWAGGER / "swagger-ui-bundle.js", "text/javascript"),
    "/docs/swagger-ui.css": (_SWAGGER / "swagger-ui.css", "text/css"),
    "/docs/favicon-32x32.png": (_SWAGGER / "favicon-32x32.png", "image/png"),
}
PATHS = frozenset(_FILES)
"""Paths that need no API key."""

# People type an API key into this page. So it runs only its own scripts and talks only to its own server, and
# no other page can show it in a frame. Styles and pictures may be inline, because Swagger UI's are.
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-cache",  # browsers keep it, but ask each time whether it changed
}


def add_docs(app: FastAPI) -> None:
    """Add `/docs` and the files its page loads."""
    for path, (file, media_type) in _FILES.items():
        app.add_api_route(path, _serving(file, media_type), include_in_schema=False)


def _serving(file: Path, media_type: str) -> Callable[[], Awaitable[FileResponse]]:
    async def serve() -> FileResponse:
        return FileResponse(file, media_type=media_type, headers=_HEADERS)

    return serve
