"""Titles longer than the window, over HTTP: in chunks, the best of which counts."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from headroom.models.checkpoint.chunks import LongTitles, encode_chunks
from headroom.service.engine.request import Deadline
from headroom.service.schemas.requests import DocumentsRequest
from tests.checkpoints import write_checkpoint
from tests.service.experimenting import config, shadow_of
from tests.service.in_process import QUERY, TITLES, Service, check_scores, in_session, serve

WORDS = "steel wood lamp deck screws black white red cable charger kitchen towel phone case".split()
LONG = [
    " ".join(WORDS[(number * step) % len(WORDS)] for number in range(count))
    for step, count in ((1, 70), (3, 200), (5, 130))
]


def spans(clf: Classifier, title: str) -> list[tuple[int, int]]:
    """The place of each chunk of a title."""
    return encode_chunks(clf.tokenizer, [(QUERY, title)], LongTitles("chunks"))[0].spans


async def test_the_best_chunk_of_each_long_title_counts(service: Service, clf: Classifier) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=[*LONG, *TITLES[:3]], overflow="chunks")
    tokens = 0
    for title, row in zip(LONG, answer["results"], strict=False):
        places = spans(clf, title)
        index = int(clf.score([(QUERY, title[start:end]) for start, end in places]).score.argmax())
        start, end = places[index]
        assert row["chunk"] == {"index": index, "chunks": len(places), "start": start, "end": end}
        alone = clf.score([(QUERY, title[start:end])])
        np.testing.assert_allclose(row["probabilities"], alone.probabilities[0], atol=1e-5)
        assert row["grade"] == alone.grade[0]
        assert not row["truncated"]
        lengths = [len(clf.tokenizer.encode([(QUERY, title[a:b])])[0]) for a, b in places]
        assert row["tokens"] == sum(lengths)
        tokens += row["tokens"]
    assert not any("chunk" in row for row in answer["results"][3:])
    assert answer["usage"] == {
        "pairs": 6,
        "tokens": tokens + sum(row["tokens"] for row in answer["results"][3:]),
    }
    assert service.metric('headroom_pairs_total{arm="",variant="full"}') == 6
    assert service.metric("headroom_truncated_total") == 0
    assert service.metric("headroom_batch_tokens_sum") == answer["usage"]["tokens"]

    # The classifier and texts that are read on the tokenizer's thread give the same.
    scores = clf.score([(QUERY, title) for title in LONG], overflow="chunks")
    assert scores.chunks is not None
    assert [chunk.index for chunk in scores.chunks if chunk] == [
        row["chunk"]["index"] for row in answer["results"][:3]
    ]
    np.testing.assert_allclose(scores.score, [row["score"] for row in answer["results"][:3]], atol=1e-5)
    many = await service.post("/v1/score", query=QUERY, titles=LONG * 5, overflow="chunks")
    assert [row["chunk"] for row in many["results"][-3:]] == [row["chunk"] for row in answer["results"][:3]]

    # A query that leaves no room is cut to half the window, and the answer says that text was cut off.
    long_query = await service.post("/v1/score", query=LONG[0], titles=LONG[1:2], overflow="chunks")
    assert long_query["results"][0]["truncated"]
    assert long_query["results"][0]["chunk"]["chunks"] > len(spans(clf, LONG[1]))

    error = await service.refused("/v1/score", 422, query=QUERY, titles=LONG, overflow="split")
    assert error["param"] == "overflow"
    assert "'truncate' or 'chunks'" in error["message"]


async def test_titles_that_fit_score_the_same_bits_either_way(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, deterministic=True) as service:
        plain = await service.post("/v1/score", query=QUERY, titles=TITLES[:3])
        chunks = await service.post(
            "/v1/score", query=QUERY, titles=[LONG[0], *TITLES[:3]], overflow="chunks"
        )
        for before, after in zip(plain["results"], chunks["results"][1:], strict=True):
            assert after == before | {"index": before["index"] + 1}


@in_session
async def test_each_column_of_a_compare_has_its_own_best_chunk(shared: Service, clf: Classifier) -> None:
    answer = await shared.post(
        "/v1/compare", query=QUERY, titles=LONG, masks=["none", "1.*"], variants=["cut"], overflow="chunks"
    )
    for column, spec in zip(answer["columns"], ("none", "1.*", "random:0.5@7"), strict=True):
        mask = HeadMask.parse(spec, layers=3, heads=4)
        expected = clf.score([(QUERY, title) for title in LONG], mask, overflow="chunks")
        assert expected.chunks is not None
        check_scores(column["results"], expected.score)
        assert [r["chunk"]["index"] for r in column["results"]] == [c.index for c in expected.chunks if c]
    assert answer["usage"]["pairs"] == 9


async def test_chunks_count_as_rows_and_tokens_of_a_request(tiny_checkpoint: Path, clf: Classifier) -> None:
    chunks = len(spans(clf, LONG[1]))
    async with serve(tiny_checkpoint, max_compare_rows=chunks) as service:
        await service.post("/v1/score", query=QUERY, titles=LONG[1:2], overflow="chunks")
        # Titles that fit are no chunks, however many there are.
        await service.post("/v1/score", query=QUERY, titles=["lamp"] * (chunks + 5), overflow="chunks")
        error = await service.refused(
            "/v1/score", 422, query=QUERY, titles=[LONG[1], "lamp"], overflow="chunks"
        )
        assert error["param"] == "titles"
        assert (
            f"{chunks + 1} rows, chunks of long titles included, are more than the {chunks}"
            in error["message"]
        )
        error = await service.refused(
            "/v1/compare", 422, pairs=[[QUERY, LONG[1]]], masks=["none", "1.*"], overflow="chunks"
        )
        assert error["param"] == "pairs"
        assert service.metric("headroom_batch_pairs_sum") == chunks + chunks + 5


@in_session
async def test_other_shapes_can_limit_the_tokens_and_chunks_of_a_document(
    shared: Service, clf: Classifier
) -> None:
    async def results(**limits: Any) -> list[Any]:
        request = DocumentsRequest(query=QUERY, titles=LONG, **limits)
        now = time.monotonic()
        return (await shared.replica.score(request, Deadline(now, now + 60))).results

    for row, title in zip(await results(overflow="chunks", max_chunks_per_doc=2), LONG, strict=True):
        places = spans(clf, title)
        assert row.chunk.chunks == min(2, len(places))
        assert row.truncated == (len(places) > 2)
    for row in await results(overflow="chunks", max_tokens_per_doc=100):
        assert row.chunk.chunks == 2
    assert [row.truncated for row in await results(overflow="chunks", max_tokens_per_doc=100)] == [
        False,
        True,
        True,
    ]
    expected = clf.score([(QUERY, " ".join(title.split()[:20])) for title in LONG]).score
    for overflow in ("truncate", "chunks"):
        short = await results(overflow=overflow, max_tokens_per_doc=20)
        np.testing.assert_allclose([row.score for row in short], expected, atol=1e-5)
        assert [(row.truncated, row.chunk) for row in short] == [(True, None)] * 3


async def test_a_shadow_comparison_takes_each_arms_best_chunk(tiny_checkpoint: Path, tmp_path: Path) -> None:
    other = write_checkpoint(tmp_path / "other", seed=5, max_position_embeddings=40)
    live = config([{"name": "full"}, {"name": "other", "checkpoint": str(other)}], shadow=1.0, traffic=0.0)
    titles = [*LONG, *TITLES]
    async with serve(tiny_checkpoint, live, database_url=f"sqlite:///{tmp_path / 'x.db'}") as service:
        by_arm = [
            await service.post("/v1/score", query=QUERY, titles=titles, variant=name, overflow="chunks")
            for name in ("full", "other")
        ]
        await service.post("/v1/score", query=QUERY, titles=titles, overflow="chunks")
        shadow = await shadow_of(service)
        full, others = ([row["score"] for row in answer["results"]] for answer in by_arm)
        assert shadow["measures"]["mean_delta"]["requests"] == 1
        assert shadow["measures"]["mean_delta"]["mean"] == pytest.approx(
            np.mean(np.subtract(others, full)), abs=1e-4
        )
