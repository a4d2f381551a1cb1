"""The report as one HTML file that needs no other, and as Markdown: both are made by a Jinja2 template."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from models.study.result import Figure, Section


def html(
    title: str,
    verdict: str,
    conclusion: str,
    sections: Sequence[Section],
    drawings: Mapping[str, str],
    picture: Figure | None = None,
) -> str:
    """Return the page: the verdict and one picture, then tables, then the method.

    drawings: the SVG of each figure by its name; they become data: images. picture: shown under the
    verdict; it may be one of a section, which then leaves it out.
    """
    images = {
        name: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
        for name, svg in drawings.items()
    }
    return _render(
        "report.html.j2", escape=True, title=title, verdict=verdict, conclusion=conclusion, sections=sections,
        images=images, picture=picture,
    )  # fmt: skip


def markdown(
    title: str, verdict: str, conclusion: str, sections: Sequence[Section], picture: Figure | None = None
) -> str:
    """Return the report as Markdown, with links to its plots."""
    return _render(
        "report.md.j2", escape=False, title=title, verdict=verdict, conclusion=conclusion, sections=sections,
        picture=picture,
    )  # fmt: skip


def _render(template: str, *, escape: bool, **values: Any) -> str:
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=escape, trim_blocks=True, lstrip_blocks=True)
    environment.filters["md"] = _escaped
    return environment.get_template(template).render(values)


def _escaped(text: str) -> str:
    """Escape the signs of Markdown, which file names and queries may hold."""
    for sign in ("\\", "`", "*", "_", "<", "[", "|"):
        text = text.replace(sign, "\\" + sign)
    return text
