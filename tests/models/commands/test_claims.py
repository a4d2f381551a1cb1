"""What the commands call shown: of a mask that loses nothing, of one that loses, and of a model at random."""

import json
from pathlib import Path
from typing import Any

import pytest

from headroom.models.quality.labelled import LabelledPair
from tests.models.study.planted import planted_pairs, write_planted
from tests.prompt import Run

DEVICE = ("--device", "cpu", "--dtype", "float32")


def write(file: Path, pairs: list[LabelledPair]) -> str:
    rows = [json.dumps({"query": one.query, "title": one.title, "grade": one.grade}) for one in pairs]
    file.write_text("\n".join(rows))
    return str(file)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model whose grades rest on two heads, and judged pairs: a few to search on, others held out."""
    directory = tmp_path_factory.mktemp("claims")
    return {
        "model": str(write_planted(directory / "model")),
        "data": write(directory / "data.jsonl", planted_pairs(10, 6)),
        "holdout": write(directory / "holdout.jsonl", planted_pairs(250, 2, seed=1)),
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


def test_a_mask_that_loses_is_said_to_lose_it(run: Run, files: dict[str, str]) -> None:
    found = difference(run, files, "0.0")
    assert not found["shown"]
    assert "loses 0." in found["verdict"]
    assert found["verdict"].endswith("it loses more than 0.02.")


def test_nothing_is_shown_of_a_model_at_random(run: Run, files: dict[str, str], tmp_path: Path) -> None:
    """A random network kept 1 of 24 heads, "shown to lose less than 0.05"."""
    at_random = files | {"model": str(tmp_path / "random")}
    run("prune", "--model", files["model"], "--mask", "0.0,1.0", "--out", at_random["model"])
    report = search(run, at_random, tmp_path / "search")
    assert report["chosen"] is None
    assert "not shown to rank better than a random order" in report["verdict"]
    given = ("--model", at_random["model"], "--data", files["holdout"], "--mask", "2.*")
    text = run("evaluate", *given, *DEVICE).out
    assert "full is not shown to rank better than a random order" in " ".join(text.split())
    assert "shown to lose less" not in text
