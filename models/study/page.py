"""The files of a report: one HTML file that needs no other, and Markdown, both made by a Jinja2 template.

The values of a template: title, verdict, conclusion, sections (of headroom.models.study.result), and the
picture under the verdict, or None; a section that holds it too leaves it out.
"""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader

from headroom.models.errors import ModelError
from headroom.models.files import check_no_file, read_text

REPORT = "report.json"


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


def check_directory(out: Path, kind: str) -> None:
    """Raise ModelError if `out` is a file, or holds a report of something else than the study `kind`."""
    check_no_file(out)
    if not (out / REPORT).exists():
        return
    try:
        earlier = json.loads(read_text(out / REPORT))["kind"]
    except (OSError, ValueError, LookupError, TypeError):
        earlier = None
    if earlier != kind:
        what = f"the report of `headroom study {earlier}`" if earlier else "another report"
        raise ModelError(f"{out} holds {what}; name another directory, such as --out {out}-{kind}")
