"""The directory of a study: it takes a report of the same kind again, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from models import ModelError
from models.study.earlier_report import check_directory, remove_others


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        ('{"kind": "cost"}', "holds the report of `headroom study cost`; name another directory, such as"),
        ('{"schema": 1}', "holds another report"),
        ("no report", "holds another report"),
    ],
)
def test_another_report_is_not_written_over(tmp_path: Path, report: str, reason: str) -> None:
    (tmp_path / "report.json").write_text(report)
    with pytest.raises(ModelError, match=reason):
        check_directory(tmp_path, "search")


def test_a_report_of_the_same_kind_and_a_new_directory_are_taken(tmp_path: Path) -> None:
    check_directory(tmp_path / "new", "search")
    check_directory(tmp_path, "search")
    (tmp_path / "report.json").write_text('{"kind": "search"}')
    check_directory(tmp_path, "search")
    with pytest.raises(ModelError, match="is a file; name a directory"):
        check_directory(tmp_path / "report.json", "search")


def test_a_file_outside_of_the_directory_is_never_removed(tmp_path: Path) -> None:
    """The list of files is in a file that anybody can edit."""
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "mine.json").write_text("{}")
    (out / "report.json").write_text('{"kind": "search", "files": ["../mine.json", "gone.json"]}')
    remove_others(out, ())
    assert (tmp_path / "mine.json").exists()
