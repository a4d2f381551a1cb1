"""POST /v1/condense on a real (small) network."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from headroom.models.condense import search, words
from headroom.models.condense.local import condense
from headroom.models.condense.search import METHODS, Method, Task
from headroom.models.condense.words import read_words
from tests.service.in_process import TITLES, Service, in_session, serve

QUERY = "where is a steel angle bracket for the deck?"


def locally(clf: Classifier, mask: str = "none", *advance: Any, **options: Any) -> Any:
    task = Task(QUERY, read_words(QUERY), **options)
    return condense(clf, task, TITLES, HeadMask.parse(mask, layers=3, heads=4), *advance)


@pytest.mark.parametrize("method", METHODS)
async def test_the_answer_is_that_of_the_command(service: Service, clf: Classifier, method: Method) -> None:
    answer = await service.post(
        "/v1/condense", query=QUERY, titles=TITLES, max_words=3, method=method, head_mask="1.0-2"
    )
    judged: list[int] = []
    expected = locally(clf, "1.0-2", judged.append, method=method, max_words=3)

    assert answer["condensed"] == expected.query
    assert answer["loss"] == pytest.approx(expected.loss, abs=1e-4)
    assert [word["word"] for word in answer["words"]] == QUERY.split()
    assert [word["form"] for word in answer["words"]] == [*QUERY.split()[:-1], "deck"]
    assert [word["kept"] for word in answer["words"]] == list(expected.kept)
    importance = [word["importance"] for word in answer["words"]]
    np.testing.assert_allclose(importance, expected.importance, atol=1e-4)
    assert [step["words"] for step in answer["path"]] == list(range(9, 0, -1))
    assert [step["query"] for step in answer["path"]] == [length.query for length in expected.path]
    losses = [length.loss for length in expected.path]
    np.testing.assert_allclose([step["loss"] for step in answer["path"]], losses, atol=1e-4)
    assert answer["head_mask"]["spec"] == "1.0-2"
    assert (answer["variant"], answer["method"]) == ("full", method)
    assert answer["usage"]["pairs"] == sum(judged) * len(TITLES)
    assert set(answer["timing_ms"]) == {"tokenize", "queue", "inference", "total"}
    assert service.metric('headroom_pairs_total{arm="",variant="custom"}') == answer["usage"]["pairs"]


@in_session
async def test_variants_repeated_titles_and_a_bound(shared: Service) -> None:
    body = {"query": QUERY, "titles": [*TITLES, TITLES[0]], "max_loss": 0.0}
    answer = await shared.post("/v1/condense", **body, variant="cut")
    assert answer["loss"] <= 0
    assert answer["variant"] == "cut"
    assert answer["usage"]["pairs"] % len(TITLES) == 0  # a title that comes twice is scored once


@in_session
async def test_one_word_stays_and_a_note_says_why(shared: Service) -> None:
    one = await shared.post("/v1/condense", query="오리고기맛집", titles=TITLES)
    assert (one["condensed"], one["loss"]) == ("오리고기맛집", 0.0)
    assert "one word" in one["note"]


@in_session
@pytest.mark.parametrize("method", METHODS)
async def test_no_text_of_a_request_is_written_or_read_on_the_event_loop(
    shared: Service, monkeypatch: pytest.MonkeyPatch, method: Method
) -> None:
    """There, a long query would hold up every other request."""
    tokenizer = shared.replica.engine.classifiers[""].tokenizer
    threads: dict[str, set[int]] = {}

    def noting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            threads.setdefault(name, set()).add(threading.get_ident())
            return call(*arguments)

        return noted

    monkeypatch.setattr(search, "join", noting("join", search.join))
    monkeypatch.setattr(words, "_bare", noting("_bare", words._bare))
    monkeypatch.setattr(tokenizer, "encode_texts", noting("encode_texts", tokenizer.encode_texts))
    await shared.post("/v1/condense", query=QUERY, titles=TITLES, method=method)
    assert threads.keys() == {"_bare", "join", "encode_texts"}
    assert not any(threading.get_ident() in idents for idents in threads.values())


async def test_steps_are_cut_to_what_one_request_may_have(tiny_checkpoint: Path, clf: Classifier) -> None:
    async with serve(tiny_checkpoint, max_compare_rows=7) as service:
        answer = await service.post("/v1/condense", query=QUERY, titles=TITLES, max_words=3)
        assert answer["condensed"] == locally(clf, max_words=3).query
