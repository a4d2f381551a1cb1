"""Head studies: every head off by itself in one pass over the pairs, against an evaluation for each.

Every `TAKEN`-th of the separate evaluations is run, and their time multiplied; the one pass is run whole.
"""

import statistics
from pathlib import Path

import numpy as np

from benchmarks.measure import alternate, ratio
from benchmarks.report import Report, Row, at_most
from benchmarks.workload import SAMPLE
from headroom import Classifier, HeadMask
from headroom.models.quality.labelled import read_labelled
from headroom.models.study.pairs import Judged
from headroom.models.study.runner import Runner

ROUNDS = 5
TAKEN = 12
ONE_PASS = "one pass"
SEPARATE = "separate evaluations"


def measure(rounds: int, model: Path | None = None, pairs: int = 256) -> Report:
    """Measure the seconds of both ways, and how far their logits are apart."""
    classifier = Classifier.load(model, device="cpu")
    labelled = read_labelled(SAMPLE / "test.jsonl.gz", grades=len(classifier.grades))
    chosen = np.random.default_rng(0).permutation(len(labelled))[:pairs]
    data = Judged([labelled[index] for index in chosen], "data/sample/test.jsonl.gz")
    shape = (classifier.num_layers, classifier.num_heads)
    masks = 1 - np.eye(shape[0] * shape[1], dtype=np.float32).reshape(-1, *shape)  # mask i: head i off
    few = masks[::TAKEN]
    runner = Runner(classifier)

    def separate() -> np.ndarray:
        return np.stack([classifier.score(data.pairs, HeadMask(mask)).logits for mask in few])

    seconds = alternate({ONE_PASS: lambda: runner.logits(data, list(masks)), SEPARATE: separate}, rounds)
    seconds[SEPARATE] = [value * len(masks) / len(few) for value in seconds[SEPARATE]]
    share = ratio(seconds, SEPARATE, ONE_PASS)
    apart = float(np.abs(runner.logits(data, list(few)) - separate()).max())
    return Report(
        f"the shipped model, {len(data)} pairs under {len(masks)} masks, each with one head "
        f"off; of the separate evaluations every {TAKEN}th was run, times {TAKEN}.",
        [
            *(Row(name, f"{statistics.median(values):.1f} s") for name, values in seconds.items()),
            at_most("one pass, share of the time", share.median, 0.6, ".0%", more=share.range(".0%")),
            Row("largest difference of a logit", f"{apart:.3f}"),
        ],
    )
