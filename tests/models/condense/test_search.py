"""The search for words, with a judge whose opinion is planted."""

import math
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from headroom.models.arrays import Floats
from headroom.models.condense.search import (
    METHODS,
    Condensed,
    Method,
    Task,
    jensen_shannon,
    largest_cost,
    search,
)
from headroom.models.condense.words import Word, join, read_words

WORTH = {"duck": 3.0, "gangnam": 2.0, "party": 1.0}
TITLES = 4
QUERY = "where is the best duck for a party in gangnam?"


def judge(queries: list[str]) -> Floats:
    """Two grades per title; each word of worth moves every title, one more than the other."""
    rows = []
    for query in queries:
        worth = sum(WORTH.get(word.strip("?"), 0.0) for word in set(query.split()))
        logits = np.array([worth * (title - 1) / 2 for title in range(TITLES)])
        right = 1 / (1 + np.exp(-logits))
        rows.append(np.stack([1 - right, right], axis=1))
    return np.array(rows)


def run(
    task: Task, repeats: list[int] | None = None, titles: list[int] | None = None
) -> tuple[Condensed, list[list[str]]]:
    steps = search(task, repeats)
    asked = [next(steps)]
    while True:
        try:
            judged = judge(asked[-1])
            asked.append(steps.send(judged if titles is None else judged[:, titles]))
        except StopIteration as end:
            return end.value, asked


def task(query: str = QUERY, **options: object) -> Task:
    return Task(query, read_words(query), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", METHODS)
def test_a_title_that_comes_several_times_counts_as_often(method: Method) -> None:
    counted, asked = run(task(method=method), [1, 3, 1, 2])
    copied, also_asked = run(task(method=method), titles=[0, 1, 1, 1, 2, 3, 3])
    assert asked == also_asked
    assert (counted.query, counted.kept) == (copied.query, copied.kept)
    assert counted.importance == pytest.approx(copied.importance)
    assert [one.loss for one in counted.path] == pytest.approx([one.loss for one in copied.path])


def test_greedy_leaves_out_what_is_worth_nothing_first() -> None:
    result, asked = run(task(max_words=3))

    assert result.query == "duck party gangnam"
    assert result.loss == pytest.approx(0)
    assert [word.form for word, kept in zip(read_words(QUERY), result.kept, strict=True) if kept] == [
        "duck",
        "party",
        "gangnam",
    ]
    assert [length.words for length in result.path] == list(range(10, 0, -1))
    assert [length.query for length in result.path][-2:] == ["duck gangnam", "duck"]
    assert all(length.measured for length in result.path)
    importance = dict(zip([word.form for word in read_words(QUERY)], result.importance, strict=True))
    assert importance["duck"] > importance["gangnam"] > importance["party"] > importance["the"] == 0
    assert [len(queries) for queries in asked][:2] == [
        12,
        6,
    ]  # typed, all words, ten deletions; then 2/3 of 9


def test_a_bound_on_the_loss_gives_the_shortest_query_within_it() -> None:
    everything, _ = run(task(max_words=1))
    losses = {length.words: length.loss for length in everything.path}
    between = (losses[1] + losses[2]) / 2

    assert run(task(max_loss=between))[0].query == "duck gangnam"
    assert run(task(max_loss=0.0))[0].query == "duck party gangnam"
    assert run(task(max_loss=between, max_words=1))[0].query == "duck"
    assert run(task(max_loss=losses[2] / 2, max_words=5))[0].query == "duck party gangnam"


def test_leave_one_out_estimates_the_lengths_that_it_did_not_measure() -> None:
    result, asked = run(task(method="leave_one_out", max_words=2))

    assert result.query == "duck gangnam"
    assert sum(map(len, asked)) == 12 == 1 + 1 + 10
    measured = {length.words: length.measured for length in result.path}
    assert [words for words, is_measured in measured.items() if is_measured] == [10, 9]
    greedy, _ = run(task(max_words=2))
    exact = [length.loss for length in greedy.path]
    # Here the words do act independently, in log-odds, which is what the estimate assumes.
    assert [length.loss for length in result.path] == pytest.approx(exact, abs=0.02)


def test_leave_one_out_writes_each_deletion_a_few_times_however_many_words_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long text would otherwise hold up everybody's condensing for minutes."""
    written = 0

    def counting(words: Iterable[Word]) -> str:
        nonlocal written
        written += 1
        return join(words)

    monkeypatch.setattr("headroom.models.condense.search.join", counting)
    count = 700
    steps = search(task(" ".join(map(str, range(count))), method="leave_one_out", max_words=9))
    queries = next(steps)
    with pytest.raises(StopIteration) as end:
        steps.send(np.full((len(queries), TITLES, 2), 0.5))
    result: Condensed = end.value.value
    assert len(result.path) == count
    assert not any(length.loss for length in result.path)
    assert written < 5 * count


def test_a_query_that_loses_by_its_punctuation_already_stays_as_it_was_typed() -> None:
    result, _ = run(task("duck! party!", max_loss=0.0))  # the judge does not know "duck!"
    assert (result.query, result.loss, result.kept) == ("duck! party!", 0.0, (True, True))
    assert result.path[0].loss > 0


@pytest.mark.parametrize("method", METHODS)
def test_one_word_stays(method: str) -> None:
    result, asked = run(task("duck", method=method))
    assert (result.query, result.kept, result.importance) == ("duck", (True,), (1.0,))
    assert [length.words for length in result.path] == [1]
    assert asked == [["duck"]]
    assert result.note is not None
    assert "one word" in result.note


def test_the_cost_is_bounded() -> None:
    for words in range(1, 40):
        query = " ".join(f"word{number}" for number in range(words))
        for method in ("greedy", "leave_one_out"):
            _, asked = run(task(query, method=method, max_loss=0.0))
            assert sum(map(len, asked)) <= largest_cost(words, method)  # type: ignore[arg-type]
    query = " ".join(f"word{number}" for number in range(15))
    assert sum(map(len, run(task(query))[1])) == 90
    assert sum(map(len, run(task(query, method="leave_one_out", max_words=4))[1])) == 16


def test_the_distance_is_scipys() -> None:
    rng = np.random.default_rng(0)
    left, right = rng.dirichlet(np.full(5, 0.3), 50), rng.dirichlet(np.full(5, 0.3), 50)
    left[0], right[0] = [1, 0, 0, 0, 0], [0, 0, 0, 0, 1]
    left[1] = right[1]
    expected = [jensenshannon(a, b, base=2) for a, b in zip(left, right, strict=True)]
    np.testing.assert_allclose(jensen_shannon(left, right), expected, atol=1e-7)
    assert jensen_shannon(left, right)[0] == 1
    assert math.isclose(jensen_shannon(left, right)[1], 0)
