"""Compares RoBERTa's and ModernBERT's shapes with other engines, and BERT's in the same run."""

from __future__ import annotations

from typing import Any

from benchmarks import engines
from benchmarks.engines import ADAPTERS, BF16, CTRANSLATE2, OPENVINO
from benchmarks.workload import SHAPES

ROUNDS = engines.ROUNDS
BERT, OTHERS = "base", ("roberta", "modernbert")
TRANSFORMERS = "transformers bf16"
PEERS = (TRANSFORMERS, OPENVINO)
"""Ours must be at least as far ahead of these as it is with BERT's shape."""

_FROM_IDS = {name: environment for name, environment in ADAPTERS.items() if name != "cross_encoder"}
_SHAPES = {
    BERT: _FROM_IDS,
    "roberta": _FROM_IDS,
    "modernbert": {name: env for name, env in _FROM_IDS.items() if name != "c_translate2"},
}
_WORKLOAD = "titles"


def measure(rounds: int, shapes: dict[str, dict[str, str]] = _SHAPES) -> dict[str, Any]:
    """Measure the titles with the adapters of every shape."""
    result = engines.measure(rounds, shapes, (_WORKLOAD,))
    result["missing"][f"{CTRANSLATE2} ({SHAPES['modernbert'].name})"] = "it has no converter for ModernBERT"
    return result


def as_markdown(result: dict[str, Any]) -> str:
    """Return how far ahead ours bf16 is by shape, and the tables of all engines."""
    lines = [
        f"How many times as fast ours bf16 is, {result['rounds']} rounds:",
        "",
        f"| shape | × {' | × '.join(PEERS)} |",
        "|---" * (len(PEERS) + 1) + "|",
    ]
    for shape in (BERT, *OTHERS):
        ratios = [engines.times(ahead(result, shape, peer)) for peer in PEERS]
        lines.append(f"| {SHAPES[shape].name} | {' | '.join(ratios)} |")
    return "\n".join([*lines, "", engines.as_markdown(result)])


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each peer that ours is less far ahead of than with BERT's shape."""
    lines = []
    for shape in OTHERS:
        for peer in PEERS:
            name, ratios, target = SHAPES[shape].name, ahead(result, shape, peer), ahead(result, BERT, peer)
            if ratios is None or target is None:
                lines.append(f"{name}: {BF16} against {peer} was not measured")
            elif ratios[0] < target[0]:
                lines.append(
                    f"{name}: {BF16} is {engines.times(ratios)} × {peer}, "
                    f"{engines.times(target)} × with BERT's shape"
                )
    return lines


def ahead(result: dict[str, Any], shape: str, peer: str) -> list[float] | None:
    """Return how many times as fast as the peer ours bf16 is: median, low, high; None if not measured."""
    for row in result["rows"]:
        if (row["shape"], row["engine"]) == (SHAPES[shape].name, peer):
            return list(row["bf16_over_it"]) if row["bf16_over_it"] else None
    return None
