"""A model beside the order that the titles had: what is claimed holds on simulated files."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from headroom import ModelError
from headroom.models.arrays import Floats
from headroom.models.files import Json
from headroom.models.quality.bootstrap import Interval, resample
from headroom.models.quality.classes import by_class, classes_of, shrunk
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.judgments import Columns
from headroom.models.quality.labelled import LabelledPair, read_labelled
from headroom.models.quality.order import (
    GivenOrder,
    against_order,
    positioned,
    ranking_of,
    verdict_of,
)

TITLES = 8
FILES = 400


def judged(grades: np.ndarray, by: list[str] | None = None) -> list[LabelledPair]:
    """Return the pairs of queries, (queries, titles) grades."""
    return [
        LabelledPair(f"q{query}", f"t{title}", int(grade), by=None if by is None else by[query])
        for query, of_query in enumerate(grades)
        for title, grade in enumerate(of_query)
    ]


def noisy(rng: np.random.Generator, grades: np.ndarray, noise: float | Floats) -> Floats:
    """Return relevances that follow the grades with this much noise, (pairs,)."""
    return (grades + rng.normal(size=grades.shape) * noise).ravel()


def compared(pairs: list[LabelledPair], ranking: Floats, resamples: int = 200) -> Json:
    model = Evaluation(pairs, ranking)
    counts = resample(model.clusters, resamples, 0)
    return against_order(pairs, model, model.draws(counts), counts, GivenOrder())


def in_order(rng: np.random.Generator, grades: np.ndarray, noise: float) -> np.ndarray:
    """Return each query's grades as an order of results with this much noise has them."""
    best_first = np.argsort(-noisy(rng, grades, noise).reshape(grades.shape), axis=1)
    return np.take_along_axis(grades, best_first, axis=1)


def by_chance(count: int, rate: float, files: int = FILES) -> bool:
    """Return whether so many of the files are no sign of a higher rate than this."""
    return bool(binomtest(count, files, rate, alternative="greater").pvalue > 0.01)


def test_the_same_lists_are_no_change_and_a_better_or_a_worse_model_is_shown() -> None:
    rng = np.random.default_rng(2)
    grades = in_order(rng, rng.integers(0, 4, (120, TITLES)), 1.5)
    pairs = judged(grades)
    same = compared(pairs, ranking_of(pairs))
    change = same["model_minus"]["ndcg10"]
    assert (same["verdict"], change.value, change.low, change.high) == ("not_shown", 0, 0, 0)
    assert compared(pairs, noisy(rng, grades, 0.3))["verdict"] == "better"
    assert compared(pairs, noisy(rng, grades, 9.0))["verdict"] == "worse"
    by = ["short" if query % 3 else "long" for query in range(len(grades))]
    noise = np.array([0.3 if name == "short" else 9.0 for name in by])[:, None]
    model = Evaluation(pairs, noisy(rng, grades, noise))
    short, long = by_class(model, Evaluation(pairs, ranking_of(pairs)), by, resamples=200)
    assert (short["name"], short["queries"], long["name"], long["queries"]) == ("short", 80, "long", 40)
    assert short["low"] > 0 > long["high"]


def test_better_or_worse_is_said_only_if_the_interval_shows_it() -> None:
    """How often an interval is wrong is measured in test_bootstrap.py."""
    assert verdict_of(Interval(0.1, -0.01, 0.2)) == "not_shown"
    assert verdict_of(Interval(-0.1, -0.2, 0.01)) == "not_shown"
    assert verdict_of(Interval(0.1, 0.01, 0.2)) == "better"
    assert verdict_of(Interval(-0.1, -0.2, -0.01)) == "worse"


@pytest.mark.more
def test_a_loss_in_one_class_of_five_is_named_and_no_other_class_is() -> None:
    rng = np.random.default_rng(3)
    queries = 200
    by = [f"class {query % 5}" for query in range(queries)]
    noise = np.where(np.arange(queries) % 5 == 3, 6.0, 1.5)[:, None]
    named = 0
    others = 0
    for _ in range(FILES):
        grades = in_order(rng, rng.integers(0, 4, (queries, TITLES)), 1.5)
        pairs = judged(grades, by)
        model = Evaluation(pairs, noisy(rng, grades, noise))
        order = Evaluation(pairs, ranking_of(pairs))
        classes = by_class(model, order, classes_of(pairs, "by"), resamples=500)
        harmed = {each["name"] for each in classes if each["high"] < 0}
        named += "class 3" in harmed
        others += bool(harmed - {"class 3"})
    assert named >= 0.8 * FILES
    assert by_chance(others, 0.025)  # half of 5 %, because a class may also seem better


def test_partial_pooling_is_dersimonian_and_laird_s() -> None:
    from statsmodels.stats.meta_analysis import combine_effects

    rng = np.random.default_rng(4)
    groups = [rng.normal(centre, 1.0, size) for centre, size in ((0.5, 9), (-0.5, 40), (0.1, 120), (0.0, 12))]
    means = np.array([group.mean() for group in groups])
    within = sum(((group - group.mean()) ** 2).sum() for group in groups) / (sum(map(len, groups)) - 4)
    variances = within / np.array([len(group) for group in groups])
    tau2 = combine_effects(means, variances, method_re="dl").tau2
    centre = np.average(means, weights=1 / (tau2 + variances))
    expected = centre + tau2 / (tau2 + variances) * (means - centre)
    np.testing.assert_allclose(shrunk(groups), expected)
    assert tau2 > 0
    assert shrunk([np.array([1.0, 1.0]), np.array([0.0, 0.0])]) == [1.0, 0.0]


def test_classes_that_need_no_column() -> None:
    texts = [
        ("lamp", "Lamp"),
        ("red lamp", "a lamp"),
        ("red lamp", "Lamps, red"),
        ("a b c d e", "x"),
        ("강남역", "x"),
    ]
    texts += [("ランプ 赤", "x"), ("лампа red", "x"), ("12", "x")]
    pairs = [LabelledPair(query, title, 0) for query, title in texts]
    words = ["1 word", "2 words", "4 words or more", "1 word", "2 words", "2 words", "1 word"]
    assert classes_of(pairs, "words") == words
    scripts = ["Latin", "Latin", "Latin", "Hangul", "Japanese", "several scripts", "no letters"]
    assert classes_of(pairs, "script") == scripts
    held = [name.startswith("some") for name in classes_of(pairs, "all-words-in-a-title")]
    assert held == [True, True, False, False, False, False, False]
    two = [LabelledPair("lamp", title, 0, by=title) for title in "ab"]
    with pytest.raises(ModelError, match="shop: the query 'lamp' has 'a' in one row and 'b' in another"):
        classes_of(two, "shop")


JUDGED = "query,docid,title,grade,position\nlamp,1,Lamp,2,3\nlamp,2,Desk,0,1\nlamp,3,Red lamp,1,2\n"
RUN = "lamp Q0 3 1 0.9 tag\nlamp Q0 1 2 0.2 tag\nlamp Q0 2 3 0.1 tag\n"
SNAPSHOT = (
    "Snapshot Name,Snapshot Time,Case ID,Query Text,Doc ID,Doc Position\n"
    "a,b,1,lamp,3,1\na,b,1,lamp,2,3\na,b,1,lamp,1,2\n"
)
UBI = '{"query_id": "1", "user_query": "lamp", "query_response_hit_ids": ["3", "1", "9", "2"]}\n'


def read_positioned(directory: Path, columns: Columns) -> list[LabelledPair]:
    file = directory / "judged.csv"
    return positioned(read_labelled(file, grades=3, columns=columns), columns, file.name)


@pytest.mark.parametrize(
    ("name", "text"), [("run.txt", RUN), ("snapshot.csv", SNAPSHOT), ("ubi_queries.jsonl", UBI), ("", "")]
)
def test_orders_of_search_engines(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "judged.csv").write_text(JUDGED)
    columns = Columns(position="position")
    if name:
        (tmp_path / name).write_text(text)
        columns = Columns(order=str(tmp_path / name))
    pairs = read_positioned(tmp_path, columns)
    order = [pairs[index].title for index in np.argsort(-ranking_of(pairs))]
    assert order == (["Red lamp", "Lamp", "Desk"] if name else ["Desk", "Red lamp", "Lamp"])


@pytest.mark.parametrize(
    ("change", "column", "message"),
    [
        (("", ""), "rank", r"line 1: there is no column rank; found 'query', 'docid'"),
        ((",1,2", ",1,3"), "position", "position 3 is there twice for the query 'lamp'; each title"),
        (
            (",0,1", ",0,first"),
            "position",
            "line 3: position 'first' is not a position, a whole number from 1",
        ),
    ],
)
def test_wrong_positions_are_refused_in_a_sentence(
    tmp_path: Path, change: tuple[str, str], column: str, message: str
) -> None:
    (tmp_path / "judged.csv").write_text(JUDGED.replace(*change) if change[0] else JUDGED)
    with pytest.raises(ModelError, match=message):
        read_positioned(tmp_path, Columns(position=column))


def test_what_an_order_does_not_hold_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "judged.csv").write_text(JUDGED)
    (tmp_path / "run").write_text(RUN.replace("lamp Q0 2 3 0.1 tag\n", ""))
    columns = Columns(order=str(tmp_path / "run"))
    pairs = read_positioned(tmp_path, columns)
    assert [pair.title for pair in pairs] == ["Lamp", "Red lamp"]
    assert "judged.csv: 1 pairs are not in" in capsys.readouterr().err
    (tmp_path / "run").write_text("7 Q0 3 1 0.9 tag\n")
    with pytest.raises(ModelError, match=r"run has none of the pairs of judged\.csv: queries and ids must"):
        read_positioned(tmp_path, columns)
