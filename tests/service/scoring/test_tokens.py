"""Long texts are tokenised in portions, which changes no answer."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from models import Classifier
from service.scoring import tokens
from tests.service.experimenting import eventually
from tests.service.in_process import QUERY, TITLES, Service, serve


async def test_texts_tokenised_in_turns_give_what_they_give_at_once(
    service: Service, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PORTION_CHARS", 300)
    titles = [f"steel bracket {number} " + "of wood and steel " * (number % 40) for number in range(200)]
    answer = await service.post("/v1/score", query=QUERY, titles=[*titles, *titles[:10]])
    expected = clf.score([(QUERY, title) for title in [*titles, *titles[:10]]])
    np.testing.assert_allclose(
        [row["score"] for row in answer["results"]], [float(score) for score in expected.score], atol=1e-4
    )


async def test_text_that_would_wait_too_long_is_refused_before_it_is_read(tiny_checkpoint: Path) -> None:
    release = threading.Event()

    def occupies() -> Generator[None, None, None]:
        release.wait(60)
        yield

    async with serve(tiny_checkpoint, max_queue_s=0.01) as service:
        occupied = asyncio.create_task(service.replica._encoder.read(occupies(), 1_000_000))
        await asyncio.sleep(0)
        await eventually(lambda: service.metric("headroom_unread_characters") == 1_000_000)

        many = {"query": QUERY, "titles": [f"{number} " * 300 for number in range(30)]}
        answer = await service.http.post("/v1/score", json=many)
        assert (answer.status_code, answer.json()["error"]["type"]) == (429, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        assert service.metric('headroom_shed_total{reason="queue_full"}') == 1
        refused = await service.http.post(
            "/v1/condense", json={"query": "angle bracket", "titles": many["titles"], "max_words": 1}
        )
        assert refused.status_code == 429
        await service.post("/v1/score", query=QUERY, titles=TITLES)

        release.set()
        await occupied
        assert len((await service.post("/v1/score", **many))["results"]) == 30


async def test_a_long_text_is_read_as_far_as_the_window_reaches(service: Service) -> None:
    """A title of a million Chinese characters took seconds, in which no other long text was read."""
    began = time.process_time()
    answer = await service.post("/v1/score", query=QUERY, titles=["中" * 1_000_000, "中" * 100])
    assert time.process_time() - began < 1.0
    long, short = answer["results"]
    assert (long["truncated"], long["tokens"]) == (True, short["tokens"])
    assert long["score"] == pytest.approx(short["score"], abs=1e-5)
    assert long["unknown_tokens"] == short["unknown_tokens"] == answer["results"][0]["tokens"] - 5
