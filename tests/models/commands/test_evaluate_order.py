"""`headroom evaluate` beside the order that the titles had, as typed at a prompt and from Python."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from headroom import Classifier, evaluate
from tests.prompt import Run

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def frame(clf: Classifier) -> pd.DataFrame:
    """40 queries of 5 titles with the model's own grades; the order is best first for every other query, and
    worst first for the rest."""
    rng = np.random.default_rng(0)
    words = "lamp cable case screw deck towel angle bracket mouse keyboard".split()
    rows = []
    for number in range(40):
        query = f"{words[number % 10]} {number}" if number % 2 else words[number % 10] + str(number)
        titles = [" ".join(rng.choice(words, 3)) + f" {index}" for index in range(5)]
        ranks = clf.score(query, titles).raw_score.argsort().argsort()
        positions = 5 - ranks if number % 2 else ranks + 1
        rows += [
            (query, title, int(grade), int(position), f"shop {number % 2}")
            for title, grade, position in zip(titles, np.minimum(ranks, 4), positions, strict=True)
        ]
    return pd.DataFrame(rows, columns=["query", "title", "grade", "position", "shop"])


def test_the_first_line_says_who_is_better_and_the_classes_say_where(
    run: Run, options: list[str], frame: pd.DataFrame, clf: Classifier, tmp_path: Path
) -> None:
    file = tmp_path / "judged.csv"
    frame.to_csv(file, index=False)
    command = ["evaluate", "--data", str(file), "--position", "position", *options]
    text = run(*command, "--by", "shop", "--out", str(tmp_path / "report")).out
    assert text.startswith("full ranks better than the order of the column position: NDCG@10 +")
    assert "by shop:" in text
    assert "Compared with the order that you have" in (tmp_path / "report" / "report.html").read_text()

    order = json.loads(run(*command, "--by", "shop", "--json").out)["baselines"]["order"]
    assert order["verdict"] == "better"
    assert set(order) >= {"metrics", "model_minus", "verdict", "classes"}
    best, worst = sorted(order["classes"], key=lambda each: each["value"])
    assert (best["name"], best["queries"], best["value"], best["low"], best["high"]) == (
        "shop 1",
        20,
        0,
        0,
        0,
    )
    assert worst["name"] == "shop 0"
    assert worst["low"] > 0
    assert worst["value"] >= worst["pooled"] > best["pooled"]

    content = evaluate(clf, frame, position="position", by="shop").content
    assert content["baselines"]["order"]["classes"][0]["pooled"] == pytest.approx(
        order["classes"][0]["pooled"]
    )


def test_harm_in_one_class_is_in_the_first_line(frame: pd.DataFrame, clf: Classifier) -> None:
    turned = frame.assign(grade=np.where(frame["shop"] == "shop 1", 4 - frame["grade"], frame["grade"]))
    turned["position"] = np.where(frame["shop"] == "shop 1", 6 - frame["position"], frame["position"])
    line = repr(evaluate(clf, turned, position="position", by="shop")).splitlines()[0]
    assert "; it harms by shop: shop 1 −0." in line
    assert line.endswith("50% of the queries")


def test_rows_sorted_by_grade_are_no_order_of_results(frame: pd.DataFrame, clf: Classifier) -> None:
    by_grade = frame.sort_values("grade", ascending=False, kind="stable")
    line = repr(evaluate(clf, by_grade)).splitlines()[0]
    assert line.startswith("The rows of each query stand in the order of their grades")


@pytest.mark.more
def test_the_page_shows_what_the_command_prints(run: Run) -> None:
    """But for the digits, which depend on the processor's number format."""
    page = (ROOT / "docs" / "does-it-pay.md").read_text("utf-8")
    blocks = re.findall(r"```console\n\$ headroom (.*?)\n(.*?)```", page, re.DOTALL)
    assert [command.split()[0] for command, _ in blocks] == ["evaluate", "experiment"]
    for command, shown in blocks:
        output = run(*command.split()).out
        lines = [words(line) for line in output.splitlines()]
        for line in shown.splitlines():
            assert line == "…" or words(line) in lines, line


def words(line: str) -> str:
    return re.sub(r"[+−]?\d[\d.,]*", "0", " ".join(line.split()))
