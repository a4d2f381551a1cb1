"""A run of one section leaves the others' pages and numbers as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import document
from benchmarks.__main__ import DEFAULT, main


def test_a_section_replaces_its_own_page_only(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"schema": 1, "b": {"kept": True}}))
    (tmp_path / "b.md").write_text("old b")

    page = document.write("a", "what it measures", {"rows": [1]}, "| new |", tmp_path)

    assert page.read_text() == "# a: what it measures\n\nMade by `make bench ONLY=a`.\n\n| new |\n"
    assert (tmp_path / "b.md").read_text() == "old b"
    assert document.read(tmp_path) == {"schema": 1, "a": {"rows": [1]}, "b": {"kept": True}}


@pytest.mark.parametrize(
    ("features", "name"),
    [(["avx2", "amx"], "a-amx"), (["avx2"], "a-avx2"), (["avx2", "avx512"], "a"), ([], "a")],
)
def test_each_kind_of_processor_has_pages_of_its_own(features: list[str], name: str, tmp_path: Path) -> None:
    assert document.write("a", "", {"rows": [1]}, "| new |", tmp_path, features) == tmp_path / f"{name}.md"
    assert document.read(tmp_path).keys() == {"schema", name}


def test_every_section_that_runs_by_default_has_results() -> None:
    results = document.read()
    for name in DEFAULT:
        assert results[name]
        assert (document.RESULTS / f"{name}.md").is_file()


def test_an_unknown_section_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "encoder,brakes"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "'brakes' is none of encoder, int8, engines, servers, studies, service" in capsys.readouterr().err
