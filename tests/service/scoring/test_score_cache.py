"""The score cache: it changes how much is computed, and nothing that a caller can see."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import pytest_asyncio

from headroom import Classifier, HeadMask
from headroom.service.config.settings import LiveConfig
from headroom.service.engine.threads import Lane, PairRow, row_scores
from headroom.service.observe.metrics import Metrics
from headroom.service.scoring.cache import ScoreCache
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import config as experiment_config
from tests.service.in_process import CONFIG, QUERY, TITLES, Service, check_scores, pairs, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one service for most of the tests

HITS, MISSES = 'headroom_cache_total{result="hit"}', 'headroom_cache_total{result="miss"}'


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def caching(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, CONFIG, score_cache_size=10_000) as running:
        yield running


class Counting:
    """How the counts of a service change within a block."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __enter__(self) -> Self:
        self._before = self._read()
        return self

    def __exit__(self, *_: object) -> None:
        after = self._read()
        self.hits, self.misses, self.computed = (after[i] - self._before[i] for i in range(3))

    def _read(self) -> list[float]:
        return [self._service.metric(line) for line in (HITS, MISSES, "headroom_batch_pairs_sum")]


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name != "timing_ms"}


async def test_the_same_request_is_computed_once_and_answered_alike(caching: Service) -> None:
    body = {"query": "lamp", "titles": TITLES}
    with Counting(caching) as first:
        one = await caching.post("/v1/score", **body)
    with Counting(caching) as second:
        other = await caching.post("/v1/score", **body)
    assert (first.hits, first.misses, first.computed) == (0, 4, 4)
    assert (second.hits, second.misses, second.computed) == (4, 0, 0)
    assert without_times(one) == without_times(other)
    assert set(one["timing_ms"]) == set(other["timing_ms"])
    assert other["timing_ms"]["inference"] == 0


async def test_known_and_new_titles_come_in_the_order_of_the_request(
    caching: Service, clf: Classifier
) -> None:
    await caching.post("/v1/score", query="table", titles=[TITLES[2], TITLES[0]])
    timed = 'headroom_pair_seconds_count{arm="",variant="full"}'
    scored = 'headroom_pairs_total{arm="",variant="full"}'
    before = caching.metric(timed), caching.metric(scored)
    with Counting(caching) as counts:
        answer = await caching.post("/v1/score", query="table", titles=[*TITLES, TITLES[1]])
    assert (counts.hits, counts.misses, counts.computed) == (2, 3, 3)
    expected = clf.score([("table", title) for title in [*TITLES, TITLES[1]]])
    results = answer["results"]
    assert [row["index"] for row in results] == list(range(5))
    check_scores(results, expected.score)
    np.testing.assert_allclose([row["probabilities"] for row in results], expected.probabilities, atol=1e-5)
    assert [row["truncated"] for row in results] == [False, False, False, True, False]
    # The pairs that took no time are counted, but not timed.
    assert (caching.metric(timed) - before[0], caching.metric(scored) - before[1]) == (3, 5)


@pytest.mark.parametrize("spec", ["1.0-2", "random:0.5@7", "2.3"])
async def test_another_mask_is_another_score(caching: Service, clf: Classifier, spec: str) -> None:
    await caching.post("/v1/score", query=QUERY, titles=TITLES)
    expected = clf.score(pairs(), HeadMask.parse(spec, layers=3, heads=4)).score
    for _ in range(2):
        answer = await caching.post("/v1/score", query=QUERY, titles=TITLES, head_mask=spec)
        check_scores(answer["results"], expected)


async def test_other_tokens_of_the_same_texts_are_another_score(
    caching: Service, tiny_checkpoint: Path
) -> None:
    """Chunks of a long title, the end of it, and a text alone."""
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/score", {"query": QUERY, "titles": TITLES}),
        ("/v1/score", {"query": QUERY, "titles": TITLES, "overflow": "chunks"}),
        ("/rerank", {"query": QUERY, "texts": TITLES, "truncation_direction": "Left", "truncate": True}),
        ("/predict", {"inputs": [[QUERY, TITLES[1]], [TITLES[1], QUERY]]}),
        ("/", {"inputs": TITLES[1]}),
    ]
    async with serve(tiny_checkpoint, CONFIG) as plain:
        for path, body in asked:
            expected = (await plain.http.post(path, json=body)).json()
            for _ in range(2):
                found = (await caching.http.post(path, json=body)).json()
                if path == "/v1/score":
                    for one, other in zip(found["results"], expected["results"], strict=True):
                        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
                        assert (one.get("chunk"), one["tokens"]) == (other.get("chunk"), other["tokens"])
                else:
                    flat = [row for rows in found for row in (rows if path == "/predict" else [rows])]
                    right = [row for rows in expected for row in (rows if path == "/predict" else [rows])]
                    assert [row["score"] for row in flat] == pytest.approx(
                        [row["score"] for row in right], abs=1e-5
                    )
        assert plain.metric(HITS) == plain.metric(MISSES) == 0  # off unless asked for


async def test_compare_and_condense_compute_all(caching: Service) -> None:
    """Columns are compared as they come out of the same batches."""
    await caching.post("/v1/score", query=QUERY, titles=TITLES)
    with Counting(caching) as counts:
        await caching.post("/v1/compare", query=QUERY, titles=TITLES, masks=["none", "none"])
        await caching.post("/v1/condense", query=QUERY, titles=TITLES, max_words=1)
    assert (counts.hits, counts.misses) == (0, 0)
    assert counts.computed > 8


async def test_a_failure_is_not_remembered(caching: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = caching.replica.engine.classifiers[""]
    with monkeypatch.context() as broken:
        broken.setattr(
            classifier, "forward", lambda rows, *_, **__: np.full((len(rows), 5), np.nan, np.float32)
        )
        await caching.refused("/v1/score", 500, query="charger", titles=TITLES)
    answer = await caching.post("/v1/score", query="charger", titles=TITLES)
    expected = classifier.score([("charger", title) for title in TITLES]).score
    check_scores(answer["results"], expected)


async def test_weights_that_were_loaded_again_do_not_meet_old_scores(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path / "other", seed=9)
    other = {"variants": [{"name": "full"}, {"name": "other", "checkpoint": str(path)}]}
    body = {"query": QUERY, "titles": TITLES, "variant": "other"}
    async with serve(tiny_checkpoint, other, score_cache_size=100) as service:
        await service.post("/v1/score", **body)
        shutil.rmtree(path)
        write_checkpoint(path, seed=10)
        for masks in ({"a": "0.0"}, {"a": "0.1"}):  # a checkpoint stays until the change after the next
            without = LiveConfig.model_validate({"variants": [{"name": "full"}], "masks": masks})
            await asyncio.to_thread(service.replica.apply, without)
        await asyncio.to_thread(service.replica.apply, LiveConfig.model_validate(other))
        answer = await service.post("/v1/score", **body)
    expected = Classifier.load(path, "cpu", "float32").score(pairs()).score
    check_scores(answer["results"], expected)


async def test_a_unit_in_an_arm_is_always_computed(tiny_checkpoint: Path, database_url: str) -> None:
    """The default's scores are known more often than another arm's, which would look slower than it is."""
    live = experiment_config(traffic=1.0)
    async with serve(tiny_checkpoint, live, database_url=database_url, score_cache_size=100) as service:
        for _ in range(2):
            await service.post("/v1/score", query=QUERY, titles=TITLES)
        with Counting(service) as counts:
            for number in range(6):
                await service.post("/v1/score", query=QUERY, titles=TITLES, unit=f"u{number}")
        assert (counts.hits, counts.misses, counts.computed) == (0, 0, 24)


async def test_the_least_recently_used_row_is_evicted_first(clf: Classifier) -> None:
    cache = ScoreCache(2, None, Metrics())
    cache.register([clf])

    async def ask(*titles: str) -> int:
        """Return how many of these titles the cache lacks; they are scored then."""
        encoded = clf.tokenizer.encode([(QUERY, title) for title in titles])
        missing = await cache.recall([PairRow(len(pair), Lane(clf), pair, clf.all_heads) for pair in encoded])
        for row in missing.rows:
            row.result = row_scores(clf, np.zeros((1, 5), np.float32))[0]
        cache.keep(missing)
        return len(missing.rows)

    assert await ask("a", "b") == 2
    assert await ask("a") == 0
    assert await ask("c") == 1
    assert (await ask("a"), await ask("b")) == (0, 1)
