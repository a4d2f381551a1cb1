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
    """A plot of the report, written as plots/NAME.png and plots/NAME.svg.

    caption: says in one or two sentences what the plot shows, also to readers who cannot see it.
    draw: makes the matplotlib figure (with plots.figure, never with pyplot's global state).
    """

    name: str
    caption: str
    draw: Callable[[], Drawing]


@dataclass(frozen=True)
class Section:
    """A part of the report: a picture, tables, and at the report's end how they were made.

    paragraphs: the method, plain text without markup. picture: in a report of all studies, that of one.
    """

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    picture: Figure | None = None


@dataclass(frozen=True)
class Finding:
    """A published claim beside the numbers of this run: one row of a table.

    published: the source study's figure. ours: our figure with its interval.
    """

    claim: str
    published: str
    ours: str


@dataclass(frozen=True)
class Result:
    """The report of one kind of study.

    json: plain Python values, merged into report.json beside schema, kind, model and baseline.
    verdict: one sentence. conclusion: what more there is to say in words. picture: what one sees first.
    files: the text of further files for the report's directory, by name; None removes an earlier report's.
    """

    kind: str
    json: Mapping[str, Any]
    verdict: str
    sections: tuple[Section, ...] = ()
    picture: Figure | None = None
    findings: tuple[Finding, ...] = ()
    conclusion: str = ""
    files: Mapping[str, str | None] = field(default_factory=dict)
