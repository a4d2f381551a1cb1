"""`headroom quantize` writes an int8 copy of a checkpoint and prints what it costs and saves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import orjson
import typer

from headroom.models.checkpoint.config import check_holds_floats, read_config
from headroom.models.checkpoint.files import bytes_of_weights, check_empty, new_directory
from headroom.models.checkpoint.hub import locate
from headroom.models.commands.options import AsJson, Model, NewDirectory, read_truth
from headroom.models.files import Json
from headroom.models.numbers import fixed
from headroom.models.quality.bootstrap import Interval
from headroom.models.quality.labelled import Columns, read_pairs
from headroom.models.quality.metrics import GRADED, NAMES, RANKED
from headroom.models.quality.scoring import scored
from headroom.models.study.wording import speed_claim
from headroom.models.terminal import counted, ends_at_once, table, warn

if TYPE_CHECKING:
    from headroom import Classifier
    from headroom.models.checkpoint.tokenizer import EncodedPair

BATCH = 64
"""Pairs in the batch whose time is measured."""

ROUNDS = 7
"""How often it is measured in each number format."""

SAMPLE = Path(__file__).parent / "sample"
"""Links to files of data/sample, which are files in a wheel."""

TOLERANCE = 0.005
"""A loss of the main metric that the command warns of, if the interval shows that it is larger."""

Data = Annotated[
    Path | None,
    typer.Option(help="Your own pairs to calibrate with.  [default: data/sample/calibration.jsonl.gz]"),
]
Test = Annotated[
    Path | None,
    typer.Option(
        help="Judged pairs to measure the loss on.  [default, for five grades, or one label without "
        "--data: data/sample/test.jsonl.gz]"
    ),
]


@ends_at_once("headroom: stopped; nothing is written")
def command(
    out: NewDirectory, model: Model = None, data: Data = None, test: Test = None, as_json: AsJson = False
) -> None:
    """Write a copy with 8-bit weights and activations. It is smaller, and on most CPUs faster; the command
    measures what it gains and loses on yours.

    Example: headroom quantize --out ./int8 && headroom serve --model ./int8

    Example: headroom quantize --model ./mine --data traffic.csv --test judged.csv --out ./mine-int8
    """
    check_empty(out)
    source = locate(model)
    config = read_config(source)
    check_holds_floats(source, config)
    if test is None and (len(config.labels) == 5 or (data is None and not config.is_graded)):
        test = SAMPLE / "test.jsonl.gz"
    data = data or SAMPLE / "calibration.jsonl.gz"
    calibration = read_pairs(data)
    pairs = calibration
    labelled = None
    if test is not None:
        labelled = read_truth(test, [config], Columns(), None)[0].pairs
        pairs = [(pair.query, pair.title) for pair in labelled]

    from headroom import Classifier  # imports torch, so it comes after the checks that do not need it
    from headroom.models.compress.quantize import quantize
    from headroom.models.quality.comparison import agreement

    exact = Classifier.load(model, "cpu", "float32")
    order = np.random.default_rng(0).permutation(len(calibration))
    with new_directory(out) as draft:
        encoded = exact.tokenizer.encode([calibration[i] for i in order])
        with counted("layers", exact.num_layers) as advance:
            quantize(source, draft, encoded, advance)
        int8 = Classifier.load(draft, "cpu")
        result = agreement(scored(exact, pairs), scored(int8, pairs), pairs, labelled)
        batch = int8.tokenizer.encode(pairs[:BATCH])
        served = Classifier.load(model, "cpu")
        speed = speed_of(served, int8, batch)
    speed_text = speed_claim(speed, served.network.number_format)
    document = {
        "schema": 1,
        "out": str(out),
        "model": exact.name,
        "calibration": str(data),
        "test": None if test is None else str(test),
        "bytes": {"before": bytes_of_weights(source), "after": bytes_of_weights(out)},
        "parameters": {"before": exact.network.nbytes, "after": int8.network.nbytes},
        "against_float32": result,
        "speed": {
            "dtype": served.network.number_format,
            "median": speed.value,
            "low": speed.low,
            "high": speed.high,
        },
    }
    if as_json:
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(as_text(document))
        print(f"on this machine, int8 {speed_text} (batches of {len(batch)} pairs)")
    main = (GRADED if config.is_graded else RANKED).main
    if result["change"] and result["change"][main].is_below(-TOLERANCE):
        warn(
            f"{loss_claim(main, result['change'][main])}: calibrate with pairs of the model's own traffic "
            "(--data), or keep the checkpoint that it was made from"
        )
    if speed.is_below(1):
        warn(f"int8 {speed_text}: serve the checkpoint that it was made from")


def speed_of(floats: Classifier, int8: Classifier, pairs: Sequence[EncodedPair]) -> Interval:
    """Return how many times as fast as floats int8 computes one batch: the median of ROUNDS, in which they
    took turns, with its 95 % interval."""
    from headroom.models.device import in_turns  # it imports torch
    from headroom.models.quality.speed import speedup

    calls = partial(floats.forward, pairs), partial(int8.forward, pairs)
    with counted("rounds of timing", (1 + ROUNDS) * len(calls)) as advance:
        seconds = in_turns(calls, ROUNDS, partial(advance, 1))
    return speedup(seconds[:, 0], seconds[:, 1])


def loss_claim(metric: str, change: Interval) -> str:
    """Say whether a metric fell by more than TOLERANCE, and no more than the interval says."""
    measured = f"{NAMES[metric]} changes by {change.text(4, sign=True)}"
    if change.is_below(-TOLERANCE):
        return f"{measured}, a fall of more than {TOLERANCE}"
    if change.is_above(-TOLERANCE):
        return f"{measured}, so it does not fall by {TOLERANCE}"
    return f"{measured}, which does not show whether it falls by {TOLERANCE}; more judged pairs (--test) may"


def as_text(document: Json) -> str:
    """Return the size, the metrics before and after, each change with its 95 % interval, and how far scores
    moved."""
    sizes = document["bytes"]
    result = document["against_float32"]
    lines = [
        f"{document['out']}: {sizes['after'] / 1e6:.1f} MB of {sizes['before'] / 1e6:.1f} MB",
        f"against {document['model']} in float32, on {document['test'] or 'the calibration pairs'}:",
    ]
    if result["change"]:
        measures = GRADED if "same_grade" in result else RANKED
        rows = []
        for name in measures.names:
            values = f"{fixed(result['before'][name], 4)} → {fixed(result['after'][name], 4)}"
            rows.append([f"  {name}", values, result["change"][name].text(4, sign=True)])
        lines += [table(rows), f"  {loss_claim(measures.main, result['change'][measures.main])}"]
    if "same_grade" in result:
        lines.append("  {same_grade:.1%} of {pairs} pairs keep their grade".format(**result))
    elif result["same_order"] == result["same_order"]:
        lines.append("  {same_order:.1%} of two titles of a query keep their order".format(**result))
    lines.append(
        "  probabilities differ by at most {largest_probability_difference:.4f}, on average by "
        "{mean_probability_difference:.4f}".format(**result)
    )
    return "\n".join(lines)
