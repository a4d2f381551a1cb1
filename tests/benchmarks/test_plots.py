"""The plots are drawn from what was measured, and only from that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import plots


def row(**fields: Any) -> dict[str, Any]:
    return {"shape": "base", "workload": "titles", "pairs_per_second": 10.0, "share_of_limit": 0.5, **fields}


def test_each_section_that_was_measured_gets_its_picture(tmp_path: Path) -> None:
    rows = [
        row(engine="ours bf16"),
        row(engine="peer", share_of_limit=None),
        row(shape="tiny", engine="peer"),
    ]

    drawn = plots.draw({"schema": 1, "engines": {"rows": rows}}, tmp_path / "performance")

    assert [file.name for file in drawn] == ["engines.png"]
    assert drawn[0].read_bytes().startswith(b"\x89PNG")
    assert plots.draw({"schema": 1}, tmp_path) == []
