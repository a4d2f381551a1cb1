"""A page shows every row with its target, and a run of one section leaves the other pages as they were."""

import math
from pathlib import Path

import pytest

from benchmarks.__main__ import SECTIONS, main
from benchmarks.report import RESULTS, Report, Row, at_least, at_most, sections_of, write


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


def test_a_page_shows_its_tables_and_what_could_not_be_measured() -> None:
    tables = {"titles": [{"engine": "a", "pairs/s": "9"}, {"engine": "b", "pairs/s": "8"}], "documents": []}
    page = Report("One turn.", tables=tables, notes=["Not measured: c: not installed."]).as_markdown()
    assert "**titles**\n\n| engine | pairs/s |\n| --- | --- |\n| a | 9 |\n| b | 8 |" in page
    assert page.endswith("**documents**\n\nNothing was measured.\n\nNot measured: c: not installed.")


@pytest.mark.parametrize(
    ("features", "name"),
    [(["avx2", "avx512", "amx"], "amx"), (["avx2"], "avx2"), (["avx2", "avx512"], "avx512"), ([], "other")],
)
def test_each_kind_of_processor_has_a_page_whose_other_sections_stay(
    features: list[str], name: str, tmp_path: Path
) -> None:
    (tmp_path / f"{name}.md").write_text("# Results\n\n## a\n\nold a\n\n## b\n\nold b\n")
    page = write("a", "what it measures", Report("One turn."), features, tmp_path)
    assert page == tmp_path / f"{name}.md"
    sections = sections_of(page)
    assert sections["a"].startswith("what it measures (`make bench ONLY=a`).\n\n")
    assert sections["a"].endswith("One turn.")
    assert sections["b"] == "old b"


def test_every_section_has_results() -> None:
    assert {*SECTIONS} <= {name for page in RESULTS.glob("*.md") for name in sections_of(page)}


def test_an_unknown_section_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "encoder,brakes"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "'brakes' is none of encoder, int8, engines, servers, studies, service" in capsys.readouterr().err


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
