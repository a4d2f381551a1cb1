"""transformers as the reference: its logits of a pair in any precision, also under a mask of heads."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from headroom.models.batch import pack
from headroom.models.checkpoint.config import parse_config
from headroom.models.checkpoint.families import FAMILIES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.selection import RowMasks

CPU = torch.device("cpu")


def random_pair(rng: np.random.Generator, length: int, vocab_size: int) -> EncodedPair:
    """A pair of `length` random tokens, cut into its two segments somewhere; none of them pads."""
    query = int(rng.integers(0, max(1, length - 3)))
    return EncodedPair(
        data=rng.integers(4, vocab_size, length).astype(np.int32).tobytes(),
        query_tokens=query,
        unknown_tokens=0,
        truncated=False,
    )


def random_weights(rng: np.random.Generator, rows: int, layers: int, heads: int) -> np.ndarray:
    """A different mask for every row: on, off and in between, with whole layers off now and then."""
    weights = rng.choice([0.0, 0.5, 1.0], (rows, layers, heads), p=[0.4, 0.1, 0.5]).astype(np.float32)
    weights[rng.random((rows, layers)) < 0.2] = 0
    return weights


OUTPUTS = ("attention.output.dense", "attention.out_lin", "attn.Wo", "self_attn.o_proj")
"""The modules of transformers that project the heads' outputs, by the end of their names."""


@contextmanager
def masked(model: PreTrainedModel, weights: np.ndarray | None) -> Iterator[None]:
    """Multiply each head's output by its weight before the projection. weights: (layers, heads)."""

    def scaled(inputs: tuple[Tensor, ...], heads: np.ndarray) -> tuple[Tensor, ...]:
        factor = torch.from_numpy(heads).repeat_interleave(inputs[0].shape[-1] // len(heads))
        return (inputs[0] * factor.to(inputs[0].dtype), *inputs[1:])

    outputs = [part for name, part in model.named_modules() if name.endswith(OUTPUTS)]
    if weights is None:
        weights = np.ones((len(outputs), 1), np.float32)
    hooks = [
        output.register_forward_pre_hook(lambda _, inputs, heads=heads: scaled(inputs, heads))
        for output, heads in zip(outputs, weights, strict=True)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def inputs_of(model: PreTrainedModel, pair: EncodedPair) -> dict[str, Tensor]:
    """Return what transformers takes for a pair: its ids, and token types where the model knows two."""
    inputs = {"input_ids": torch.tensor(pair.ids[None].astype(np.int64))}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        types = np.arange(len(pair)) >= pair.first_segment
        inputs["token_type_ids"] = torch.tensor(types[None].astype(np.int64))
    return inputs


def reference(
    model: PreTrainedModel, pairs: list[EncodedPair], dtype: torch.dtype, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return transformers' logits (n, labels) of each pair on its own, computed in `dtype`; float64.

    weights: of the heads, (n, layers, heads).
    """
    model = copy.deepcopy(model).to(dtype)
    rows = []
    for row, pair in enumerate(pairs):
        with torch.no_grad(), masked(model, None if weights is None else weights[row]):
            rows.append(model(**inputs_of(model, pair)).logits[0].double().numpy())
    return np.stack(rows)


def network_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32, **options: Any) -> Network:
    """Return our network with the weights of a transformers model of any family. options: of `build`."""
    config = parse_config(model.config.to_dict())
    tensors = FAMILIES[config.family].ours(model.state_dict(), config)
    return build(config, tensors, **({"device": CPU, "dtype": dtype} | options))


def logits_of(network: Network, pairs: list[EncodedPair], weights: np.ndarray | None = None) -> np.ndarray:
    """Return our logits (n, labels) of pairs packed into one batch."""
    batch = pack(pairs, device=CPU, deterministic=network.deterministic)
    return network.forward(batch, None if weights is None else RowMasks(weights)).numpy()
