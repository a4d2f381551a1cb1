"""`/`: the page on which heads are switched, attention is read, and experiments and load are watched.

The page is the files of `service/page`, served as they are. They hold no data of the service, so they are
open to everybody; what the page then asks for is not.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fastapi import FastAPI, Request, Response

from service.errors import NotFound

_DIRECTORY = Path(__file__).parents[1] / "page"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_PREFIX = "/playground/"

# Titles that somebody else wrote are shown here and an API key is typed in: the page runs and fetches nothing
# but its own files, talks to its own server only, and no other page can show it in a frame.
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address holds the query and the titles
    "cache-control": "no-cache",  # kept, and checked by its etag: a new version shows at once
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def _read(file: Path) -> _File:
    content = file.read_bytes()
    return _File(content, _MEDIA_TYPES[file.suffix], f'"{hashlib.sha256(content).hexdigest()[:16]}"')


_FILES = {
    _PREFIX + file.relative_to(_DIRECTORY).as_posix(): _read(file)
    for file in sorted(_DIRECTORY.rglob("*"))
    if file.suffix in _MEDIA_TYPES
}
_FILES["/"] = _FILES.pop(f"{_PREFIX}index.html")

PATHS = frozenset(_FILES)
"""What needs no API key."""


def add_playground(app: FastAPI) -> None:
    """Add `/` and the files its page loads."""
    for path in ("/", _PREFIX + "{file:path}"):
        app.add_api_route(path, _serve, include_in_schema=False)


async def _serve(request: Request) -> Response:
    file = _FILES.get(request.scope["path"])
    if file is None:
        raise NotFound
    headers = _HEADERS | {"etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
