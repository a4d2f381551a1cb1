"""Decoders against transformers' own: under masks, in batches, in each number format, cut and written."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from models import Classifier, HeadMask, UnsupportedCheckpoint
from models.batch import pack
from models.checkpoint.config import parse_config
from models.compress.prune import prune
from models.compress.quantize import quantize
from models.ops import kernel_library
from models.study import kinds
from models.study.gradients import DifferentiableNetwork
from models.training.tuning import tune
from tests.checkpoints import WORDS
from tests.decoders import FAMILIES, SHORT, model_of, write_decoder
from tests.families import edit_config
from tests.models.reference import CPU, logits_of, network_of, random_pair, random_weights, reference
from tests.models.study.data import judged, study
from tests.models.training.test_tuning import short_run, write_pairs

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = (1, 17, 33, 90, 130, 300)
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("qwen3", {}),
    "qwen3 with biases and YaRN": (
        "qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
    ),
    "qwen3 of odd heads": ("qwen3", {"head_dim": 10, "num_key_value_heads": 4, "num_labels": 3}),
    "qwen2": ("qwen2", {"hidden_size": 64}),
    "qwen2 with angles stretched": (
        "qwen2",
        {
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 1e6, "factor": 2.0},
        },
    ),
    "gemma": ("gemma", {}),
    "gemma of one head of keys": ("gemma", {"num_key_value_heads": 1, "head_dim": 32, "hidden_act": "gelu"}),
}

every_shape = pytest.mark.parametrize(("family", "shape"), SHAPES.values(), ids=SHAPES.keys())
every_family = pytest.mark.parametrize("family", FAMILIES)


@every_shape
def test_logits_under_masks_are_as_exact_as_transformers_own(
    family: str, shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one batch, each with a mask of its own; with our kernels and without them."""
    model = model_of(family, 3, **shape)
    rng = np.random.default_rng(0)
    pairs = [random_pair(rng, length, 499) for length in LENGTHS]
    for pair in pairs:
        pair.ids += 1  # 0 pads, and transformers looks for it
    masks = random_weights(rng, len(pairs), 3, 4)

    for weights in (None, masks):
        exact, theirs = (reference(model, pairs, dtype, weights) for dtype in (torch.float64, torch.float32))
        scale = max(1.0, np.abs(exact).max())
        bound = min(2 * np.abs(theirs - exact).max() + 4e-6 * scale, 2e-5 * scale)
        assert np.abs(logits_of(network_of(model), pairs, weights) - exact).max() <= bound
        half = logits_of(network_of(model, torch.bfloat16), pairs, weights)
        assert np.abs(half - exact).max() <= 0.1 * np.abs(exact).max()
        with monkeypatch.context() as without:
            without.setattr(kernel_library, "best", lambda: None)
            assert np.abs(logits_of(network_of(model), pairs, weights) - exact).max() <= bound


@every_family
def test_deterministic_scores_are_the_same_bits_alone_and_in_any_batch(family: str) -> None:
    rng = np.random.default_rng(1)
    network = network_of(model_of(family, 1), deterministic=True)
    pairs = [random_pair(rng, length, 400) for length in (5, 33, 33, 90)]
    weights = random_weights(rng, len(pairs), 3, 4)

    together = logits_of(network, pairs, weights)
    alone = np.concatenate([logits_of(network, [p], w[None]) for p, w in zip(pairs, weights, strict=True)])

    np.testing.assert_array_equal(together, alone)


@every_family
def test_attention_maps_are_transformers_attentions(family: str) -> None:
    model = model_of(family, 8)
    model.set_attn_implementation("eager")
    pair = random_pair(np.random.default_rng(8), 37, 300)
    with torch.no_grad():
        theirs = model(input_ids=torch.from_numpy(pair.ids[None]).long(), output_attentions=True).attentions
    heads = [(2, 3), (0, 1), (1, 0)]

    maps = network_of(model).attention_maps(pack([pair], device=CPU), heads)

    for ours, (layer, head) in zip(maps, heads, strict=True):
        np.testing.assert_allclose(ours, theirs[layer][0, head].numpy(), atol=1e-5)


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model, with embeddings of its own for the answers or without."""
    tied = request.param != "qwen2"
    directory = tmp_path_factory.mktemp("decoder") / request.param
    return write_decoder(directory, request.param, 5, template=SHORT, tie_word_embeddings=tied)


def load(directory: Path, dtype: str = "float32") -> Classifier:
    return Classifier.load(directory, "cpu", dtype)


def random_pairs(count: int) -> list[tuple[str, str]]:
    rng = np.random.default_rng(0)
    return [(" ".join(rng.choice(WORDS, 2)) + "?", " ".join(rng.choice(WORDS, 6))) for _ in range(count)]


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
            logits = model(input_ids=torch.from_numpy(pair.ids[None]).long()).logits[0, -1, answers]
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


def test_an_int8_checkpoint_scores_as_its_source_and_can_be_pruned(checkpoint: Path, tmp_path: Path) -> None:
    source, pairs = load(checkpoint), random_pairs(100)
    mask = HeadMask.parse("0.1,1.0-1", layers=3, heads=4)
    quantize(checkpoint, tmp_path / "int8", source.tokenizer.encode(pairs))
    prune(tmp_path / "int8", tmp_path / "pruned", mask)

    for name, applied, exact in (("int8", None, None), ("int8", mask, mask), ("pruned", None, mask)):
        clf = load(tmp_path / name)
        assert clf.network.number_format == "int8"
        expected = source.score(pairs, exact).logits
        difference = clf.score(pairs, applied).logits - expected
        assert np.sqrt(np.square(difference).mean()) < 0.25 * expected.std(0).mean()


@every_family
def test_roles_and_gradients_are_found(family: str, tmp_path: Path) -> None:
    graded = write_decoder(tmp_path / family, family, causal=False, template=SHORT, num_labels=5)
    clf = load(graded)
    result = kinds.run("roles", study(clf, tmp_path, judged(queries=8)))

    assert {"term_match", "next_word", "previous_word", "special"} <= result.json["roles"].keys()
    encoded = clf.tokenizer.encode(random_pairs(6))
    gradients = DifferentiableNetwork(clf).gradients(encoded, np.arange(6) % 5)
    assert np.abs(gradients.heads).max() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["JinaForRanking"]}, "listwise"),
        ({"architectures": ["Qwen3Model"]}, "architectures is"),
        ({"use_sliding_window": True}, "sliding windows"),
        (
            {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "rope_parameters": None},
            "rope_scaling is",
        ),
        ({"num_key_value_heads": 3}, "num_key_value_heads is 3"),
        ({"headroom": {"score_tokens": [-1]}}, "score_tokens is"),
    ],
)
def test_other_decoders_are_refused_by_name(change: dict[str, Any], message: str) -> None:
    config = model_of("qwen3").config.to_dict()
    with pytest.raises(UnsupportedCheckpoint, match=message):
        parse_config(config | change)


def test_a_language_model_without_the_answers_rows_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    edit_config(tmp_path, headroom={"score_tokens": [9_999]})
    with pytest.raises(UnsupportedCheckpoint, match="no rows for the answers"):
        load(tmp_path)


def test_grades_are_learnt_from_a_language_model(checkpoint: Path, tmp_path: Path) -> None:
    """The prompt stays, the answers' rows become a classifier of the grades, and transformers loads it."""
    whole = write_pairs(tmp_path / "all.csv").read_text().splitlines(keepends=True)
    (tmp_path / "pairs.csv").write_text("".join(whole[:121]))
    options = short_run(tmp_path / "pairs.csv", checkpoint, tmp_path / "mine", epochs=3, batch_tokens=2048)
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
