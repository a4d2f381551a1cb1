"""The time of a layer by heads kept, feed-forward units kept and tokens in the batch (`models.study.timing`
measures it)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.classifier import Classifier
from models.errors import ModelError, reading_problem
from models.files import read_text

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LatencyTable:
    """Seconds on one thread.

    heads, units, tokens: the numbers that were measured, ascending. attention: (tokens, heads), the half with
    attention and its norm; attention_first: the same for the network's last layer, which continues with first
    tokens only. feed_forward: (sizes, units), the other half, of `rows` tokens each. other: (tokens,),
    embeddings and classifier. sequence_tokens: the length of each sequence. checked: (heads, units, tokens,
    seconds measured) of whole layers. about: the model and the machine.
    """

    heads: tuple[int, ...]
    units: tuple[int, ...]
    tokens: tuple[int, ...]
    rows: tuple[int, ...]
    attention: Floats
    attention_first: Floats
    feed_forward: Floats
    other: Floats
    sequence_tokens: int
    reads_first_tokens: bool
    checked: tuple[tuple[int, int, int, float], ...]
    about: dict[str, Any]

    def layer(self, heads: int, units: int, tokens: int, *, last: bool = False) -> float:
        """Return the seconds of one layer. last: it is the network's last."""
        return self.attention_half(heads, tokens, last=last) + self.feed_forward_half(
            units, tokens, last=last
        )

    def attention_half(self, heads: int, tokens: int, *, last: bool = False) -> float:
        """Return the seconds of the half with attention."""
        first = last and self.reads_first_tokens
        table = self.attention_first if first else self.attention
        return _between(self.tokens, self.heads, table, tokens, heads)

    def feed_forward_half(self, units: int, tokens: int, *, last: bool = False) -> float:
        """Return the seconds of the feed-forward half."""
        rows = tokens / self.sequence_tokens if last and self.reads_first_tokens else tokens
        return _between(self.rows, self.units, self.feed_forward, rows, units)

    def network(self, layers: Sequence[tuple[int, int]], tokens: int) -> float:
        """Return the seconds of a batch. layers: (heads, units) of each layer that stays, lowest first."""
        parts = [
            self.layer(heads, units, tokens, last=number == len(layers) - 1)
            for number, (heads, units) in enumerate(layers)
        ]
        return _between(self.tokens, (0,), self.other[:, None], tokens, 0) + sum(parts)

    @property
    def largest_error(self) -> float:
        """Return the largest relative difference between a whole layer as measured and the table's sum."""
        return max((abs(self.layer(h, u, t) / seconds - 1) for h, u, t, seconds in self.checked), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return plain values from which `from_json` makes the table again."""
        plain = asdict(self)
        return {
            key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in plain.items()
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> LatencyTable:
        """Return the table of `to_json`. Raises KeyError, TypeError or ValueError for anything else."""
        heads, units, tokens, rows = (
            tuple(int(count) for count in content[name]) for name in ("heads", "units", "tokens", "rows")
        )

        def seconds(name: str, *shape: int) -> Floats:
            values = np.array(content[name], np.float64)
            if values.shape != shape or not (values > 0).all():
                raise ValueError(f"{name} must hold positive seconds of shape {shape}")
            return values

        return cls(
            heads=heads,
            units=units,
            tokens=tokens,
            rows=rows,
            attention=seconds("attention", len(tokens), len(heads)),
            attention_first=seconds("attention_first", len(tokens), len(heads)),
            feed_forward=seconds("feed_forward", len(rows), len(units)),
            other=seconds("other", len(tokens)),
            sequence_tokens=int(content["sequence_tokens"]),
            reads_first_tokens=bool(content["reads_first_tokens"]),
            checked=tuple((int(h), int(u), int(t), float(s)) for h, u, t, s in content["checked"]),
            about=dict(content["about"]),
        )


def read_table(file: Path, classifier: Classifier) -> LatencyTable:
    """Read the cost.json of `headroom study cost`. Raises ModelError if it is for layers of another shape."""
    try:
        content = json.loads(read_text(file))
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        table = LatencyTable.from_json(content["cost"])
    except (OSError, KeyError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(reading_problem(file, error)) from None
    except (ValueError, TypeError) as error:
        raise ModelError(f"{file} does not hold the times of `headroom study cost`: {error}") from None
    config = classifier.config
    wanted = (config.hidden_size, config.head_size, classifier.network.number_format)
    found = tuple(table.about.get(key) for key in ("hidden_size", "head_size", "number_format"))
    if found != wanted:
        raise ModelError(
            f"{file} is for layers of width {found[0]} with heads of {found[1]} in {found[2]}; "
            f"this model has width {wanted[0]} and heads of {wanted[1]}, and is computed in {wanted[2]}"
        )
    return table


def _between(at: Sequence[int], counts: Sequence[int], table: Floats, place: float, count: float) -> float:
    """Interpolate linearly in both directions.

    Beyond the last place the time grows in proportion. Below the first it is the first one's: right for rows,
    because few first tokens are filled up (`models.batch.TOKEN_MULTIPLE`), but too much for few tokens.
    """
    of_count = np.array([np.interp(count, counts, row) for row in table])
    if place > at[-1]:
        return float(of_count[-1] * place / at[-1])
    return float(np.interp(place, at, of_count))
