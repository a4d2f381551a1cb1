"""The benchmark of the shipped masks, on few pairs."""

from __future__ import annotations

from benchmarks import pruned


def test_every_stored_mask_is_measured_in_every_format() -> None:
    report = pruned.measure(rounds=1, limit=48)

    assert {"fp32", "int8"} <= report.tables.keys()
    for lines in report.tables.values():
        assert {line["mask"] for line in lines} >= {"intact", "pruned20", "pruned30", "fast", "rough"}
    names = [row.name for row in report.rows]
    assert {"`fast` × intact, fp32", "`fast`, int8: qwk"} <= {*names}
