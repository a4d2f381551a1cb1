"""`headroom quantize` writes an int8 copy of a checkpoint and prints what it costs and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
import typer

from headroom.models.api.quantized import quantized
from headroom.models.commands.options import AsJson, Model, NewDirectory
from headroom.models.terminal import ends_at_once, warn

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
    made = quantized(model, out, data, test)
    print(orjson.dumps(made.document, option=orjson.OPT_INDENT_2).decode() if as_json else made)
    for sentence in made.warnings:
        warn(sentence)
