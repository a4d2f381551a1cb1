"""`headroom quantize`: a checkpoint becomes an int8 checkpoint, and what that costs is printed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from models.quality.agreement import Agreement

SAMPLE = Path(__file__).parents[2] / "data" / "sample"
TOLERANCE = 0.005
"""A larger loss of quadratic weighted kappa is pointed out."""


def command(
    out: Annotated[Path, typer.Option(help="Directory to write; must not hold anything yet.")],
    model: Annotated[str | None, typer.Option(help="Checkpoint directory or hub id.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Pairs to calibrate with, of your own traffic: csv, tsv, jsonl or parquet of "
            "query,title; default: data/sample/calibration.jsonl.gz."
        ),
    ] = None,
    test: Annotated[
        Path | None,
        typer.Option(
            help="Pairs with a grade to measure the loss on; default: data/sample/test.jsonl.gz "
            "for models of its five grades."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The result as one JSON object.")] = False,
) -> None:
    """8-bit weights and activations: about half the time and size on processors with VNNI, same masks.

    Example: headroom quantize --out ./int8 && headroom serve --model ./int8

    Example: headroom quantize --model ./mine --data traffic.csv --test judged.csv --out ./mine-int8
    """
    from models.checkpoint.checks import check_can_be_quantized, check_empty
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate
    from models.quality.labelled import read_labelled, read_pairs

    check_empty(out)
    source = locate(model)
    config = read_config(source)
    check_can_be_quantized(source, config)
    calibration = read_pairs(data or SAMPLE / "calibration.jsonl.gz")
    if test is None and len(config.labels) == 5:
        test = SAMPLE / "test.jsonl.gz"
    labelled = None if test is None else read_labelled(test, grades=len(config.labels))
    pairs = calibration if labelled is None else [(pair.query, pair.title) for pair in labelled]

    from dataclasses import asdict

    import numpy as np
    import orjson

    from models import Classifier  # torch, after all that can be wrong without it
    from models.compress.quantize import quantize
    from models.quality.agreement import agreement

    before = Classifier.load(model, "cpu", "float32")
    order = np.random.default_rng(0).permutation(len(calibration))
    quantize(source, out, before.tokenizer.encode([calibration[i] for i in order]), _progress)
    after = Classifier.load(out, "cpu")
    found = agreement(before.score(pairs), after.score(pairs), labelled)

    old_bytes, new_bytes = (sum(f.stat().st_size for f in d.glob("*.safetensors")) for d in (source, out))
    if as_json:
        report = {
            "schema": 1,
            "out": str(out),
            "model": before.name,
            "calibration": str(data or SAMPLE / "calibration.jsonl.gz"),
            "test": None if test is None else str(test),
            "bytes": {"before": old_bytes, "after": new_bytes},
            "parameters": {"before": before.network.nbytes, "after": after.network.nbytes},
            "against_float32": asdict(found),
        }
        print(orjson.dumps(report, option=orjson.OPT_INDENT_2).decode())
    else:
        print(f"{out}: {new_bytes / 1e6:.1f} MB of {old_bytes / 1e6:.1f} MB")
        print(f"against {before.name} in float32, on {test or 'the calibration pairs'}:")
        print(table(found))
    fall = -found.change["qwk"].value if found.change else 0.0
    if fall > TOLERANCE:
        print(
            f"headroom: the quadratic weighted kappa fell by {fall:.4f}, more than {TOLERANCE}; "
            "calibrate with pairs of the model's own traffic (--data), or stay with bfloat16",
            file=sys.stderr,
        )


def table(found: Agreement) -> str:
    """A line for each figure; metrics before and after, and the change with its 95 % interval."""
    lines = []
    for name in ("qwk", "ndcg10", "accuracy") if found.change else ():
        change = found.change[name]
        lines.append(
            f"  {name:<9} {found.before[name]:.4f} → {found.after[name]:.4f}  "
            f"{change.value:+.4f} ({change.low:+.4f} to {change.high:+.4f})"
        )
    lines.append(f"  {found.same_grade:.1%} of {found.pairs} pairs keep their grade")
    lines.append(
        f"  probabilities differ by {found.largest_probability_difference:.4f} at most, "
        f"{found.mean_probability_difference:.4f} in the mean"
    )
    return "\n".join(lines)


def _progress(done: int, layers: int) -> None:
    end = "\n" if done == layers else ""
    print(f"\rlayer {done} of {layers}", end=end, file=sys.stderr, flush=True)
