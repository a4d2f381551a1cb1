"""The pages for people: `/`, where heads are switched and experiments watched, and `/docs`, Swagger UI.

What they load is read, put together and compressed once, when the server starts. Files of `/` are asked for
with their content's digest behind the `?`, so a browser never asks again; the pages are checked at each
visit. They hold no data of the service, so `/` and all files are open to everybody; what they then ask for
(the OpenAPI document too) is not. Without a key `/docs` is refused; for a browser, the refusal is the page,
which asks for one.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.datastructures import Headers

from headroom.service.api import bundle
from headroom.service.api.errors import json_response
from headroom.service.api.post import backend_of
from headroom.service.errors import NotFound
from headroom.service.scoring.catalog import BASE

if TYPE_CHECKING:
    from headroom.models.classifier import Classifier
    from headroom.service.replica import Replica

_PLAYGROUND = Path(__file__).parents[1] / "page"
_DOCS = Path(__file__).parent / "page"
_SWAGGER = Path(str(files("fastapi_swagger") / "resources"))
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}

# People type an API key into these pages and read what somebody else wrote. So a page runs only its own
# files, talks to its own server only, and no other page can show it in a frame. The policy `report` takes an
# experiment's report, the one markup that the service sends, with its drawing as a data: image.
_COMMON = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",  # the address holds the query and the titles
    "vary": "accept-encoding",
    "cache-control": "no-cache",  # kept, and checked by its etag: a new version shows at once
}
_FRAMING = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_PLAYGROUND_HEADERS = _COMMON | {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        f"require-trusted-types-for 'script'; trusted-types report; {_FRAMING}"
    )
}
_DOCS_HEADERS = _COMMON | {  # Swagger UI's styles and pictures are inline
    "content-security-policy": (
        f"default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; {_FRAMING}"
    )
}


_IMMUTABLE = {"cache-control": "public, max-age=31536000, immutable"}  # a new version has another digest
_STYLES = re.compile(r'<link rel="stylesheet" href="playground/([^"]+)">\s*')


@dataclass(frozen=True)
class _File:
    content: bytes
    packed: bytes  # with gzip
    digest: str
    headers: dict[str, str]


def _file(content: bytes, suffix: str, headers: dict[str, str]) -> _File:
    """Return a file as it is sent. suffix: of its name, which says its media type."""
    digest = hashlib.sha256(content).hexdigest()[:16]
    headers = headers | {"content-type": _MEDIA_TYPES[suffix], "etag": f'"{digest}"'}
    return _File(content, gzip.compress(content, mtime=0), digest, headers)


def _playground() -> dict[str, _File]:
    """Return the page, with one script, one style sheet and an icon.

    Addresses in it are relative, so the page works behind a path prefix too.
    """
    licenses = (_PLAYGROUND / "vendor" / "LICENSES.txt").read_bytes()
    files_by_path = {"/playground/licenses.txt": _file(licenses, ".txt", _PLAYGROUND_HEADERS)}

    def address(name: str, content: bytes) -> str:
        file = files_by_path[f"/{name}"] = _file(content, Path(name).suffix, _PLAYGROUND_HEADERS)
        return f"{name}?{file.digest}"

    html = (_PLAYGROUND / "index.html").read_text(encoding="utf-8")
    styles = b"\n".join((_PLAYGROUND / name).read_bytes() for name in _STYLES.findall(html))
    script = "// Licences of what others wrote: licenses.txt beside this file.\n"
    script += bundle.modules(_PLAYGROUND, "app.js")
    link = f'<link rel="stylesheet" href="{address("playground/app.css", styles)}">'
    html = _STYLES.sub("", html).replace("</head>", f"{link}\n</head>")
    for name, content in (("app.js", script.encode()), ("icon.svg", (_PLAYGROUND / "icon.svg").read_bytes())):
        html = html.replace(f"playground/{name}", address(f"playground/{name}", content))
    files_by_path["/"] = _file(html.encode(), ".html", _PLAYGROUND_HEADERS)
    return files_by_path


def _docs() -> dict[str, _File]:
    sources = {"/docs": _DOCS / "docs.html", "/docs/docs.js": _DOCS / "docs.js"}
    swagger = ("swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png")
    sources |= {f"/docs/{name}": _SWAGGER / name for name in swagger}
    return {path: _file(file.read_bytes(), file.suffix, _DOCS_HEADERS) for path, file in sources.items()}


_FILES = _playground() | _docs()

PAGE_HEADER = b"x-headroom-playground"
"""Header of the requests that the page makes itself."""

FACTS_HEADER = "x-headroom-facts"
"""Header of answers to the page: the version of its facts, which it loads again if it has others."""

DOCS_PATH = "/docs"
PATHS = frozenset(_FILES) - {DOCS_PATH}
"""Paths that need no API key."""


def docs_asking_for_key(refusal: Response, headers: Headers) -> Response:
    """Return the refusal of a request for `/docs`; for a browser, the page that asks for a key."""
    if "text/html" not in headers.get("accept", ""):
        return refusal
    page = _FILES[DOCS_PATH]
    challenge = {"www-authenticate": refusal.headers["www-authenticate"], "cache-control": "no-store"}
    return Response(page.content, refusal.status_code, headers=page.headers | challenge)


def add_pages(app: FastAPI) -> None:
    """Add both pages and the files that they load."""
    app.add_api_route("/playground/facts", _facts, include_in_schema=False)
    app.add_api_route("/playground/history", _history, include_in_schema=False)
    app.add_api_route(f"{DOCS_PATH}/", _to_docs, include_in_schema=False)
    for path in ("/", "/playground/{file:path}", "/docs", "/docs/{file}"):
        app.add_api_route(path, _serve, include_in_schema=False)


async def _to_docs() -> Response:
    """Send a browser to the address that the page's links are relative to."""
    return RedirectResponse("../docs")


async def _facts(request: Request) -> Response:
    """Answer with four of the listings of /v1 at once, so that the page waits for one, and their version."""
    backend = backend_of(request)
    listings = {name: getattr(backend, name)() for name in ("models", "variants", "masks", "heads")}
    return _send(_packed_facts(orjson.dumps({"version": facts_version(backend), **listings})), request)


def facts_version(backend: Replica) -> str:
    """Return 12 hex digits that change with what the page is told: with the live config, and the model."""
    return _facts_version(backend.config_version, backend.engine.classifiers[BASE])


@lru_cache(maxsize=1)
def _facts_version(config_version: str, base: Classifier) -> str:
    config = base.config
    shape = (config.num_layers, config.num_heads, config.family, base.max_tokens, base.network.parameters)
    masks = {name: mask.id for name, mask in base.stored_masks.items()}
    model = (base.name, base.origin, shape, config.labels, config.score_activation, masks, base.head_study)
    return hashlib.sha256(repr((config_version, model)).encode()).hexdigest()[:12]


@lru_cache(maxsize=1)
def _packed_facts(content: bytes) -> _File:
    """Return the listings, which seldom change, as a file."""
    return _file(content, ".json", _COMMON)


async def _history(request: Request) -> Response:
    """Answer what `/metrics` said at the last scrapes of this replica, and the time on its clock."""
    return json_response({"now": time.time(), "scrapes": list(request.app.state.metrics.history)})


async def _serve(request: Request) -> Response:
    file = _FILES.get(request.scope["path"])
    if file is None:
        raise NotFound
    return _send(file, request)


def _send(file: _File, request: Request) -> Response:
    """Answer with a file, compressed if the browser can read that; 304 if it has the file already."""
    if request.headers.get("if-none-match") == file.headers["etag"]:
        return Response(status_code=304, headers=file.headers)
    # While versions change, a page may get the other version's script: it works, and is not kept.
    headers = file.headers | (_IMMUTABLE if request.url.query == file.digest else {})
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.packed, headers=headers | {"content-encoding": "gzip"})
    return Response(file.content, headers=headers)
