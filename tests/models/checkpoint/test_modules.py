"""Classifiers in sentence-transformers modules load whole, or are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headroom import Classifier, HeadMask, UnsupportedCheckpoint
from headroom.models.compress.prune import prune
from tests.checkpoints import WORDS
from tests.families import edit_json
from tests.modernberts import write_ettin

PAIRS = [("angle bracket", "Simpson Strong-Tie 12-Gauge Angle"), ("usb lamp", " ".join(WORDS)), ("a", "b c")]


def by_modules(
    directory: Path, model: Any, norm_bias: torch.Tensor, activation: Any, *, mean: bool
) -> np.ndarray:
    """Scores as sentence-transformers computes them: the encoder, then module by module."""
    scores = []
    tokenizer = Classifier.load(directory, "cpu", "float32").tokenizer
    for pair in tokenizer.encode(PAIRS):
        with torch.no_grad():
            states = model.model(input_ids=torch.tensor(pair.ids[None].astype(np.int64))).last_hidden_state[0]
            dense = activation(model.head.dense(states.mean(0) if mean else states[0]))
            normed = torch.nn.functional.layer_norm(dense, (32,), model.head.norm.weight, norm_bias)
            scores.append(model.classifier(normed).item())
    return np.array(scores)


@pytest.mark.parametrize(
    ("dense", "activation", "pooling"),
    [
        ("torch.nn.modules.activation.GELU", torch.nn.functional.gelu, None),
        ("torch.nn.modules.activation.Tanh", torch.tanh, {"pooling_mode": "mean"}),
        (
            "torch.nn.modules.activation.GELU",
            torch.nn.functional.gelu,
            {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True},
        ),
    ],
)
def test_an_ettin_reranker_scores_as_sentence_transformers_does(
    tmp_path: Path,
    dense: str,
    activation: Callable[[torch.Tensor], torch.Tensor],
    pooling: dict[str, Any] | None,
) -> None:
    directory, model, norm_bias = write_ettin(tmp_path / "ettin", dense=dense, pooling=pooling)
    expected = by_modules(directory, model, norm_bias, activation, mean=pooling is not None)

    clf = Classifier.load(directory, "cpu", "float32")
    scores = clf.score(PAIRS)

    assert clf.grades == ()
    assert clf.config.score_activation == "identity"
    np.testing.assert_allclose(scores.logits[:, 0], expected, atol=2e-5)
    mask = HeadMask.parse("1.*,2.0", layers=4, heads=4)
    prune(directory, tmp_path / "pruned", mask)  # one file, without modules
    pruned = Classifier.load(tmp_path / "pruned", "cpu", "float32")
    assert not (tmp_path / "pruned" / "modules.json").exists()
    assert pruned.config.score_activation == "identity"
    np.testing.assert_allclose(pruned.score(PAIRS).logits, clf.score(PAIRS, mask).logits, atol=2e-5)


def edit_modules(directory: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    modules = json.loads((directory / "modules.json").read_text())
    change(modules)
    (directory / "modules.json").write_text(json.dumps(modules))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: edit_json(d / "1_Pooling/config.json", pooling_mode="max"), r"pooling_mode is \['max'\]"),
        (lambda d: edit_json(d / "2_Dense/config.json", use_residual=True), "use_residual is set"),
        (
            lambda d: edit_json(
                d / "config_sentence_transformers.json", prompts={"q": "find: "}, default_prompt_name="q"
            ),
            "would need the prompt 'find: '",
        ),
        (
            lambda d: edit_modules(d, lambda m: m.pop(3)),
            "the modules are Transformer → Pooling → Dense → Dense; supported: ",
        ),
        (
            lambda d: (d / "3_LayerNorm/model.safetensors").unlink(),
            "tensor 3_LayerNorm/norm.weight is missing",
        ),
        (lambda d: edit_modules(d, lambda m: m[2].update(path="../../3_Dense")), "3_Dense.* does not exist"),
    ],
)
def test_other_modules_are_refused_by_name(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    directory, *_ = write_ettin(tmp_path / "ettin")
    damage(directory)

    with pytest.raises(UnsupportedCheckpoint, match=message):
        Classifier.load(directory, "cpu", "float32")
