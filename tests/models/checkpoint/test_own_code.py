"""Checkpoints that bring code of their own compute what their papers say, without that code."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from headroom.models.batch import pack
from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.families import FAMILIES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.networks import build
from headroom.models.selection import RowMasks
from tests import own_code
from tests.checkpoints import load
from tests.models.reference import CPU, random_pair, random_weights
from tests.own_code import config_of, tensors_of

pytestmark = pytest.mark.usefixtures("one_thread")

every_family = pytest.mark.parametrize("family", own_code.FAMILIES)
PAIRS = [("angle bracket", "steel angle, 12-gauge"), ("usb lamp", "wood deck screws"), ("tool", "")]


def family_shapes(family: str) -> st.SearchStrategy[dict[str, Any]]:
    own: dict[str, Any] = {}
    if family == "new":
        scalings = [None, {"type": "ntk", "factor": 8.0}, {"type": "ntk", "factor": 3.0}]
        own = {"rope_scaling": st.sampled_from(scalings), "type_vocab_size": st.integers(0, 2)}
    if family == "jina-bert":
        own = {"feed_forward_type": st.sampled_from(["geglu", "reglu"])}
    if family == "xlm-roberta-flash":
        own = {"pad_token_id": st.integers(0, 3)}
    size = {"heads": st.integers(1, 7), "head_size": st.sampled_from([2, 4, 16, 32])}
    own |= {"num_hidden_layers": st.integers(1, 3), "intermediate_size": st.integers(1, 40)}

    def shape(heads: int, head_size: int, **rest: Any) -> dict[str, Any]:
        return {"num_attention_heads": heads, "hidden_size": heads * head_size, **rest}

    return st.builds(shape, **size, **own)


def pairs_of(rng: np.random.Generator, lengths: list[int]) -> list[EncodedPair]:
    return [random_pair(rng, length, 400) for length in lengths]


@settings(max_examples=8, deadline=None)
@given(data=st.data(), seed=st.integers(0, 99))
@every_family
def test_logits_are_those_of_the_published_description(family: str, data: st.DataObject, seed: int) -> None:
    config = config_of(family, max_position_embeddings=512, **data.draw(family_shapes(family)))
    tensors, rng = tensors_of(family, config, seed), np.random.default_rng(seed)
    pairs = pairs_of(rng, data.draw(st.lists(st.integers(4, 90), min_size=1, max_size=4)))
    shape = parse_config(config)
    masks = random_weights(rng, len(pairs), shape.num_layers, shape.num_heads)
    masks[-1] = 1
    exact = np.stack(
        [own_code.logits_of(family, config, tensors, *one) for one in zip(pairs, masks, strict=True)]
    )
    bound = 2e-5 * max(1.0, np.abs(exact).max())
    for deterministic in (False, True):
        network = build(
            shape,
            FAMILIES[shape.family].ours(tensors, shape),
            device=CPU,
            dtype=torch.float32,
            deterministic=deterministic,
        )
        batch = pack(pairs, device=CPU, deterministic=deterministic)
        assert np.abs(network.forward(batch, RowMasks(masks)).numpy() - exact).max() <= bound


@every_family
def test_a_directory_scores_as_its_files_say(checkpoints: dict[str, Path], family: str) -> None:
    clf = load(checkpoints[family])
    config = json.loads((checkpoints[family] / "config.json").read_text())
    tensors = load_file(checkpoints[family] / "model.safetensors")
    pairs = [*PAIRS, ("angle " * 80, "bracket " * 80)]
    encoded = clf.tokenizer.encode(pairs)
    exact = [own_code.logits_of(family, config, tensors, pair, np.ones((3, 4))) for pair in encoded]
    np.testing.assert_allclose(clf.score(pairs).logits, exact, atol=2e-5)
