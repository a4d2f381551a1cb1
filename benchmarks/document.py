"""docs/PERFORMANCE.md and docs/performance.json: one part of each for every section."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA = 1
AMX = "amx"


def write(
    section: str, result: dict[str, Any], table: str, docs: Path = DOCS, features: Sequence[str] = ()
) -> None:
    """Replaces a section's table and results; those of the others stay as they are.

    features: of the processor. What was measured with AMX, where products are several times as fast and the
    rest is not, is kept as "SECTION amx", beside what was measured without, if the document has that place.
    Raises ValueError where PERFORMANCE.md has no markers for the section.
    """
    document, results = docs / "PERFORMANCE.md", docs / "performance.json"
    text = document.read_text(encoding="utf-8")
    if AMX in features and f"<!-- {section} {AMX}: begin -->" in text:
        section = f"{section} {AMX}"
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{document} has no lines {begin} and {end}")
    document.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
    kept = read(docs)
    kept.pop("machine", None)  # each section has its own
    everything = {**kept, "schema": SCHEMA, section: result}
    results.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def read(docs: Path = DOCS) -> dict[str, Any]:
    """What was measured last, by section; empty where nothing was."""
    results = docs / "performance.json"
    return dict(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else {}
