"""Cascades as their users meet them: which stage scores which title, in every shape of request."""

from pathlib import Path

import numpy as np
import pytest

from headroom import Classifier
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.scoring.cascade import comparable_scores
from tests.checkpoints import write_checkpoint
from tests.service.cascades.conftest import TITLES, best, own_scores
from tests.service.in_process import QUERY, Service, check_scores, serve

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one service for most of the tests


async def test_the_best_titles_of_a_stage_are_scored_by_the_next(service: Service, clf: Classifier) -> None:
    cheap, full = own_scores(clf, "0-1.*"), own_scores(clf, "none")
    kept = best(cheap.score, list(range(20)), 5)
    series = 'headroom_cascade_pairs_total{stage="%s",variant="cascade"}'
    before = [service.metric(series % stage) for stage in ("cheap", "full")]
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")

    after = [service.metric(series % stage) for stage in ("cheap", "full")]
    assert np.subtract(after, before).tolist() == [20, 5]
    assert answer["variant"] == "cascade"
    results = answer["results"]
    assert [row["index"] for row in results] == list(range(20))
    assert [row["index"] for row in results if row["stage"] == "full"] == kept
    assert {row["stage"] for row in results} == {"cheap", "full"}
    for row in results:  # grades and probabilities are those of the stage that scored the title
        own = full if row["stage"] == "full" else cheap
        np.testing.assert_allclose(row["probabilities"], own.probabilities[row["index"]], atol=1e-5)
        assert row["expected_grade"] == pytest.approx(own.expected_grade[row["index"]], abs=1e-4)
    stages = np.array([row["stage"] == "full" for row in results], np.int64)
    scores = np.where(stages, full.score, cheap.score)
    expected = comparable_scores(scores, stages, 0.0, scores)
    check_scores(results, expected)
    lowest_kept = min(row["score"] for row in results if row["stage"] == "full")
    assert all(row["score"] < lowest_kept for row in results if row["stage"] == "cheap")

    assert [(stage["variant"], stage["pairs"]) for stage in answer["stages"]] == [("cheap", 20), ("full", 5)]
    assert [stage["head_mask"]["heads_on"] for stage in answer["stages"]] == [4, 12]
    assert answer["head_mask"]["heads_on"] == 12
    tokens = [row["tokens"] for row in results]
    assert answer["usage"] == {"pairs": 25, "tokens": sum(tokens) + sum(tokens[pair] for pair in kept)}
    assert answer["degraded"] is False


async def test_pairs_of_several_queries_keep_so_many_of_each(service: Service, clf: Classifier) -> None:
    pairs = [[query, title] for title in TITLES[:8] for query in (QUERY, "deck screws")]
    pairs.append(["laptop", TITLES[0]])
    answer = await service.post("/v1/score", pairs=pairs, variant="cascade")
    for query in (QUERY, "deck screws"):
        cheap = own_scores(clf, "0-1.*", TITLES[:8], query).score
        of_query = [row for row, pair in zip(answer["results"], pairs, strict=True) if pair[0] == query]
        kept = [place for place, row in enumerate(of_query) if row["stage"] == "full"]
        assert kept == best(cheap, list(range(8)), 5)
    assert answer["results"][-1]["stage"] == "full"
    assert [stage["pairs"] for stage in answer["stages"]] == [16, 11]


async def test_a_requests_mask_is_multiplied_onto_each_stage(service: Service, clf: Classifier) -> None:
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade", head_mask="2.0")
    specs = [stage["head_mask"]["spec"] for stage in answer["stages"]]
    assert specs == ["0-1.*,2.0", "2.0"]
    kept = best(own_scores(clf, "0-1.*,2.0").score, list(range(20)), 5)
    assert [row["index"] for row in answer["results"] if row["stage"] == "full"] == kept


async def test_long_titles_in_chunks_go_on_with_all_their_chunks(service: Service) -> None:
    titles = [*TITLES[:7], "steel bracket, black " * 40]
    whole = await service.post("/v1/score", query=QUERY, titles=titles, variant="full", overflow="chunks")
    answer = await service.post("/v1/score", query=QUERY, titles=titles, variant="cascade", overflow="chunks")
    for ours, full in zip(answer["results"], whole["results"], strict=True):
        assert ours["tokens"] == full["tokens"]
        assert ("chunk" in ours) == ("chunk" in full)
        if ours["stage"] == "full":
            assert ours["score"] == pytest.approx(full["score"], abs=1e-5)
    assert answer["usage"]["tokens"] > whole["usage"]["tokens"]


async def test_a_cascade_is_a_column_of_a_compare(service: Service) -> None:
    alone = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
    full = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="full")
    answer = await service.post(
        "/v1/compare", query=QUERY, titles=TITLES, masks=["none"], variants=["cascade", "full", "three"]
    )
    columns = answer["columns"]
    assert [column["variant"] for column in columns] == ["full", "cascade", "full", "three"]
    assert [column["stages"] is None for column in columns] == [True, False, True, False]
    for column, other in ((columns[1], alone), (columns[2], full)):
        assert [row.get("stage") for row in column["results"]] == [
            row.get("stage") for row in other["results"]
        ]
        check_scores(column["results"], [row["score"] for row in other["results"]])
    assert answer["usage"]["pairs"] == 20 + 25 + 20 + 33
    assert not any(column["degraded"] for column in columns)


async def test_an_empty_title_is_never_among_those_kept(service: Service) -> None:
    titles = ["", *TITLES[:9], ""]
    rows = (await service.post("/v1/score", query=QUERY, titles=titles, variant="cascade"))["results"]
    assert [row["stage"] for row in rows if row.get("empty")] == ["cheap", "cheap"]
    assert [row["score"] for row in rows if row.get("empty")] == [0, 0]
    ranks = await service.post("/v1/rerank", query=QUERY, documents=titles, model="x@cascade")
    assert [row["index"] for row in ranks["results"][-2:]] == [0, 10]


async def test_attention_is_the_last_stages(service: Service) -> None:
    body = {"query": QUERY, "title": TITLES[0], "heads": "2.3"}
    ours = await service.post("/v1/attention", **body, variant="cascade")
    full = await service.post("/v1/attention", **body, variant="full")
    assert ours["heads"] == full["heads"]


async def test_stages_may_be_other_checkpoints(tiny_checkpoint: Path, tmp_path: Path) -> None:
    small = write_checkpoint(tmp_path / "small", seed=5, num_hidden_layers=1)
    variants = [
        {"name": "full"},
        {"name": "small", "checkpoint": str(small)},
        {"name": "cascade", "cascade": [{"variant": "small", "keep": 4}, {"variant": "full"}]},
    ]
    async with serve(tiny_checkpoint, {"variants": variants}) as service:
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cascade")
        cheap = own_scores(Classifier.load(small, "cpu", "float32"), "none").score
        kept = best(cheap, list(range(20)), 4)
        assert [row["index"] for row in answer["results"] if row["stage"] == "full"] == kept
        assert answer["model"] == tiny_checkpoint.name
        assert [stage["model"] for stage in answer["stages"]] == ["small", tiny_checkpoint.name]
        one_label = write_checkpoint(tmp_path / "one", num_labels=1)
        mixed = [*variants[:1], {**variants[1], "checkpoint": str(one_label)}, variants[2]]
        with pytest.raises(InvalidConfig, match=r"variants\[2\].cascade\[0\].variant: small gives one score"):
            service.replica.check(LiveConfig.model_validate({"variants": mixed}))
