"""Every family computes what transformers computes, takes head masks, and is written back as its own kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

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
from tests.models.reference import CPU, inputs_of, network_of, reference
from tests.modernberts import random_modernbert

pytestmark = pytest.mark.usefixtures("one_thread")

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

    for weights in (None, masks.astype(np.float32)):
        exact, theirs = (reference(model, pairs, dtype, weights) for dtype in (torch.float64, torch.float32))
        ours = network.forward(batch, weights).numpy()
        # transformers' own may be exact by luck
        rounding = 16 * np.finfo(np.float32).eps * max(1.0, np.abs(exact).max())
        assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + max(1e-6, rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", [*families.FAMILIES, "modernbert"])
def test_attention_maps_are_transformers_attentions(family: str, dtype: torch.dtype) -> None:
    model = random_modernbert(8) if family == "modernbert" else model_of(family, 8)
    model.set_attn_implementation("eager")
    (pair,) = random_pairs(np.random.default_rng(8), family, [37], 300)  # beyond ModernBERT's window of 8
    with torch.no_grad():
        theirs = model(**inputs_of(model, pair), output_attentions=True).attentions
    heads = [(2, 3), (0, 1), (1, 0)]

    maps = network_of(model, dtype).attention_maps(pack([pair], device=CPU), heads)

    for ours, (layer, head) in zip(maps, heads, strict=True):
        expected = theirs[layer][0, head].numpy()
        np.testing.assert_allclose(ours, expected, atol=1e-5 if dtype == torch.float32 else 0.1)


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
    prune(source, tmp_path / "scaled", HeadMask(weights))
    model = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "scaled", dtype=torch.float32
    ).eval()
    encoded = load(source).tokenizer.encode(PAIRS)
    ours = load(tmp_path / "scaled").score(PAIRS).logits
    np.testing.assert_allclose(reference(model, encoded, torch.float32), ours, atol=1e-5)

    mask = HeadMask.parse("0.1,1.*", layers=3, heads=4)
    prune(source, tmp_path / "pruned", mask)
    pruned, masked = load(tmp_path / "pruned"), load(source).score(PAIRS, mask)
    np.testing.assert_allclose(pruned.score(PAIRS).logits, masked.logits, atol=1e-5)
    prefixes = {name.split(".")[0] for name in load_file(tmp_path / "pruned" / "model.safetensors")}
    assert prefixes == {name.split(".")[0] for name in load_file(source / "model.safetensors")}
