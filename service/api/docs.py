"""`/docs` without a content delivery network: Swagger UI from the files of an installed package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse

_FILES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}


def add_docs(app: FastAPI) -> None:
    """Add `/docs` and the files its page loads."""
    folder = Path(str(files("fastapi_swagger") / "resources"))

    async def page() -> HTMLResponse:
        return get_swagger_ui_html(
            openapi_url="openapi.json",  # relative, as the files are: it works behind a path prefix too
            title=f"{app.title}: API",
            swagger_js_url="docs/swagger-ui-bundle.js",
            swagger_css_url="docs/swagger-ui.css",
            swagger_favicon_url="docs/favicon-32x32.png",
        )

    def file(name: str, media_type: str) -> None:
        async def serve() -> FileResponse:
            return FileResponse(folder / name, media_type=media_type)

        app.add_api_route(f"/docs/{name}", serve, include_in_schema=False)

    app.add_api_route("/docs", page, include_in_schema=False)
    for name, media_type in _FILES.items():
        file(name, media_type)
