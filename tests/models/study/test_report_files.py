"""The report: readable by programs, by people offline, and safe with any text in it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier, ModelError
from headroom.models.quality.labelled import LabelledPair
from headroom.models.study import plots, report_files
from headroom.models.study.page import Figure, Finding, Result, Section, Table, check_directory
from headroom.models.study.pairs import Judged
from tests.models.study.data import study

HOSTILE = "<script>alert('x')</script> | *a_b* & \"q\""


@pytest.fixture(scope="module")
def written(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report")

    def draw() -> object:
        drawing, axes = plots.figure(6, 4)
        heads, values = ((0, 0), (0, 1), (1, 1)), np.array([1.0, np.nan, 0.5])
        plots.heat_map(axes, (2, 2), heads, values, values > 0, "t", "l")
        return drawing

    result = Result(
        "single",
        {"heads": [{"layer": 0, "value": float("nan"), "interval": [1.0, float("inf")]}]},
        f"What was found in {HOSTILE}.",
        (
            Section(
                "Part",
                (HOSTILE,),
                (Table(("a", "b"), ((HOSTILE, "1"),), "caption"),),
                Figure("plot", HOSTILE, draw),  # type: ignore[arg-type]
            ),
        ),
        findings=(Finding("a claim", "−52 %", "−3 %"),),
        files={"mask.json": "{}"},
    )
    rows = [LabelledPair(f"{HOSTILE} {i % 12}", "red lamp", i % 5) for i in range(60)]
    asked = study(Classifier.load(tiny_checkpoint), out, Judged(rows, HOSTILE))
    report_files.write(asked, result)
    return out


def test_json_has_what_the_contract_names_and_no_nan(written: Path) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    content = json.loads((written / "report.json").read_text(), parse_constant=refuse)
    assert content["schema"] == 1
    assert content["kind"] == "single"
    assert set(content["baseline"]) >= {"accuracy", "qwk", "ndcg10", "macro_f1"}
    assert content["heads"] == [{"layer": 0, "value": None, "interval": [1.0, None]}]
    assert content["findings"] == [{"claim": "a claim", "published": "−52 %", "ours": "−3 %"}]


def test_the_page_needs_nothing_from_outside_and_runs_nothing(written: Path) -> None:
    page = (written / "report.html").read_text()
    assert "<script" not in page
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources)
    assert "&lt;script&gt;" in page
    assert ">−52 %<" in page
    assert "All figures are for" in page
    assert "prefers-color-scheme: dark" in page
    order = [page.index(text) for text in ('class="verdict"', "rough answer", "Details", "Method")]
    assert order == sorted(order)


def test_markdown_keeps_its_tables_whatever_the_text(written: Path) -> None:
    text = (written / "report.md").read_text()
    row = next(line for line in text.splitlines() if line.endswith("| 1 |"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 3  # two cells
    assert "](plots/plot.png)" in text


def test_a_later_report_leaves_no_mask_of_the_earlier_one(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A mask that an earlier search proved would look like the mask of the report beside it. In a directory
    without a report, the mask is the user's."""
    asked = study(Classifier.load(tiny_checkpoint), tmp_path)
    mask = tmp_path / "mask.json"
    mask.write_text("mine")
    nothing = Result("search", {}, "Nothing is chosen.", files={"mask.json": None})
    report_files.write(asked, nothing)
    assert mask.read_text() == "mine"
    report_files.write(asked, replace(nothing, files={"mask.json": "{}"}))
    assert mask.read_text() == "{}"
    report_files.write(asked, nothing)
    assert not mask.exists()


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
