"""Writes and reads benchmarks/results: a page per section and kind of processor, and results.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SCHEMA = 1


def kind_of(features: Sequence[str]) -> str:
    """Return the kind of processor whose results have pages of their own: amx, avx2 (no more), or none.

    With AMX, products are several times as fast and the rest is not; with AVX2 alone there is no bfloat16.
    """
    if "amx" in features:
        return "amx"
    return "avx2" if "avx2" in features and "avx512" not in features else ""


def write(
    section: str,
    about: str,
    result: dict[str, Any],
    table: str,
    results: Path = RESULTS,
    features: Sequence[str] = (),
) -> Path:
    """Replace a section's page and numbers, and keep those of the others. Return the page's path.

    about: what the section measures, in a line. features: those of the processor.
    """
    name = "-".join(filter(None, (section, kind_of(features))))
    page = results / f"{name}.md"
    everything = {**read(results), "schema": SCHEMA, name: result}
    results.mkdir(parents=True, exist_ok=True)
    page.write_text(
        f"# {section}: {about}\n\nMade by `make bench ONLY={section}`.\n\n{table.strip()}\n", encoding="utf-8"
    )
    (results / "results.json").write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return page


def read(results: Path = RESULTS) -> dict[str, Any]:
    """Return the latest results by page; empty if there are none."""
    file = results / "results.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}
