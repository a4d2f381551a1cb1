"""The attention of a classifier's heads in one pair."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from headroom.models.arrays import Floats32
from headroom.models.frame import frame

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.picture import Picture

COLUMNS = 4
"""Heads that `Attention.plot` draws side by side."""

NAMED_TOKENS = 40
"""If a pair has more tokens than this, `Attention.plot` does not write them beside the maps."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attention:
    """The attention probabilities of some heads in a pair of n tokens.

    tokens: (n,) as the vocabulary writes them, special tokens included. texts: (n,) as people read them, with
    a space before the first one of a word; of tokens that share a character, the first has it and the others
    have none. special: the positions of the tokens that belong to neither text. segments: (n,) 0 up to the
    title, 1 from there. heads: (layer, head) of each map. probabilities: (heads, n, n) float32, from the
    token of a row to that of a column; a row sums to 1, or to the head's weight under a mask.

    >>> attention = clf.attention("angle bracket", "Simpson 12-Gauge Angle", heads="2.3")
    >>> attention.heads
    ((2, 3),)
    >>> attention.probabilities.shape[1] == len(attention.tokens)
    True
    """

    query: str
    title: str
    tokens: tuple[str, ...]
    texts: tuple[str, ...]
    special: tuple[int, ...]
    segments: tuple[int, ...]
    heads: tuple[tuple[int, int], ...]
    probabilities: Floats32

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row per head and pair of tokens.

        Columns: layer, head, from, to (positions), from_token, to_token, probability.
        Raises ModuleNotFoundError without pandas.
        """
        count = len(self.tokens)
        layers, heads = np.transpose(self.heads)
        of_map, source, target = np.indices(self.probabilities.shape).reshape(3, -1)
        tokens = np.array(self.tokens, dtype=object)
        assert self.probabilities.shape == (len(self.heads), count, count)
        return frame(
            {
                "layer": layers[of_map],
                "head": heads[of_map],
                "from": source,
                "to": target,
                "from_token": tokens[source],
                "to_token": tokens[target],
                "probability": self.probabilities.ravel(),
            }
        )

    def plot(self) -> Picture:
        """Return a matplotlib figure with a map of each head: rows attend to columns, darker is more."""
        from headroom.models.picture import Picture

        columns = min(COLUMNS, len(self.heads))
        rows = ceil(len(self.heads) / columns)
        size = max(2.6, min(7.0, 0.24 * len(self.tokens) + 1.0))
        picture = Picture(figsize=(size * columns, size * rows), layout="constrained")
        panels = picture.subplots(rows, columns, squeeze=False).ravel()
        positions = range(len(self.tokens)) if len(self.tokens) <= NAMED_TOKENS else ()
        names = [self.texts[position].strip() for position in positions]
        for panel in panels[len(self.heads) :]:
            panel.set_axis_off()
        for panel, (layer, head), probabilities in zip(panels, self.heads, self.probabilities, strict=False):
            panel.imshow(probabilities, cmap="Blues", vmin=0, vmax=max(float(probabilities.max()), 1e-9))
            panel.set_title(f"head {layer}.{head}", fontsize=9)
            panel.set_xticks(positions, names, rotation=90, fontsize=7)
            panel.set_yticks(positions, names, fontsize=7)
        return picture

    def __repr__(self) -> str:
        heads = ", ".join(f"{layer}.{head}" for layer, head in self.heads[:8])
        heads += ", …" if len(self.heads) > 8 else ""
        number = f"{len(self.heads)} {'head' if len(self.heads) == 1 else 'heads'}"
        texts = " ".join(text for text in map(str.strip, self.texts) if text)
        return f"Attention of {number} ({heads}) over {len(self.tokens)} tokens: {texts}"
