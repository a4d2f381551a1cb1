"""`headroom quantize` writes an int8 copy of a checkpoint and prints what it costs and saves."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from models.commands.options import AsJson, Model, NewDirectory
from models.commands.terminal import counted, ends_at_once, scored, table
from models.numbers import fixed

if TYPE_CHECKING:
    from models import Classifier
    from models.compress.speed import Speed
    from models.quality.comparison import Agreement

BATCH = 64
"""Pairs whose time is measured."""

SAMPLE = Path(__file__).parent / "sample"
"""Links to files of data/sample, which are files in a wheel."""

METRICS = ("qwk", "ndcg10", "accuracy")
TOLERANCE = 0.005
"""Loss of quadratic weighted kappa above which the command prints a warning."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="Pairs from your own traffic to calibrate with: csv, tsv, jsonl or parquet of "
        "query,title.  [default: data/sample/calibration.jsonl.gz]"
    ),
]
Test = Annotated[
    Path | None,
    typer.Option(
        help="Graded pairs to measure the loss on.  [default: data/sample/test.jsonl.gz "
        "if the model has its five grades]"
    ),
]


@ends_at_once("headroom: stopped; nothing is written")
def command(
    out: NewDirectory, model: Model = None, data: Data = None, test: Test = None, as_json: AsJson = False
) -> None:
    """Write a copy with 8-bit weights and activations. It is smaller, and on most CPUs faster; the command
    measures how much.

    Example: headroom quantize --out ./int8 && headroom serve --model ./int8

    Example: headroom quantize --model ./mine --data traffic.csv --test judged.csv --out ./mine-int8
    """
    from models.checkpoint.config import check_can_be_quantized, read_config
    from models.checkpoint.files import bytes_of_weights, check_empty, new_directory
    from models.checkpoint.hub import locate
    from models.quality.labelled import read_labelled, read_pairs

    check_empty(out)
    source = locate(model)
    config = read_config(source)
    check_can_be_quantized(source, config)
    data = data or SAMPLE / "calibration.jsonl.gz"
    calibration = read_pairs(data)
    if test is None and len(config.labels) == 5:
        test = SAMPLE / "test.jsonl.gz"
    labelled = None if test is None else read_labelled(test, grades=len(config.labels))
    pairs = calibration if labelled is None else [(pair.query, pair.title) for pair in labelled]

    import orjson

    from models import Classifier  # imports torch, so it comes after the checks that do not need it
    from models.compress import speed as speeds
    from models.quality.comparison import agreement

    before = Classifier.load(model, "cpu", "float32")
    with new_directory(out) as draft:
        convert(before, source, draft, calibration)
        after = Classifier.load(draft, "cpu")
        scores_before, scores_after = scored(before, pairs), scored(after, pairs)
        result = agreement(scores_before, scores_after, labelled)
        few = after.tokenizer.encode(pairs[:BATCH])
        with counted("rounds of timing", speeds.ROUNDS) as advance:
            speed = speeds.measure(Classifier.load(model, "cpu"), after, few, lambda _: advance(1))
    sizes = {"before": bytes_of_weights(source), "after": bytes_of_weights(out)}
    if as_json:
        document = {
            "schema": 1,
            "out": str(out),
            "model": before.name,
            "calibration": str(data),
            "test": None if test is None else str(test),
            "bytes": sizes,
            "parameters": {"before": before.network.nbytes, "after": after.network.nbytes},
            "against_float32": result,
            "speed": speed,
        }
        print(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{out}: {sizes['after'] / 1e6:.1f} MB of {sizes['before'] / 1e6:.1f} MB")
        print(f"against {before.name} in float32, on {test or 'the calibration pairs'}:")
        print(summary(result))
        print(f"speed on this machine: {speed}, batches of {len(few)} pairs")
    warn(result, speed)


def convert(clf: Classifier, source: Path, out: Path, calibration: list[tuple[str, str]]) -> None:
    """Write the int8 copy of the classifier in `source` to `out`; show progress on standard error."""
    import numpy as np

    from models.compress.quantize import quantize

    order = np.random.default_rng(0).permutation(len(calibration))
    encoded = clf.tokenizer.encode([calibration[i] for i in order])
    with counted("layers", clf.num_layers) as advance:
        quantize(source, out, encoded, lambda *_: advance(1))


def warn(result: Agreement, speed: Speed) -> None:
    """Print a warning if the quadratic weighted kappa fell by more than TOLERANCE, or if int8 is slower."""
    fall = -result.change["qwk"].value if result.change else 0.0
    if fall > TOLERANCE:
        print(
            f"headroom: the quadratic weighted kappa fell by {fall:.4f}, more than {TOLERANCE}; "
            "calibrate with pairs of the model's own traffic (--data), or keep bfloat16",
            file=sys.stderr,
        )
    if speed.median < 1:
        print(
            f"headroom: int8 was measured at {speed} on this processor; serve the checkpoint that it was "
            "made from here",
            file=sys.stderr,
        )


def summary(result: Agreement) -> str:
    """Return the metrics before and after, each change with its 95 % interval, and how far scores moved."""
    rows = []
    for name, change in ((name, result.change[name]) for name in METRICS if result.change):
        before_and_after = f"{fixed(result.before[name], 4)} → {fixed(result.after[name], 4)}"
        rows.append([f"  {name}", before_and_after, change.text(4, sign=True)])
    lines = [table(rows)] if rows else []
    lines.append(f"  {result.same_grade:.1%} of {result.pairs} pairs keep their grade")
    lines.append(
        f"  probabilities differ by at most {result.largest_probability_difference:.4f}, "
        f"on average by {result.mean_probability_difference:.4f}"
    )
    return "\n".join(lines)
