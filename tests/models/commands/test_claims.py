"""What the commands call shown: of what loses nothing, of what loses 0.05, and of a model at random."""

import json
from pathlib import Path
from typing import Any

import pytest

from headroom.models.quality.labelled import LabelledPair
from tests.models.study.planted import WORDS, planted_pairs, write_planted
from tests.prompt import Run, write_labelled

pytestmark = pytest.mark.more

DEVICE = ("--device", "cpu", "--dtype", "float32")


def write(file: Path, pairs: list[LabelledPair]) -> str:
    return str(write_labelled(file, [(pair.query, pair.title, pair.grade) for pair in pairs]))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model whose grades rest on two heads, and judged pairs: a few to search on, others held out."""
    directory = tmp_path_factory.mktemp("claims")
    return {
        "model": str(write_planted(directory / "model")),
        "same": str(write_planted(directory / "same", seed=1)),
        "worse": str(write_planted(directory / "worse", unknown_words=1)),
        "random": str(write_planted(directory / "random", unknown_words=len(WORDS))),
        "unjudged": write(directory / "unjudged.csv", planted_pairs(40, 4, seed=2)),
        "data": write(directory / "data.csv", planted_pairs(10, 6)),
        "holdout": write(directory / "holdout.csv", planted_pairs(250, 2, seed=1)),
    }


def search(run: Run, files: dict[str, str], out: Path) -> dict[str, Any]:
    given = ("--model", files["model"], "--data", files["data"], "--holdout", files["holdout"])
    report: dict[str, Any] = json.loads(
        run("study", "search", "--quick", *given, *DEVICE, "--out", str(out), "--json").out
    )
    return report


def difference(run: Run, files: dict[str, str], mask: str) -> dict[str, Any]:
    given = ("--model", files["model"], "--data", files["holdout"], "--mask", mask)
    found: dict[str, Any] = json.loads(run("evaluate", *given, *DEVICE, "--json").out)["differences"][0]
    return found


def test_evaluate_says_of_each_mask_what_a_quick_search_said(
    run: Run, files: dict[str, str], tmp_path: Path
) -> None:
    """A quick search judged fewer titles by a milder metric, and showed what the same queries did not."""
    report = search(run, files, tmp_path / "search")
    assert report["holdout"]["pairs"] == 500
    for point in (report["path"][0], report["path"][-1]):
        found = difference(run, files, point["spec"])
        assert found["shown"] == point["holdout"]["passed"]
        assert found["queries_that_count"] == point["holdout"]["queries_that_count"] < 250
        for metric, loss in point["holdout"]["loss"].items():
            assert found["change"][metric]["value"] == pytest.approx(loss["delta"], abs=1e-9)
            assert found["margin_excluded"][metric] == (loss["bound"] > -0.02)


def verdict_of(metrics: dict[str, Any]) -> str:
    """The verdict of a student, which stands first in what people read."""
    verdict: str = metrics["against_teacher"]["verdict"]
    assert metrics["against_teacher"]["passed"] == ("shown to lose less than 0.02" in verdict)
    return verdict


@pytest.mark.parametrize(
    ("teacher", "student", "begin", "end"),
    [
        ("model", "same", "The student changes accuracy by less ", "shown to lose less than 0.02."),
        ("model", "worse", "The student loses 0.0", "it loses more than 0.02."),
        ("random", "same", "The student gains 0.", "not shown to rank better than a random order"),
    ],
)
def test_what_a_student_loses_to_its_teacher_is_said_as_evaluate_says_it(
    run: Run, files: dict[str, str], tmp_path: Path, teacher: str, student: str, begin: str, end: str
) -> None:
    models = ("--teacher", files[teacher], "--model", files[student])
    lessons = ("--data", files["unjudged"], "--test", files["holdout"], "--steps", "1", "--rate", "1e-8")
    out = str(tmp_path / "student")
    metrics = json.loads(run("distil", *models, *lessons, "--out", out, "--device", "cpu", "--json").out)
    verdict = verdict_of(metrics)
    assert verdict.startswith(begin), verdict
    assert end in verdict, verdict
    given = ("--model", files[teacher], "--model", out, "--data", files["holdout"], "--device", "cpu")
    found = json.loads(run("evaluate", *given, "--json").out)["differences"][0]
    assert found["shown"] == metrics["against_teacher"]["passed"]
    assert found["verdict"].partition(" ")[2] == verdict.partition("student ")[2]
