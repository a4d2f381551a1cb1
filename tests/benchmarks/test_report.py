"""A page shows every row with its target, and a run of one section leaves the other pages as they were."""

import math

import pytest

from benchmarks.__main__ import SECTIONS, main
from benchmarks.report import RESULTS, Report, Row, at_least, at_most, sections_of

pytestmark = pytest.mark.more


def test_a_missed_target_is_said_with_its_row() -> None:
    rows = [at_least("share", 0.89, 0.9, ".0%", " (80% to 95%)"), at_most("p99", 40.0, 50.0, ".0f", " ms")]
    report = Report("Two turns.", [*rows, at_least("ratio", math.nan, 1.0), Row("size", "3 MB")])
    report.add_invalid(["turn 1: the client sent late"])

    assert report.missed == [
        "share: 89% (80% to 95%), target ≥ 90%",
        "ratio: nan, target ≥ 1.00",
        "invalid run: turn 1: the client sent late, target none",
    ]
    page = report.as_markdown()
    assert ". Two turns.\n" in page
    assert "\n| p99 | 40 ms | ≤ 50 ms | yes |\n| ratio | nan | ≥ 1.00 | no |\n| size | 3 MB |  |  |\n" in page


def test_every_section_has_results() -> None:
    assert {*SECTIONS} <= {name for page in RESULTS.glob("*.md") for name in sections_of(page)}


def test_a_missed_target_or_a_section_that_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(rounds: int) -> Report:
        return Report(f"{rounds} rounds.", [at_least("speed", 1.0, 2.0)])

    def fails(_: int) -> Report:
        raise RuntimeError("no such engine")

    command = ["benchmarks", "--only", "encoder", "--rounds", "3", "--dry-run"]
    monkeypatch.setattr("benchmarks.encoder.measure", measure)
    monkeypatch.setattr("sys.argv", command)
    assert main() == 0
    monkeypatch.setattr("sys.argv", [*command, "--check"])
    assert main() == 1
    said = capsys.readouterr()
    assert "3 rounds." in said.out
    assert "target missed: speed: 1.00, target ≥ 2.00" in said.err
    monkeypatch.setattr("benchmarks.encoder.measure", fails)
    monkeypatch.setattr("sys.argv", command)
    assert main() == 1
    assert "no such engine" in capsys.readouterr().err
