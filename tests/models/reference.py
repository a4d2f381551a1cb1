"""transformers as the reference: its logits for a pair in float32 and float64."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from transformers import BertForSequenceClassification, PreTrainedModel

from models.batch import pack
from models.checkpoint.config import parse_config
from models.checkpoint.families import FAMILIES
from models.checkpoint.tokenizer import EncodedPair
from models.network import Network
from models.networks import build

CPU = torch.device("cpu")


def random_pair(rng: np.random.Generator, length: int, vocab_size: int) -> EncodedPair:
    """A pair of `length` random tokens, cut into its two segments somewhere."""
    query = int(rng.integers(0, max(1, length - 2)))
    return EncodedPair(
        ids=rng.integers(0, vocab_size, length).astype(np.int32),
        query_tokens=query,
        unknown_tokens=0,
        truncated=False,
    )


def random_weights(rng: np.random.Generator, rows: int, layers: int, heads: int) -> np.ndarray:
    """A different mask for every row: on, off and in between, with whole layers off now and then."""
    weights = rng.choice([0.0, 0.5, 1.0], (rows, layers, heads), p=[0.4, 0.1, 0.5]).astype(np.float32)
    weights[rng.random((rows, layers)) < 0.2] = 0
    return weights


def reference_logits(
    model: BertForSequenceClassification, pairs: list[EncodedPair], dtype: torch.dtype
) -> np.ndarray:
    """Logits (n, labels) of each pair on its own, in `dtype`."""
    model = copy.deepcopy(model).to(dtype)
    rows = []
    for pair in pairs:
        segments = [0] * pair.first_segment + [1] * (len(pair) - pair.first_segment)
        with torch.no_grad():
            output = model(
                input_ids=torch.tensor(pair.ids[None].astype(np.int64)),
                token_type_ids=torch.tensor([segments[: len(pair)]]),
            )
        rows.append(output.logits[0].to(torch.promote_types(dtype, torch.float32)).numpy())
    return np.stack(rows)


def network_of(model: PreTrainedModel, dtype: torch.dtype = torch.float32, **options: Any) -> Network:
    """Return our network with the weights of a transformers model of any family. options: of `build`."""
    config = parse_config(model.config.to_dict())
    tensors = FAMILIES[config.family].ours(model.state_dict(), config)
    return build(config, tensors, **({"device": CPU, "dtype": dtype} | options))


def logits_of(network: Network, pairs: list[EncodedPair], weights: np.ndarray | None = None) -> np.ndarray:
    """Return our logits (n, labels) of pairs packed into one batch."""
    batch = pack(pairs, device=CPU, deterministic=network.deterministic)
    return network.forward(batch, weights).numpy()
