"""A run of one section leaves the others' tables and results as they were."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import document
from benchmarks.__main__ import SECTIONS, main

TEXT = (
    "# Title\n\n<!-- a: begin -->\nold a\n<!-- a: end -->\nprose\n<!-- b: begin -->\nold b\n<!-- b: end -->\n"
)


def test_a_section_replaces_its_own_part_only(tmp_path: Path) -> None:
    (tmp_path / "PERFORMANCE.md").write_text(TEXT)
    (tmp_path / "performance.json").write_text(json.dumps({"schema": 1, "b": {"kept": True}}))

    document.write("a", {"rows": [1]}, "| new |", tmp_path)

    assert (tmp_path / "PERFORMANCE.md").read_text() == TEXT.replace("old a", "| new |")
    assert document.read(tmp_path) == {"schema": 1, "a": {"rows": [1]}, "b": {"kept": True}}


@pytest.mark.parametrize(
    ("features", "replaced"), [(["avx2", "amx"], "tiles"), (["avx2"], "plain"), ([], "plain")]
)
def test_results_with_amx_go_to_a_place_of_their_own_if_there_is_one(
    features: list[str], replaced: str, tmp_path: Path
) -> None:
    text = "<!-- a: begin -->\nplain\n<!-- a: end -->\n"
    text += "<!-- a amx: begin -->\ntiles\n<!-- a amx: end -->\n"
    (tmp_path / "PERFORMANCE.md").write_text(text)

    document.write("a", {"rows": [1]}, "| new |", tmp_path, features)

    assert (tmp_path / "PERFORMANCE.md").read_text() == text.replace(replaced, "| new |")
    assert document.read(tmp_path).keys() == {"schema", "a amx" if replaced == "tiles" else "a"}


def test_a_section_without_a_place_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "PERFORMANCE.md").write_text(TEXT)
    with pytest.raises(ValueError, match="<!-- c: begin -->"):
        document.write("c", {}, "", tmp_path)
    assert not (tmp_path / "performance.json").exists()


def test_every_section_has_its_place_in_the_document() -> None:
    text = (document.DOCS / "PERFORMANCE.md").read_text(encoding="utf-8")
    for name in SECTIONS:
        assert text.index(f"<!-- {name}: begin -->") < text.index(f"<!-- {name}: end -->")


def test_an_unknown_section_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmarks", "--only", "encoder,brakes"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert "'brakes' is none of encoder, int8, engines, servers, studies, service" in capsys.readouterr().err
