"""Every family computes what transformers computes, takes head masks, and is written back as its own kind."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from models import Classifier, HeadMask
from models.batch import pack
from models.checkpoint.config import parse_config
from models.checkpoint.families import FAMILIES
from models.checkpoint.fields import ACTIVATIONS
from models.checkpoint.pair_template import PairTemplate
from models.checkpoint.tensors import expected_shapes
from models.checkpoint.tokenizer import EncodedPair
from models.compress.prune import prune
from tests import families
from tests.families import ROBERTAS, model_of
from tests.models.reference import network_of

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
PAIRS = [("angle bracket", "steel angle, 12-gauge"), ("usb lamp", "wood deck screws"), ("tool", "")]
ROBERTA = PairTemplate((0,), (2, 2), (2,), two_segments=False)

every_family = pytest.mark.parametrize("family", families.FAMILIES)


def random_pairs(rng: np.random.Generator, family: str, lengths: list[int], vocab: int) -> list[EncodedPair]:
    template = {"template": ROBERTA} if family in ROBERTAS else {}
    return [
        EncodedPair(  # no padding token: RoBERTa counts positions by it
            rng.integers(4, vocab, length).astype(np.int32),
            int(rng.integers(0, length - 3)),
            0,
            False,
            **template,
        )
        for length in lengths
    ]


class HeadScaler:
    """Multiplies each head's context by its weight before the output projection: what a mask means."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.weights: np.ndarray | None = None  # (layers, heads)
        names = ("attention.output.dense", "attention.out_lin")
        outputs = [part for name, part in model.named_modules() if name.endswith(names)]
        assert len(outputs) == model.config.num_hidden_layers
        for layer, output in enumerate(outputs):
            output.register_forward_pre_hook(lambda _, inputs, layer=layer: self._scaled(inputs, layer))

    def _scaled(self, inputs: tuple[Tensor, ...], layer: int) -> tuple[Tensor, ...]:
        if self.weights is None:
            return inputs
        heads = torch.from_numpy(self.weights[layer]).to(inputs[0].dtype)
        return (inputs[0] * heads.repeat_interleave(inputs[0].shape[-1] // len(heads)), *inputs[1:])


def reference(
    model: PreTrainedModel,
    pairs: list[EncodedPair],
    dtype: torch.dtype,
    masks: Sequence[np.ndarray | None] = (None,),
) -> np.ndarray:
    """transformers' logits of each pair by itself under each mask: (masks, pairs, labels)."""
    model = copy.deepcopy(model).to(dtype)
    scaler = HeadScaler(model)
    logits = []
    for mask in masks:
        for number, pair in enumerate(pairs):
            scaler.weights = None if mask is None else mask[number]
            types = {}
            if getattr(model.config, "type_vocab_size", 0) > 1:
                row = [0] * pair.first_segment + [1] * (len(pair) - pair.first_segment)
                types["token_type_ids"] = torch.tensor([row])
            with torch.no_grad():
                output = model(input_ids=torch.tensor(pair.ids[None].astype(np.int64)), **types)
            logits.append(output.logits[0].numpy())
    return np.stack(logits).reshape(len(masks), len(pairs), -1)


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    heads = draw(st.integers(1, 5))
    return {
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "hidden_size": heads * draw(st.sampled_from([2, 4, 8, 16])),
        "intermediate_size": draw(st.integers(1, 40)),
        "num_labels": draw(st.integers(1, 6)),
        "vocab_size": draw(st.integers(9, 99)),
        "max_position_embeddings": draw(st.sampled_from([60, 64, 130])),
        "hidden_act": draw(st.sampled_from([*ACTIVATIONS])),
    }


def family_shapes(family: str) -> st.SearchStrategy[dict[str, Any]]:
    own: dict[str, Any] = {}
    if family in ROBERTAS:
        own = {"type_vocab_size": st.integers(1, 2), "pad_token_id": st.integers(0, 3)}
    if family == "electra":
        own = {"embedding_size": st.sampled_from([3, 8, 16, 32])}
    if family == "deberta-v2":
        own = {
            "position_buckets": st.sampled_from([-1, 4, 9, 32]),
            "max_relative_positions": st.sampled_from([-1, 30]),
            "pos_att_type": st.sampled_from(["p2c|c2p", ["c2p"], ["p2c"]]),
            "share_att_key": st.booleans(),
            "norm_rel_ebd": st.sampled_from(["layer_norm", "none"]),
            "position_biased_input": st.booleans(),
            "type_vocab_size": st.sampled_from([0, 2]),
            "pooler_hidden_act": st.sampled_from(["gelu", "tanh"]),
        }
    return st.builds(lambda shape, more: shape | more, shapes(), st.fixed_dictionaries(own))


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
@pytest.mark.parametrize("family", families.FAMILIES[1:])  # tests/models/test_bert.py has BERT
def test_logits_and_masked_logits_are_as_exact_as_transformers_own(
    family: str, data: st.DataObject, seed: int
) -> None:
    shape = data.draw(family_shapes(family))
    lengths = data.draw(st.lists(st.integers(4, 60), min_size=1, max_size=3))
    model = model_of(family, seed, **shape)
    rng = np.random.default_rng(seed)
    pairs = random_pairs(rng, family, lengths, shape["vocab_size"])
    masks = rng.choice(
        [0.0, 0.5, 1.0], (len(pairs), shape["num_hidden_layers"], shape["num_attention_heads"])
    )
    network, batch = network_of(model), pack(pairs, device=CPU)

    cases = (None, masks.astype(np.float32))
    references = [reference(model, pairs, dtype, cases) for dtype in (torch.float64, torch.float32)]
    for weights, exact, theirs in zip(cases, *references, strict=True):
        ours = network.forward(batch, weights).numpy()
        rounding = (
            16 * np.finfo(np.float32).eps * max(1.0, np.abs(exact).max())
        )  # theirs may be exact by luck
        assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + max(1e-6, rounding)


def load(directory: Path, **options: Any) -> Classifier:
    return Classifier.load(directory, "cpu", "float32", **options)


@every_family
def test_the_tensors_are_written_back_as_they_were(checkpoints: dict[str, Path], family: str) -> None:
    whole = load_file(checkpoints[family] / "model.safetensors")
    config = parse_config(json.loads((checkpoints[family] / "config.json").read_text()))
    entry = FAMILIES[config.family]
    ours = entry.ours(whole, config)

    theirs = entry.theirs({name: ours[name] for name, _ in expected_shapes(config)}, config)

    assert theirs.keys() == whole.keys()
    for name, tensor in whole.items():
        skipped = config.skipped_positions if "position_embeddings" in name else 0
        torch.testing.assert_close(theirs[name][skipped:], tensor[skipped:], rtol=0, atol=0)


@every_family
def test_the_window_is_what_the_position_table_holds_for_tokens(
    checkpoints: dict[str, Path], family: str
) -> None:
    clf = load(checkpoints[family])
    long = [("angle " * 80, "bracket " * 80)]

    assert clf.max_tokens == 64
    assert len(clf.tokenizer.encode(long)[0]) == 64
    assert np.isfinite(clf.score(long).logits).all()


@every_family
def test_a_checkpoint_pruned_of_nothing_loads_in_transformers_and_a_pruned_one_in_ours(
    checkpoints: dict[str, Path], tmp_path: Path, family: str
) -> None:
    source = checkpoints[family]
    weights = np.ones((3, 4), np.float32)
    weights[1, 2] = 0.5
    prune(source, tmp_path / "scaled", HeadMask.from_matrix(weights))
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "scaled", dtype=torch.float32
    ).eval()
    encoded = load(source).tokenizer.encode(PAIRS)
    ours = load(tmp_path / "scaled").score(PAIRS).logits
    np.testing.assert_allclose(reference(model, encoded, torch.float32)[0], ours, atol=1e-5)

    mask = HeadMask.parse("0.1,1.*", layers=3, heads=4)
    prune(source, tmp_path / "pruned", mask)
    pruned, masked = load(tmp_path / "pruned"), load(source).score(PAIRS, mask)
    np.testing.assert_allclose(pruned.score(PAIRS).logits, masked.logits, atol=1e-5)
    prefixes = {name.split(".")[0] for name in load_file(tmp_path / "pruned" / "model.safetensors")}
    assert prefixes == {name.split(".")[0] for name in load_file(source / "model.safetensors")}
