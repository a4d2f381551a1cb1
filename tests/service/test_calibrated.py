"""A calibrated checkpoint's probabilities are what every route answers."""

from pathlib import Path

import numpy as np
import pytest

from headroom.models.compress.calibrate import write_calibrated
from tests.calibrating import edit_config
from tests.checkpoints import load, write_checkpoint
from tests.service.in_process import QUERY, TITLES, pairs, serve

IDENTITY = {"activation_fn": "torch.nn.modules.linear.Identity"}


@pytest.mark.asyncio
async def test_a_reranker_whose_scores_were_logits_answers_probabilities(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", num_labels=1)
    edit_config(source, sentence_transformers=IDENTITY)
    out = tmp_path / "out"
    write_calibrated(source, out, 4.0, [-0.75])
    logits = load(source).score(pairs()).logits[:, 0].astype(np.float64)
    expected = 1 / (1 + np.exp(0.75 - logits / 4))
    order = sorted(range(len(TITLES)), key=lambda index: -logits[index])
    async with serve(out) as service:
        scored = await service.post("/v1/score", query=QUERY, titles=TITLES)
        np.testing.assert_allclose([row["score"] for row in scored["results"]], expected, atol=1e-5)
        for path in ("/v1/rerank", "/v2/rerank"):
            ranked = await service.post(path, model="any", query=QUERY, documents=TITLES)
            assert [row["index"] for row in ranked["results"]] == order
            found = [row["relevance_score"] for row in ranked["results"]]
            np.testing.assert_allclose(found, expected[order], atol=1e-5)
        raw = (
            await service.http.post("/rerank", json={"query": QUERY, "texts": TITLES, "raw_scores": True})
        ).json()
        by_index = {row["index"]: row["score"] for row in raw}
        np.testing.assert_allclose([by_index[i] for i in range(len(TITLES))], logits / 4 - 0.75, atol=1e-4)


@pytest.mark.asyncio
async def test_a_graded_models_probabilities_are_the_calibrated_ones(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source")
    out = tmp_path / "out"
    bias = np.array([0.5, 0, -1, 0, 0.25])
    write_calibrated(source, out, 2.0, bias.tolist())
    weights = np.exp(load(source).score(pairs()).logits / 2 + bias)
    expected = weights / weights.sum(1, keepdims=True)
    async with serve(out) as service:
        scored = await service.post("/v1/score", query=QUERY, titles=TITLES)
        found = [row["probabilities"] for row in scored["results"]]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        score = expected @ np.arange(5) / 4
        np.testing.assert_allclose([row["score"] for row in scored["results"]], score, atol=1e-5)
