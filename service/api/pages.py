"""The pages for people: `/`, where heads are switched and experiments watched, and `/docs`, Swagger UI.

The pages and their files are served as they are. They hold no data of the service, so they are open to
everybody; what they then ask for (the OpenAPI document too) is not.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI, Request, Response

from service.errors import NotFound

_PLAYGROUND = Path(__file__).parents[1] / "page"
_DOCS = Path(__file__).parent / "page"
_SWAGGER = Path(str(files("fastapi_swagger") / "resources"))
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}

# People type an API key into these pages and read what somebody else wrote. So a page runs only its own
# files, talks to its own server only, and no other page can show it in a frame.
_COMMON = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address holds the query and the titles
    "cache-control": "no-cache",  # kept, and checked by its etag: a new version shows at once
}
_FRAMING = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PLAYGROUND_HEADERS = _COMMON | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        f"require-trusted-types-for 'script'; {_FRAMING}"
    )
}
_DOCS_HEADERS = _COMMON | {  # Swagger UI's styles and pictures are inline
    "content-security-policy": (
        f"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; {_FRAMING}"
    )
}


def _read(file: Path, headers: dict[str, str]) -> tuple[bytes, dict[str, str]]:
    """Return a file's content, and the headers that it is sent with."""
    content = file.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return content, headers | {"content-type": _MEDIA_TYPES[file.suffix], "etag": etag}


_FILES = {
    f"/playground/{file.relative_to(_PLAYGROUND).as_posix()}": _read(file, _PLAYGROUND_HEADERS)
    for file in sorted(_PLAYGROUND.rglob("*"))
    if file.suffix in _MEDIA_TYPES
}
_FILES["/"] = _FILES.pop("/playground/index.html")
# The addresses in the page are relative, so it also works behind a path prefix.
_FILES["/docs"] = _read(_DOCS / "docs.html", _DOCS_HEADERS)
for _directory, _name in (
    (_DOCS, "docs.js"),
    (_SWAGGER, "swagger-ui-bundle.js"),
    (_SWAGGER, "swagger-ui.css"),
    (_SWAGGER, "favicon-32x32.png"),
):
    _FILES[f"/docs/{_name}"] = _read(_directory / _name, _DOCS_HEADERS)

PATHS = frozenset(_FILES)
"""Paths that need no API key."""


def add_pages(app: FastAPI) -> None:
    """Add both pages and the files that they load."""
    for path in ("/", "/playground/{file:path}", "/docs", "/docs/{file}"):
        app.add_api_route(path, _serve, include_in_schema=False)


async def _serve(request: Request) -> Response:
    if request.scope["path"] not in _FILES:
        raise NotFound
    content, headers = _FILES[request.scope["path"]]
    if request.headers.get("if-none-match") == headers["etag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
