"""Head studies: every head off by itself in one pass over the pairs, against an evaluation for each.

Every `TAKEN`-th of the separate evaluations is run, and their time multiplied; the one pass is run whole.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import alternate, machine, ratio
from models import Classifier, HeadMask
from models.quality.labelled import read_labelled
from models.study.base import Judged
from models.study.runner import Runner

DATA = Path(__file__).parents[1] / "data" / "sample" / "test.jsonl.gz"
ROUNDS = 5
PAIRS = 256
TAKEN = 12
LARGEST_SHARE = 0.6
ONE_PASS, SEPARATE = "one pass", "separate evaluations"


def measure(rounds: int, model: Path | None = None, pairs: int = PAIRS) -> dict[str, Any]:
    """Seconds of both ways, their ratio by round, and how far their logits are apart."""
    classifier = Classifier.load(model, device="cpu")
    labelled = read_labelled(DATA, grades=len(classifier.grades))
    picked = np.random.default_rng(0).permutation(len(labelled))[:pairs]
    data = Judged.of([labelled[place] for place in picked], str(DATA))
    shape = (classifier.num_layers, classifier.num_heads)
    masks = 1 - np.eye(shape[0] * shape[1], dtype=np.float32).reshape(-1, *shape)  # mask i: head i off
    few = masks[::TAKEN]
    runner = Runner(classifier, data)

    def separate() -> np.ndarray:
        return np.stack([classifier.score(data.pairs, HeadMask(mask)).logits for mask in few])

    seconds = alternate({ONE_PASS: lambda: runner.logits(list(masks)), SEPARATE: separate}, rounds)
    seconds[SEPARATE] = [value * len(masks) / len(few) for value in seconds[SEPARATE]]
    return {
        "machine": machine(),
        "pairs": len(data),
        "masks": len(masks),
        "seconds": {name: statistics.median(values) for name, values in seconds.items()},
        "share": asdict(ratio(seconds, SEPARATE, ONE_PASS)),
        "logits_apart": float(np.abs(runner.logits(list(few)) - separate()).max()),
    }


def as_markdown(result: dict[str, Any]) -> str:
    """The table."""
    share = result["share"]
    return "\n".join(
        [
            f"{result['machine']}; the shipped model, {result['pairs']} pairs under {result['masks']} masks, "
            f"each with one head off; of the separate evaluations every {TAKEN}th was run, times {TAKEN}.",
            "",
            "| | seconds |",
            "|---|---|",
            *(f"| {name} | {seconds:.1f} |" for name, seconds in result["seconds"].items()),
            "",
            f"One pass takes {share['median']:.0%} of the time ({share['low']:.0%} to {share['high']:.0%} by "
            f"round); logits differ by at most {result['logits_apart']:.3f}.",
        ]
    )


def missed(result: dict[str, Any]) -> list[str]:
    """The target that this run does not reach, in words."""
    share = result["share"]["median"]
    if share < LARGEST_SHARE:
        return []
    return [f"one pass takes {share:.0%} of separate evaluations, target under {LARGEST_SHARE:.0%}"]
