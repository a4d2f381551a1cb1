"""Computes what leaves each layer at some of the tokens of a study's pairs."""

from collections.abc import Sequence

import numpy as np
import torch

from headroom.models.arrays import Floats32, Ints
from headroom.models.batch import batches_by_length, pack
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.selection import RowMasks
from headroom.models.study.runner import BATCH_TOKENS, Matrix
from headroom.models.study.study import Study


def token_states(
    study: Study, encoded: Sequence[EncodedPair], tokens: Ints, mask: Matrix | None = None
) -> list[Floats32]:
    """Return what enters the first layer and what leaves each one at some tokens, (tokens, D) each.

    tokens: ascending, numbered over all pairs. mask: head weights (layers, heads); None: all heads are on.
    The progress advances by one for each pair.
    """
    network = study.classifier.network
    lengths = [len(pair) for pair in encoded]
    starts = np.cumsum([0, *lengths])
    selection = list(network.selector.select(None if mask is None else RowMasks(mask)))
    of_batches = []
    numbers = []
    with torch.inference_mode():
        for rows in batches_by_length(lengths, BATCH_TOKENS):
            batch = pack([encoded[row] for row in rows], device=network.device, fill=False)
            packed = [rows[index] for index in batch.order]
            token_of = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in packed])
            chosen = np.flatnonzero(np.isin(token_of, tokens))
            numbers.append(token_of[chosen])
            index = torch.from_numpy(chosen).to(network.device)
            states = network.hidden_states(batch, selection, every_token=True)
            of_batches.append([state[index].float().numpy(force=True) for state in states])
            study.progress.advance(len(rows))
    order = np.argsort(np.concatenate(numbers))
    return [np.concatenate(of_layer)[order] for of_layer in zip(*of_batches, strict=True)]
