"""A reranker that is no BERT, in a replica: its pairs, raw scores, another family beside it."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headroom import Classifier, HeadMask
from tests.decoders import write_decoder
from tests.families import edit_config, write_family
from tests.service.in_process import Service, serve

TITLES = ["steel angle, 12-gauge", "wood deck screws", "</s> usb lamp <pad>", "Résumé 中文", ""]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One label and raw scores, as sentence-transformers stores it."""
    directory = write_family(tmp_path_factory.mktemp("xlm") / "reranker", "xlm-roberta", 7, num_labels=1)
    edit_config(directory, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    return directory


@pytest.fixture
async def served(reranker: Path, tmp_path: Path) -> AsyncIterator[Service]:
    graded = write_family(tmp_path / "graded", "electra")
    arms = [{"name": name, "variant": name, "weight": 50} for name in ("full", "pruned")]
    live = {
        "variants": [
            {"name": "full"},
            {"name": "pruned", "head_mask": "1.*,2.0", "sliced": True},
            {"name": "graded", "checkpoint": str(graded)},
        ],
        "experiments": [
            {
                "name": "raw",
                "salt": "raw",
                "arms": arms,
                "traffic": 1.0,
                "shadow": 1.0,
                "guardrails": {"score_shift": 5.0, "min_requests": 10},
            }
        ],
    }
    async with serve(reranker, live, database_url=f"sqlite:///{tmp_path / 'experiments.db'}") as service:
        yield service


async def get(service: Service, path: str) -> Any:
    return (await service.http.get(path)).json()


def assert_scored(results: list[dict[str, Any]], expected: np.ndarray) -> None:
    """The scores are the classifier's, except that the last title, which is empty, ranks below all."""
    scores = [result["score"] for result in results]
    assert [result.get("empty", False) for result in results] == [False] * (len(TITLES) - 1) + [True]
    np.testing.assert_allclose(scores[:-1], expected[:-1], atol=2e-5)
    assert scores[-1] < min(scores[:-1])


async def test_a_reranker_of_another_family_is_served_whole(served: Service, reranker: Path) -> None:
    clf = Classifier.load(reranker, "cpu", "float32")
    pairs = [("angle bracket", title) for title in TITLES]
    body = {"query": "angle bracket", "titles": TITLES}

    own, graded = (await get(served, "/v1/models"))["models"]
    assert (own["family"], own["score_activation"], own["grades"]) == ("xlm-roberta", "identity", None)
    assert (graded["family"], graded["score_activation"]) == ("electra", "softmax")

    for fields, mask in (
        ({"variant": "full"}, "none"),
        ({"variant": "pruned"}, "1.*,2.0"),
        ({"head_mask": "0.1,2.*"}, "0.1,2.*"),
    ):
        results = (await served.post("/v1/score", **body | fields))["results"]
        expected = clf.score(pairs, HeadMask.parse(mask, layers=3, heads=4)).logits[:, 0]
        assert_scored(results, expected)
    assert any(not 0 <= score <= 1 for score in expected)  # so it is no probability

    attention = await served.post("/v1/attention", query="angle", title=TITLES[2], heads="0.1")
    tokens, segments = attention["tokens"], attention["segments"]
    assert (tokens[0], tokens[-1], tokens.count("</s>")) == ("<s>", "</s>", 3)
    start = segments.index(1)
    assert tokens[start - 2 : start] == ["</s>", "</s>"]

    scores = [
        result["score"]
        for result in (await served.post("/v1/score", **body | {"variant": "graded"}))["results"]
    ]
    assert all(0 <= score <= 1 for score in scores)


async def test_raw_scores_are_counted_and_compared_by_experiments(served: Service) -> None:
    """The guardrails' and the shadow's scale is 0 to 1; a raw score is any number."""
    arms = set()
    for unit in range(30):
        answer = await served.post("/v1/score", query="usb lamp", titles=TITLES, unit=str(unit))
        arms.add((answer["assignment"]["arm"], answer["assignment"]["fallback"]))

    assert arms == {("full", False), ("pruned", False)}
    assert (await get(served, "/v1/experiments/raw"))["name"] == "raw"


async def test_a_decoder_takes_an_instruction_in_every_shape(tmp_path: Path) -> None:
    directory = write_decoder(tmp_path / "qwen3", "qwen3", 3)  # with the published prompt
    clf, query = Classifier.load(directory, "cpu", "float32"), "angle bracket?"
    pairs = [(query, title) for title in TITLES]
    live = {"variants": [{"name": "full"}, {"name": "cut", "head_mask": "0.*,2.1", "sliced": True}]}
    answers = []
    async with serve(directory, live) as service:
        model = (await get(service, "/v1/models"))["models"][0]
        assert (model["family"], model["heads"], model["grades"]) == ("qwen3", 4, None)
        for more in ({}, {"instruction": "Find tools: now?"}):
            for variant, mask in (("full", "none"), ("cut", "0.*,2.1")):
                expected = clf.score(pairs, HeadMask.parse(mask, layers=3, heads=4), **more).score
                body = {"query": query, "titles": TITLES, "variant": variant, **more}
                assert_scored((await service.post("/v1/score", **body))["results"], expected)
            expected = clf.score(pairs, **more).score
            score = await service.post("/score", queries=query, documents=TITLES, **more)
            rerank = await service.post("/v1/rerank", query=query, documents=TITLES, **more)
            for results, name in ((score["data"], "score"), (rerank["results"], "relevance_score")):
                scores = {result["index"]: result[name] for result in results}
                np.testing.assert_allclose([scores[i] for i in range(4)], expected[:4], atol=2e-5)
            answers.append(expected)
        attention = await service.post("/v1/attention", query=query, title=TITLES[0], heads="0.1")
        assert attention["tokens"][0] == "<|im_start|>"
        assert "".join(attention["texts"]).startswith("<|im_start|>system\nJudge whether")
        special = set(attention["special"])
        texts = [text for position, text in enumerate(attention["texts"]) if position not in special]
        assert "".join(texts).split() == f"{query} {TITLES[0]}".split()
        error = await service.refused(
            "/v1/score", 422, query=query, titles=TITLES, instruction="find it " * 1_000
        )
        assert error["param"] == "instruction"
    assert np.abs(answers[0] - answers[1]).max() > 1e-4
