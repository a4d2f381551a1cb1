"""The parts of a report, and the HTML file and the Markdown that are made of them.

The HTML file needs no other. Both are made by a Jinja2 template from: title, verdict, conclusion, sections,
and the picture under the verdict, or None; a section that holds it too leaves it out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader

from headroom.models.errors import ModelError
from headroom.models.files import check_no_file, read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

REPORT = "report.json"


@dataclass(frozen=True)
class Table:
    """A table of the report; cells are plain text."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A plot of the report, written as plots/NAME.png and plots/NAME.svg."""

    name: str
    caption: str  # says what the plot shows, also to readers who cannot see it
    draw: Callable[[], Drawing]  # with plots.figure, never with pyplot's global state


@dataclass(frozen=True)
class Section:
    """A part of the report: a picture, tables, and at the report's end how they were made."""

    title: str
    paragraphs: tuple[str, ...] = ()  # the method, plain text without markup
    tables: tuple[Table, ...] = ()
    picture: Figure | None = None  # in a report of all studies, that of one


@dataclass(frozen=True)
class Finding:
    """A published claim beside the numbers of this run: one row of a table."""

    claim: str
    published: str  # the source study's figure
    ours: str  # our figure with its interval


@dataclass(frozen=True)
class Result:
    """The report of one kind of study."""

    kind: str
    json: Mapping[str, Any]  # merged into report.json beside schema, kind, model and baseline
    verdict: str  # in a sentence or two
    sections: tuple[Section, ...] = ()
    picture: Figure | None = None  # what one sees first
    findings: tuple[Finding, ...] = ()
    # The text of further files for the report's directory, by name; None removes an earlier report's.
    files: Mapping[str, str | None] = field(default_factory=dict)


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
