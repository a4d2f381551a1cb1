"""Decoders that answer a prompt against transformers' own: their scores, cut, written and trained."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from headroom import HeadMask, UnsupportedCheckpoint
from headroom.models.compress.prune import prune
from tests.checkpoints import load, random_pairs
from tests.decoders import FAMILIES, SHORT, write_decoder
from tests.families import edit_config
from tests.models.reference import reference
from tests.models.training.test_tuning import short_run, tune, write_pairs

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model, with embeddings of its own for the answers or without."""
    tied = request.param != "qwen2"
    directory = tmp_path_factory.mktemp("decoder") / request.param
    return write_decoder(directory, request.param, 5, template=SHORT, tie_word_embeddings=tied)


def answers_of(checkpoint: Path) -> list[int]:
    vocabulary = json.loads((checkpoint / "tokenizer.json").read_text())
    ids = vocabulary["model"]["vocab"] | {one["content"]: one["id"] for one in vocabulary["added_tokens"]}
    return [
        ids[name] for name in {"qwen3": ("yes", "no"), "qwen2": ("1", "0")}.get(checkpoint.name, ("Yes",))
    ]


def test_the_score_is_the_probability_of_the_relevant_answer(checkpoint: Path) -> None:
    """As the models' authors compute it: log-softmax of both answers' logits at the last token."""
    clf, pairs = load(checkpoint), random_pairs(6)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    answers = answers_of(checkpoint)

    scores = clf.score(pairs)

    for row, pair in enumerate(clf.tokenizer.encode(pairs)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor(pair.ids[None].astype(np.int64))).logits[0, -1, answers]
        if len(answers) == 2:
            np.testing.assert_allclose(scores.score[row], logits.log_softmax(0)[0].exp(), atol=2e-5)
        np.testing.assert_allclose(scores.score[row], (logits[0] - logits[1:].sum()).sigmoid(), atol=2e-5)


def test_heads_and_layers_are_cut_out_with_the_keys_that_nobody_reads(
    checkpoint: Path, tmp_path: Path
) -> None:
    source, pairs = load(checkpoint), random_pairs(20)
    mask = HeadMask.parse("0.0,1.0-1,2.1-3", layers=3, heads=4)
    prune(checkpoint, tmp_path / "pruned", mask)
    pruned = load(tmp_path / "pruned")

    np.testing.assert_allclose(pruned.score(pairs).logits, source.score(pairs, mask).logits, atol=2e-5)
    np.testing.assert_allclose(pruned.score(pairs).score, source.score(pairs, mask).score, atol=2e-5)
    size = source.config.head_size
    tensors = load_file(tmp_path / "pruned" / "model.safetensors")
    widths = [tensors[f"model.layers.{layer}.self_attn.k_proj.weight"].shape[0] // size for layer in range(3)]
    assert widths == [2, 1, 1]  # two heads of queries share one of keys
    off = source.network.parameters - pruned.network.parameters
    assert source.network.parameters_off(mask) == off

    prune(checkpoint, tmp_path / "shorter", HeadMask.parse("skip:1", layers=3, heads=4))
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path / "shorter", dtype=torch.float32)
    shorter = load(tmp_path / "shorter")
    ours = shorter.score(pairs).logits
    np.testing.assert_allclose(
        reference(theirs.eval(), shorter.tokenizer.encode(pairs), torch.float32), ours, atol=2e-5
    )
    np.testing.assert_allclose(
        ours, source.score(pairs, HeadMask.parse("skip:1", layers=3, heads=4)).logits, atol=2e-5
    )


def test_a_language_model_without_the_answers_rows_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_config(tmp_path, headroom={"score_tokens": [9_999]})
    with pytest.raises(UnsupportedCheckpoint, match="no rows for the answers"):
        load(tmp_path)


def test_grades_are_learnt_from_a_language_model(checkpoint: Path, tmp_path: Path) -> None:
    """The prompt stays, the answers' rows become a classifier of the grades, and transformers loads it."""
    options = short_run(
        write_pairs(tmp_path / "pairs.csv", queries=12), checkpoint, tmp_path / "mine", epochs=2
    )
    metrics = tune(options)

    source, trained, pairs = load(checkpoint), load(options.out), random_pairs(3)
    assert metrics["loss"]["training"]["after"] < metrics["loss"]["training"]["before"]
    assert trained.grades == ("no", "maybe", "yes")
    encoded = trained.tokenizer.encode(pairs)
    for one, other in zip(encoded, source.tokenizer.encode(pairs), strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
    theirs = AutoModelForSequenceClassification.from_pretrained(options.out, dtype=torch.float32).eval()
    logits = reference(theirs, encoded, torch.float32)
    np.testing.assert_allclose(trained.score(pairs).logits, logits, atol=2e-5)
