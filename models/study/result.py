"""The result of a study: the parts of its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


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
