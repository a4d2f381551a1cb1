"""A report as one HTML file that needs no other, and as Markdown: both are made by a Jinja2 template.

Its values: title, verdict, conclusion, sections (of models.study.result), and the picture under the verdict,
or None; a section that holds it too leaves it out.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader


def html(drawings: Mapping[str, str], **values: Any) -> str:
    """Return the page: the verdict and one picture, then tables, then the method.

    drawings: the SVG of each figure by its name; they become data: images.
    """
    images = {
        name: "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
        for name, svg in drawings.items()
    }
    return _render("report.html.j2", escape=True, images=images, **values)


def markdown(**values: Any) -> str:
    """Return the report as Markdown, with links to its plots."""
    return _render("report.md.j2", escape=False, **values)


def write(file: Path, text: str) -> None:
    """Write the file atomically, so that it is never there in part."""
    draft = file.with_name(file.name + ".tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(file)


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
