"""The result of a section, as Markdown: rows with their targets first, then tables of everything measured."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measure import Ratio, machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One result. target: as in docs/PERFORMANCE.md, empty if there is none. ok: None without a target."""

    name: str
    value: str
    target: str = ""
    ok: bool | None = None


def at_least(name: str, value: float, minimum: float, spec: str = ".2f", more: str = "") -> Row:
    """Return the row of a value that has a lower limit. spec: format of both; more: text after the value."""
    return Row(name, f"{value:{spec}}{more}", f"≥ {minimum:{spec}}", value >= minimum)


def at_most(
    name: str, value: float, maximum: float, spec: str = ".2f", unit: str = "", more: str = ""
) -> Row:
    """Return the row of a value that has an upper limit; see `at_least`. unit: text after both."""
    return Row(name, f"{value:{spec}}{unit}{more}", f"≤ {maximum:{spec}}{unit}", value <= maximum)


def not_measured(name: str, missing: Iterable[str], minimum: float) -> Row:
    """Return the row of a lower limit that cannot be judged without what is missing."""
    return Row(name, f"not measured: {'; '.join(missing)}", f"≥ {minimum}", ok=False)


def times_as_fast(name: str, times: Ratio, minimum: float) -> Row:
    """Return the row of a ratio of speeds."""
    return at_least(name, times.median, minimum, more=times.range())


@dataclass
class Report:
    """The measurements of a section.

    about: the method; the page adds the machine. tables: their lines by title; each line has a text by
    column. notes: what could not be measured, and why.
    """

    about: str
    rows: list[Row] = field(default_factory=list)
    tables: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """Return a line for each target that was missed."""
        return [f"{row.name}: {row.value}, target {row.target}" for row in self.rows if row.ok is False]

    def add_invalid(self, reasons: Iterable[str]) -> None:
        """Add a missed row for each load test that says nothing about the server."""
        self.rows += [Row("invalid run", reason, "none", ok=False) for reason in reasons]

    def as_markdown(self) -> str:
        """Return everything as Markdown."""
        parts = [f"{machine()}. {self.about}", *([targets(self.rows)] if self.rows else [])]
        for title, lines in self.tables.items():
            parts += [f"**{title}**", table(lines)]
        return "\n\n".join([*parts, *self.notes])


def targets(rows: Sequence[Row]) -> str:
    """Return the table of rows and their targets."""
    met = {None: "", True: "yes", False: "no"}
    return table(
        [{"what": row.name, "measured": row.value, "target": row.target, "met": met[row.ok]} for row in rows]
    )


def table(lines: Sequence[Mapping[str, str]]) -> str:
    """Return a Markdown table; its columns are the keys of the first line."""
    if not lines:
        return "Nothing was measured."
    rows = [lines[0].keys(), ["---"] * len(lines[0]), *(line.values() for line in lines)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def kind_of(features: Sequence[str]) -> str:
    """Return the kind of processor that has a page of its own: amx, avx512, avx2 or other.

    With AMX, products are several times as fast and the rest is not; with AVX2 alone there is no bfloat16.
    """
    return next((kind for kind in ("amx", "avx512", "avx2") if kind in features), "other")


def write(
    section: str, about: str, report: Report, features: Sequence[str] = (), results: Path = RESULTS
) -> Path:
    """Replace a section of its processor's page; return the page's path. about: what the section measures."""
    page = results / f"{kind_of(features)}.md"
    results.mkdir(parents=True, exist_ok=True)
    sections = sections_of(page)
    sections[section] = f"{about} (`make bench ONLY={section}`).\n\n{report.as_markdown()}"
    parts = [f"# Results on a processor of kind {page.stem}"]
    parts += [f"## {name}\n\n{sections[name]}" for name in sorted(sections)]
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return page


def sections_of(page: Path) -> dict[str, str]:
    """Return the sections of a page by name; none if there is no page."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    found = re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: content.strip() for name, content in found}
