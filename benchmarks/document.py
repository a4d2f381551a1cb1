"""Writes and reads docs/PERFORMANCE.md and docs/performance.json, which have one part per section."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
SCHEMA = 1


def kind_of(features: Sequence[str]) -> str:
    """Return the kind of processor whose results have sections of their own: amx, avx2 (no more), or none."""
    if "amx" in features:
        return "amx"
    return "avx2" if "avx2" in features and "avx512" not in features else ""


def write(
    section: str, result: dict[str, Any], table: str, docs: Path = DOCS, features: Sequence[str] = ()
) -> None:
    """Replace a section's table and results, and keep those of the others.

    features: those of the processor. With AMX, products are several times as fast and the rest is not, and
    with AVX2 alone there is no bfloat16, so these results are kept as "SECTION amx" and "SECTION avx2" if the
    document has that section.
    Raises ValueError if PERFORMANCE.md has no markers for the section.
    """
    document, results = docs / "PERFORMANCE.md", docs / "performance.json"
    text = document.read_text(encoding="utf-8")
    if f"<!-- {section} {kind_of(features)}: begin -->" in text:
        section = f"{section} {kind_of(features)}"
    begin, end = f"<!-- {section}: begin -->", f"<!-- {section}: end -->"
    before, marker, rest = text.partition(begin)
    _, ended, after = rest.partition(end)
    if not marker or not ended:
        raise ValueError(f"{document} has no lines {begin} and {end}")
    document.write_text(f"{before}{begin}\n{table}\n{end}{after}", encoding="utf-8")
    kept = read(docs)
    kept.pop("machine", None)  # each section has its own
    everything = {**kept, "schema": SCHEMA, section: result}
    results.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


def read(docs: Path = DOCS) -> dict[str, Any]:
    """Return the latest results by section; empty if there are none."""
    results = docs / "performance.json"
    return dict(json.loads(results.read_text(encoding="utf-8"))) if results.exists() else {}
