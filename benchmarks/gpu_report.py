"""The report of `make gpu`: gpu.json and gpu.md."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One result. target: as in the project's list of targets; empty if there is none."""

    name: str
    value: str
    target: str = ""
    ok: bool | None = None


def write(out: Path, about: Mapping[str, object], results: Mapping[str, Sequence[Row]]) -> None:
    """Write gpu.json and gpu.md to the directory `out`. about: of the machine; results: rows by part."""
    rows = {part: [dataclasses.asdict(row) for row in found] for part, found in results.items()}
    content = json.dumps({"about": about, "results": rows}, indent=1)
    (out / "gpu.json").write_text(content, encoding="utf-8")
    lines = [f"# On {about['device']}", "", *(f"- {key}: {value}" for key, value in about.items())]
    for part, found in results.items():
        lines += ["", f"## {part}", "", "| what | measured | target | met |", "|---|---|---|---|"]
        lines += [f"| {row.name} | {row.value} | {row.target} | {_yes_or_no(row.ok)} |" for row in found]
    (out / "gpu.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _yes_or_no(ok: bool | None) -> str:
    return "" if ok is None else "yes" if ok else "no"
