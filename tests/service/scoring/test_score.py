"""Scores, compares and attention of a real (small) network, asked for over HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from headroom.service.scoring import compare
from tests.checkpoints import write_checkpoint
from tests.service.in_process import QUERY, TITLES, Service, check_scores, in_session, pairs, serve


@in_session
async def test_scores_are_the_classifiers_own_in_the_request_order(shared: Service, clf: Classifier) -> None:
    answer = await shared.post("/v1/score", query=QUERY, titles=TITLES, head_mask="2.3,1.*")
    expected = clf.score(pairs(), HeadMask.parse("1.*,2.3", layers=3, heads=4))

    assert [row["index"] for row in answer["results"]] == [0, 1, 2, 3]
    for i, row in enumerate(answer["results"]):
        np.testing.assert_allclose(row["probabilities"], expected.probabilities[i], atol=1e-5)
        assert row["expected_grade"] == pytest.approx(expected.expected_grade[i], abs=1e-4)
        assert row["score"] == pytest.approx(expected.score[i], abs=1e-4)
        assert row["grade"] == expected.grade[i]
        assert row["label"] == clf.grades[row["grade"]]
    assert [row["truncated"] for row in answer["results"]] == [False, False, False, True]
    assert answer["results"][3]["tokens"] == clf.max_tokens
    assert answer["head_mask"]["id"] == HeadMask.parse("1.*,2.3", layers=3, heads=4).id
    assert (answer["head_mask"]["spec"], answer["head_mask"]["heads_on"]) == ("1.*,2.3", 7)
    assert answer["usage"] == {"pairs": 4, "tokens": sum(row["tokens"] for row in answer["results"])}
    assert answer["variant"] == "full"
    assert answer["assignment"] is None
    assert set(answer["timing_ms"]) == {"tokenize", "queue", "inference", "total"}


@in_session
async def test_requests_with_different_masks_at_once_get_each_their_own(
    shared: Service, clf: Classifier
) -> None:
    specs = ["none", "1.*", "0-1.*", "random:0.5@1", "random:0.5@2", "keep:2.2", "0-2.*"] * 6

    answers = await asyncio.gather(
        *(shared.post("/v1/score", query=QUERY, titles=TITLES, head_mask=spec) for spec in specs)
    )

    for spec, answer in zip(specs, answers, strict=True):
        expected = clf.score(pairs(), HeadMask.parse(spec, layers=3, heads=4))
        check_scores(answer["results"], expected.score)


@pytest.mark.parametrize("threads", [1, 2])
async def test_deterministic_scores_are_the_same_bits_under_any_load(
    tiny_checkpoint: Path, threads: int
) -> None:
    async with serve(tiny_checkpoint, deterministic=True, threads=threads) as service:
        alone = await service.post("/v1/score", query=QUERY, titles=TITLES[:1], head_mask="1.2")
        crowd = await asyncio.gather(
            *(
                service.post("/v1/score", query=QUERY, titles=TITLES[: 1 + i % 4], head_mask=f"1.2,{i % 3}.0")
                for i in range(20)
            ),
            service.post("/v1/score", query=QUERY, titles=TITLES[:1], head_mask="1.2"),
        )
        assert crowd[-1]["results"] == alone["results"]


@in_session
async def test_compare_gives_a_column_for_each_mask_and_variant_in_order(
    shared: Service, clf: Classifier
) -> None:
    answer = await shared.post(
        "/v1/compare", query=QUERY, titles=TITLES, masks=["none", "0-1.*"], variants=["cut", "full"]
    )

    assert [column["head_mask"]["spec"] for column in answer["columns"]] == [
        "none",
        "0-1.*",
        HeadMask.parse("random:0.5@7", layers=3, heads=4).spec,
        "none",
    ]
    assert [column["variant"] for column in answer["columns"]] == ["full", "full", "cut", "full"]
    for column in answer["columns"]:
        expected = clf.score(pairs(), HeadMask.parse(column["head_mask"]["spec"], layers=3, heads=4))
        check_scores(column["results"], expected.score)
    assert answer["usage"]["pairs"] == 16


@in_session
async def test_compare_names_the_column_that_is_wrong(shared: Service) -> None:
    error = await shared.refused("/v1/compare", 422, query=QUERY, titles=TITLES, masks=["none", "9.0"])
    assert error["param"] == "masks[1]"
    error = await shared.refused("/v1/compare", 422, query=QUERY, titles=TITLES, variants=["full", "nope"])
    assert error["param"] == "variants[1]"
    assert error["message"].startswith("variants[1]: there is no variant 'nope'")


@in_session
async def test_attention_shows_the_heads_that_were_asked_for(shared: Service, clf: Classifier) -> None:
    answer = await shared.post(
        "/v1/attention", query="angle", title="steel angle", heads="2.3,0.*", head_mask="0.1"
    )

    size = len(answer["tokens"])
    assert answer["tokens"] == ["[CLS]", "angle", "[SEP]", "steel", "angle", "[SEP]"]
    assert [text.strip() for text in answer["texts"]] == answer["tokens"]
    assert answer["special"] == [0, 2, 5]
    assert answer["segments"] == [0, 0, 0, 1, 1, 1]
    assert [(head["layer"], head["head"]) for head in answer["heads"]] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (2, 3),
    ]
    pair = clf.tokenizer.encode([("angle", "steel angle")])[0]
    mask = HeadMask.parse("0.1", layers=3, heads=4)
    expected = clf.attention_maps(pair, [(0, 0), (0, 1), (0, 2), (0, 3), (2, 3)], mask)
    for head, matrix in zip(answer["heads"], expected, strict=True):
        assert np.array(head["probabilities"]).shape == (size, size)
        np.testing.assert_allclose(head["probabilities"], matrix, atol=1e-5)


@in_session
async def test_attention_refuses_more_than_one_answer_can_hold(
    shared: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compare, "MAX_ATTENTION_VALUES", 100)
    error = await shared.refused("/v1/attention", 422, query="angle", title=TITLES[0], heads="*.*")
    assert error["param"] == "heads"


@in_session
@pytest.mark.parametrize(
    ("path", "body", "param", "says"),
    [
        *(
            (path, {"query": QUERY, "titles": ["x"]} | body, *error)
            for path in ("/v1/score", "/v1/condense")
            for body, *error in (
                ({"head_mask": "3.0"}, "head_mask", "layers 0 to 2"),
                ({"head_mask": {"weights": [[1]]}}, "head_mask", ""),
                ({"head_mask": "@unknown"}, "head_mask", ""),
                ({"variant": "nope"}, "variant", "there are full, masked, cut"),
                ({"query": "\u0301 \u0301"}, "query", "no character that the model can read"),
            )
        ),
        ("/v1/score", {"pairs": [["a", "b"], ["\u0301", "x"]]}, "pairs[1][0]", ""),
    ],
)
async def test_what_only_the_model_can_refuse_names_the_field(
    shared: Service, path: str, body: dict[str, Any], param: str, says: str
) -> None:
    before = shared.metric("headroom_batch_pairs_count")
    error = await shared.refused(path, 422, **body)
    assert error["param"] == param
    assert says in error["message"]
    assert shared.metric("headroom_batch_pairs_count") == before  # nothing was queued


@in_session
@pytest.mark.parametrize(
    "title", ["", "🦆" * 10, "a\x00b\x07c", "\u202eright to left", "강남역 맛집", "x" * 1_000_000, " "]
)
async def test_any_text_is_scored(shared: Service, title: str) -> None:
    answer = await shared.post("/v1/score", query=QUERY, titles=[title, "angle"])
    alone = await shared.post("/v1/score", query=QUERY, titles=["angle"])
    assert answer["results"][1]["score"] == pytest.approx(alone["results"][0]["score"], abs=1e-5)


async def test_metrics_count_pairs_grades_and_batches_exactly(service: Service) -> None:
    await service.post("/v1/score", query=QUERY, titles=TITLES, variant="masked")
    await service.post("/v1/score", query=QUERY, titles=TITLES, head_mask="0.0")
    await service.post("/v1/compare", query=QUERY, titles=TITLES[:2], masks=["none"], variants=["cut"])

    assert service.metric('headroom_pairs_total{arm="",variant="masked"}') == 4
    assert service.metric('headroom_pairs_total{arm="",variant="custom"}') == 6
    assert service.metric('headroom_pairs_total{arm="",variant="cut"}') == 2
    assert service.metric("headroom_truncated_total") == 2
    assert service.metric("headroom_batch_pairs_sum") == 12
    grades = [
        service.metric(f'headroom_grade_total{{grade="{grade}",variant="masked"}}') for grade in range(5)
    ]
    assert sum(grades) == 4
    assert service.metric('headroom_heads_on{variant="cut"}') == 6
    assert service.metric("headroom_ready") == 1


async def test_a_one_label_model_gives_scores_and_no_grades(tmp_path: Path) -> None:
    model = write_checkpoint(tmp_path / "one", num_labels=1)
    async with serve(model) as service:
        answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
        row = answer["results"][0]
        assert (row["grade"], row["label"], row["expected_grade"], row["probabilities"]) == (None,) * 4
        expected = Classifier.load(model, "cpu", "float32").score(pairs()).score
        check_scores(answer["results"], expected)
