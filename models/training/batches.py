"""Puts pairs of token lists into padded batches of about equal cost."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from models.training.vocabulary import CLS, PAD, SEP

Ids = Sequence[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded sequences and what to learn from them.

    ids, segments, mask: (B, n) int64; mask is 1 on tokens and 0 on padding.
    labels: for graded pairs target distributions, (B, grades) float32; for masked words their ids, (B, n)
    int64, -100 where no word is masked.
    weights: (B,) float32.
    groups: (B,) int64, the same number for pairs of one query that are ranked; None if none are.
    """

    ids: Tensor
    segments: Tensor
    mask: Tensor
    labels: Tensor
    weights: Tensor
    groups: Tensor | None = None

    def to(self, device: torch.device) -> "Batch":
        """Return the batch on a device; the same object if it is there already."""
        if self.ids.device == device:
            return self
        present = {part.name: getattr(self, part.name) for part in fields(self)}
        return Batch(**{name: part.to(device) for name, part in present.items() if part is not None})


def logits_of_batch(model: nn.Module, batch: Batch) -> Tensor:
    """Return what a classifier of transformers computes of a batch: (B, labels).

    Only a model with several token types gets any: DistilBERT takes none, and RoBERTa's one type is 0.
    """
    types = {}
    if getattr(model.config, "type_vocab_size", 0) > 1:
        types["token_type_ids"] = batch.segments
    logits: Tensor = model(input_ids=batch.ids, attention_mask=batch.mask, **types).logits
    return logits


def tokenized(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text without special tokens."""
    return [
        list(encoding.ids) for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
    ]


def fitted(left: Ids, right: Ids, max_tokens: int) -> tuple[Ids, Ids]:
    """Cut a pair, the longer part first, so that it fits `max_tokens` with its three special tokens."""
    room = max_tokens - 3
    if len(left) + len(right) <= room:
        return left, right
    keep = max(min(len(left), room - len(right)), min(len(left), room // 2))
    return left[:keep], right[: room - keep]


def grouped(
    lengths: Sequence[int], *, batch_tokens: int, sizes: Sequence[int] | None = None
) -> list[list[int]]:
    """Group sequences of similar length, so that a group's padded size is at most `batch_tokens`.

    sizes: if each item is several sequences that stay together, their number; `lengths` are of the longest.
    Returns the indices of each group. An item longer than `batch_tokens` is a group of its own.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    held = 0
    for place in order:  # ascending, so the newest is the longest of its group
        size = 1 if sizes is None else sizes[place]
        if groups and lengths[place] * (held + size) <= batch_tokens:
            groups[-1].append(place)
            held += size
        else:
            groups.append([place])
            held = size
    return groups


def padded(pairs: Sequence[tuple[Ids, Ids]]) -> tuple[Tensor, Tensor, Tensor]:
    """Return ids, segments and mask, each (B, n) int64, of [CLS] left [SEP] right [SEP]."""
    longest = max(len(left) + len(right) for left, right in pairs) + 3
    ids = np.full((len(pairs), longest), PAD)
    segments, mask = np.zeros_like(ids), np.zeros_like(ids)
    for row, (left, right) in enumerate(pairs):
        tokens = [CLS, *left, SEP, *right, SEP]
        ids[row, : len(tokens)] = tokens
        segments[row, len(left) + 2 : len(tokens)] = 1
        mask[row, : len(tokens)] = 1
    return torch.from_numpy(ids), torch.from_numpy(segments), torch.from_numpy(mask)
