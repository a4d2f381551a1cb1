"""Long texts are tokenised in portions and in turns, which changes no answer; too much text is refused."""

import asyncio
import threading
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier
from headroom.service.errors import Draining, QueueFull
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.scoring import tokens
from headroom.service.scoring.tokens import CHARS_PER_SECOND, Encoder
from tests.service.experimenting import config, eventually
from tests.service.in_process import QUERY, TITLES, Service, in_session, serve


@in_session
async def test_texts_tokenised_in_turns_give_what_they_give_at_once(
    shared: Service, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "PORTION_CHARS", 300)
    titles = [f"steel bracket {number} " + "of wood and steel " * (number % 40) for number in range(200)]
    answer = await shared.post("/v1/score", query=QUERY, titles=[*titles, *titles[:10]])
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


class Gate:
    """Work whose first step waits until the gate opens."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.open = threading.Event()

    def steps(self, name: str, log: list[str], count: int) -> Generator[None, None, str]:
        self.begun.set()
        assert self.open.wait(60)
        result = yield from steps(name, log, count)
        return result

    async def is_begun(self) -> None:
        while not self.begun.is_set():
            await asyncio.sleep(0)


def steps(name: str, log: list[str], count: int) -> Generator[None, None, str]:
    for _ in range(count):
        log.append(name)
        yield
    return name


@pytest.fixture
def one_step_is_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "TURN_S", 0.0)


@pytest.mark.usefixtures("one_step_is_a_turn")
async def test_a_short_request_overtakes_a_long_one() -> None:
    thread, gate, log = Encoder(), Gate(), list[str]()
    long = asyncio.create_task(thread.read(gate.steps("long", log, 50), 50_000))
    await gate.is_begun()
    short = asyncio.create_task(thread.read(steps("short", log, 2), 2_000))
    await asyncio.sleep(0)
    assert thread.waiting_chars == 52_000
    gate.open.set()

    assert (await short, await long) == ("short", "long")
    assert log.index("short") <= 2
    assert len(log) - log[::-1].index("short") < 10  # both of its turns came among the first
    assert thread.waiting_chars == 0
    thread.close()


@pytest.mark.usefixtures("one_step_is_a_turn")
async def test_requests_that_end_early_leave_the_thread_to_the_others() -> None:
    class Panic(BaseException):
        """As a panic of a library in Rust."""

    def broken() -> Generator[None, None, str]:
        yield
        raise Panic

    thread, gate, log = Encoder(), Gate(), list[str]()
    first = asyncio.create_task(thread.read(gate.steps("first", log, 9), 1_000))
    await gate.is_begun()
    others = [asyncio.create_task(thread.read(steps(f"{i}", log, 9), 1_000)) for i in range(4)]
    failing = asyncio.create_task(thread.read(broken(), 1_000))
    await asyncio.sleep(0)
    first.cancel()
    others[1].cancel()
    gate.open.set()

    results = await asyncio.gather(first, *others, failing, return_exceptions=True)
    assert [type(result) for result in results] == [
        asyncio.CancelledError,
        str,
        asyncio.CancelledError,
        str,
        str,
        Panic,
    ]
    assert thread.waiting_chars == 0
    assert await thread.read(steps("next", log, 1), 1_000) == "next"
    thread.close()


@pytest.mark.usefixtures("one_step_is_a_turn")
async def test_what_is_not_read_when_the_replica_ends_is_refused_as_by_a_stop() -> None:
    thread, gate, log = Encoder(), Gate(), list[str]()
    first = asyncio.create_task(thread.read(gate.steps("first", log, 1), 1_000))
    await gate.is_begun()
    second = asyncio.create_task(thread.read(steps("second", log, 1), 1_000))
    await asyncio.sleep(0)
    thread.close()
    gate.open.set()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [Draining, Draining]
    assert (log, thread.waiting_chars) == (["first"], 0)


async def test_a_refused_text_counts_as_work_that_was_asked_for() -> None:
    asked_s: list[float] = []
    gate = Gate()
    thread = Encoder(0.5, asked_s.append)
    first = asyncio.create_task(thread.read(gate.steps("first", [], 1), 1_000_000))
    await gate.is_begun()
    with pytest.raises(QueueFull):
        await thread.read(steps("second", [], 1), 500_000)
    assert asked_s == [500_000 / CHARS_PER_SECOND]
    gate.open.set()
    assert await first == "first"
    thread.close()


async def test_a_shadow_request_that_finds_too_much_text_waiting_is_dropped_and_has_not_failed(
    tiny_checkpoint: Path, database_url: str
) -> None:
    gate = Gate()
    async with serve(
        tiny_checkpoint, config(shadow=1.0), database_url=database_url, max_queue_s=0.01
    ) as service:
        replica = service.replica
        await eventually(lambda: replica.live.ledger.experiments["prune20"].status == "running")
        occupied = asyncio.create_task(replica._encoder.read(gate.steps("all", [], 1), 1_000_000))
        await gate.is_begun()
        titles = [f"{number} " * 300 for number in range(30)]
        replica._treatment._shadow.offer(replica.catalog, ScoreRequest(query=QUERY, titles=titles))
        counted = 'headroom_shadow_requests_total{experiment="prune20",result='
        await eventually(lambda: service.metric(f'{counted}"dropped"}}') == 1)
        assert service.metric(f'{counted}"failed"}}') == 0
        gate.open.set()
        await occupied
