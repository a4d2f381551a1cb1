"""Head masks against an independent oracle: transformers 4's own `head_mask=` (see tests/fixtures)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Bert
from tests.models.reference import CPU, logits_of

FIXTURES = Path(__file__).parent.parent / "fixtures"
INDEX: dict[str, Any] = json.loads((FIXTURES / "head_mask_oracle.json").read_text())["checkpoints"]
TENSORS = load_file(FIXTURES / "head_mask_oracle.safetensors")


def weights_of(name: str) -> dict[str, Tensor]:
    """A checkpoint's weights; a pruned one stores only what differs from its source."""
    source = INDEX[name].get("pruned_from")
    own = {
        key.removeprefix(f"{name}/weights/"): tensor
        for key, tensor in TENSORS.items()
        if key.startswith(f"{name}/weights/")
    }
    return weights_of(source) | own if source else own


def pairs_of(name: str) -> list[EncodedPair]:
    name = INDEX[name].get("pruned_from") or name
    ids, types = TENSORS[f"{name}/input_ids"].numpy(), TENSORS[f"{name}/token_type_ids"].numpy()
    return [
        EncodedPair(
            data=row[:length].astype(np.int32).tobytes(),
            query_tokens=int((kinds[:length] == 0).sum()) - 2,
            unknown_tokens=0,
            truncated=False,
        )
        for row, kinds, length in zip(ids, types, INDEX[name]["lengths"], strict=True)
    ]


def network_of(name: str, *, deterministic: bool) -> Bert:
    config = parse_config(INDEX[name]["config"])
    return Bert(config, weights_of(name), device=CPU, dtype=torch.float32, deterministic=deterministic)


CASES = [(name, mask) for name, entry in INDEX.items() for mask in entry["masks"]]


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize(("name", "mask"), CASES)
def test_masked_and_pruned_logits_are_those_of_transformers_4(
    name: str, mask: str, deterministic: bool
) -> None:
    network = network_of(name, deterministic=deterministic)
    weights = TENSORS.get(f"{name}/masks/{mask}")  # pruned checkpoints have only `none`
    exact = TENSORS[f"{name}/logits64/{mask}"].numpy()
    theirs = TENSORS[f"{name}/logits/{mask}"].numpy()

    for _ in range(2):  # the second time, dead heads are cut out
        ours = logits_of(network, pairs_of(name), None if weights is None else weights.numpy())
        assert np.abs(ours - exact).max() <= 2 * np.abs(theirs - exact).max() + 1e-6
