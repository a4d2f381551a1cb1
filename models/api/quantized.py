"""Int8 checkpoints from Python: `headroom.quantize`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from headroom.models.api.arguments import errors_name_arguments
from headroom.models.api.data import DIRECTORY, path_of, source_of, unjudged_source_of
from headroom.models.checkpoint.config import check_holds_floats, read_config
from headroom.models.checkpoint.files import bytes_of_weights, check_empty, new_directory
from headroom.models.checkpoint.hub import locate
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.errors import ModelError
from headroom.models.files import Json
from headroom.models.frame import frame
from headroom.models.numbers import fixed, number, percent, rounded
from headroom.models.quality.bootstrap import Interval
from headroom.models.quality.judgments import read_judgments
from headroom.models.quality.labelled import (
    DEFAULT,
    SAMPLE,
    Columns,
    LabelledPair,
    Rows,
    columns_of_second,
)
from headroom.models.quality.metrics import GRADED, NAMES, RANKED, Measures
from headroom.models.quality.reading import read_truth
from headroom.models.quality.scoring import scored
from headroom.models.study.pairs import sample_queries
from headroom.models.study.wording import speed_claim
from headroom.models.terminal import counted, table

if TYPE_CHECKING:
    import pandas as pd

    from headroom.models.api.data import Data, UnjudgedData
    from headroom.models.checkpoint.tokenizer import EncodedPair
    from headroom.models.classifier import Classifier

MAX_PAIRS = 10_000
"""At most this many calibration pairs are compared, of whole queries."""

BATCH = 64
"""Pairs in the batch whose time is measured."""

ROUNDS = 7
"""How often it is measured in each number format."""

TOLERANCE = 0.005
"""The loss of each metric that is accepted; the command warns if the main one is shown to lose more."""

NO_SKILL_HERE = (
    "the model is not shown to rank better than a random order on these pairs, so they show nothing about "
    "what int8 loses"
)


@dataclass(frozen=True)
class Quantized:
    """An int8 checkpoint, and what it gains and loses on this machine.

    path: its directory. document: the figures, as `headroom quantize --json` prints them. speed: how many
    times as fast it is as the checkpoint that it was made from, in the format that this is served in.
    """

    path: Path
    document: Json
    speed: Interval

    def load(self, device: str = "auto", dtype: str = "auto") -> Classifier:
        """Return its classifier. device, dtype: "auto", or a name of torch's."""
        from headroom.models.classifier import Classifier

        return Classifier.load(self.path, device, dtype)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, a row for each metric: before, after, change, and the ends of its 95 %
        interval; none without judged pairs. Raises ModuleNotFoundError without pandas."""
        result = self.document["against_float32"]
        change = result["change"]
        return frame(
            {
                "metric": list(change),
                "before": [result["before"][name] for name in change],
                "after": [result["after"][name] for name in change],
                "change": [interval.value for interval in change.values()],
                "low": [interval.low for interval in change.values()],
                "high": [interval.high for interval in change.values()],
            }
        )

    @property
    def warnings(self) -> list[str]:
        """Return a sentence for each thing that speaks against it."""
        sentences = []
        result = self.document["against_float32"]
        main = _measures(result).main
        if result["change"] and result["change"][main].is_below(-TOLERANCE):
            change = result["change"][main].text(4, sign=True)
            sentences.append(
                f"{NAMES[main]} changes by {change}, a fall of more than {TOLERANCE}: calibrate with pairs "
                "of the model's own traffic (--data), or keep the checkpoint that it was made from"
            )
        if result["test"] and not result["test"]["better_than_chance"]:
            sentences.append(NO_SKILL_HERE)
        if self.speed.is_below(1):
            sentences.append(f"{self.speed_text}: serve the checkpoint that it was made from")
        return sentences

    @property
    def speed_text(self) -> str:
        """Return how fast it is, and no more than the interval says."""
        return f"int8 {speed_claim(self.speed, self.document['speed']['dtype'])}"

    def __str__(self) -> str:
        pairs = self.document["speed"]["batch_pairs"]
        return f"{as_text(self.document)}\non this machine, {self.speed_text} (batches of {pairs} pairs)"

    __repr__ = __str__


@errors_name_arguments()
def quantize(
    clf: Classifier,
    out: str | PathLike[str],
    *,
    data: UnjudgedData | None = None,
    test: Data | None = None,
    query: str = "query",
    title: str = "title",
    grade: str = "grade",
) -> Quantized:
    """Write a copy with 8-bit weights and activations, and measure what it gains and loses on this machine.

    out: an empty or new directory. data: query–title pairs to calibrate with: a DataFrame, a file, or (query,
    title) tuples; None for the sample's. test: judged pairs to measure the loss on, a DataFrame or a file;
    None for the sample's, if they fit. query, title, grade: the names of the columns; a test's file that
    lacks one may have it under the usual name.
    Raises ModelError for wrong data, or if the checkpoint is int8 already or `out` is not empty.
    """
    if clf.directory is None:
        raise ModelError("quantize needs a classifier that was loaded from a directory or the hub")
    columns = Columns(query, title, grade)
    return quantized(
        str(clf.directory),
        path_of("out", out, DIRECTORY),
        None if data is None else unjudged_source_of(data, columns),
        None if test is None else source_of(test, columns, "test"),
        columns,
        clf.config.labels,
    )


def quantized(
    model: str | None,
    out: Path,
    data: Path | Rows | None,
    test: Path | Rows | None,
    columns: Columns = DEFAULT,
    label_order: Sequence[str] | None = None,
) -> Quantized:
    """Quantize the checkpoint in a directory or of a hub id; None for the shipped one.

    columns: of `data` and `test`; a test beside `data` may have the usual ones. label_order:
    the labels' names, least relevant first; None: the order that the checkpoint says.
    """
    check_empty(out)
    source = locate(model)
    config = read_config(source, label_order)
    check_holds_floats(source, config)
    of_test = DEFAULT
    if test is None:
        test = _usual_test(config, data)
    else:
        of_test = columns if data is None else columns_of_second(test, columns)
    if data is None:
        data = SAMPLE / "calibration.jsonl.gz"
        columns = DEFAULT
    calibration, given = _calibration_pairs(data, columns)
    labelled = None if test is None else read_truth(test, [config], of_test, None)[0].pairs
    pairs = calibration if labelled is None else [(pair.query, pair.title) for pair in labelled]
    result, speed, formats = _made(model, config, out, calibration, pairs, labelled)
    document = {
        "schema": 1,
        "out": str(out),
        "model": formats["model"],
        "calibration": str(data),
        "calibration_pairs": {"given": given, "used": len(calibration)},
        "test": None if test is None else str(test),
        "bytes": {"before": bytes_of_weights(source), "after": bytes_of_weights(out)},
        "parameters": formats["parameters"],
        "against_float32": result,
        "speed": {
            "dtype": formats["dtype"],
            "median": speed.value,
            "low": speed.low,
            "high": speed.high,
            "batch_pairs": min(BATCH, len(pairs)),
        },
    }
    return Quantized(out, document, speed)


def _calibration_pairs(data: Path | Rows, columns: Columns) -> tuple[list[tuple[str, str]], int]:
    """Return the pairs to calibrate with, and how many there are; if they are many, whole queries of them."""

    def read() -> Iterator[LabelledPair]:
        for row in read_judgments(data, columns, with_grade=False):
            yield LabelledPair(row.query, row.title, 0)

    kept, given = sample_queries(read, MAX_PAIRS, 0)
    chosen = kept or islice(read(), MAX_PAIRS)  # if the first query alone has more
    return [(pair.query, pair.title) for pair in chosen], given


def _usual_test(config: ModelConfig, data: Path | Rows | None) -> Path | None:
    """Return the sample's judged pairs, if they fit the model and no other pairs were given."""
    fits = len(config.labels) == 5 or (data is None and not config.is_graded)
    return SAMPLE / "test.jsonl.gz" if fits else None


def _made(
    model: str | None,
    config: ModelConfig,
    out: Path,
    calibration: Sequence[tuple[str, str]],
    pairs: Sequence[tuple[str, str]],
    labelled: Sequence[LabelledPair] | None,
) -> tuple[Json, Interval, Json]:
    """Write the checkpoint. Return its agreement with float32, its speed, and what was compared."""
    from headroom.models.classifier import Classifier  # imports torch
    from headroom.models.compress.quantize import quantize
    from headroom.models.quality.comparison import agreement

    exact = Classifier.load(model, "cpu", "float32", label_order=config.labels)
    assert exact.directory is not None
    order = np.random.default_rng(0).permutation(len(calibration))
    with new_directory(out) as draft:
        encoded = exact.tokenizer.encode([calibration[i] for i in order])
        with counted("layers", exact.num_layers) as advance:
            quantize(exact.directory, draft, encoded, advance, config)
        int8 = Classifier.load(draft, "cpu")
        result = agreement(scored(exact, pairs), scored(int8, pairs), pairs, labelled, TOLERANCE)
        served = Classifier.load(model, "cpu", label_order=config.labels)
        speed = speed_of(served, int8, int8.tokenizer.encode(pairs[:BATCH]))
    formats = {
        "model": exact.name,
        "dtype": served.network.number_format,
        "parameters": {"before": exact.network.nbytes, "after": int8.network.nbytes},
    }
    return result, speed, formats


def speed_of(floats: Classifier, int8: Classifier, pairs: Sequence[EncodedPair]) -> Interval:
    """Return how many times as fast as floats int8 computes one batch: the median of ROUNDS, in which they
    took turns, with its 95 % interval."""
    from headroom.models.device import in_turns  # imports torch
    from headroom.models.quality.speed import speedup

    calls = partial(floats.forward, pairs), partial(int8.forward, pairs)
    with counted("rounds of timing", (1 + ROUNDS) * len(calls)) as advance:
        seconds = in_turns(calls, ROUNDS, partial(advance, 1))
    return speedup(seconds[:, 0], seconds[:, 1])


def as_text(document: Json) -> str:
    """Return the size, the metrics before and after, each change with its 95 % interval, and how far scores
    moved."""
    sizes = document["bytes"]
    result = document["against_float32"]
    given, used = (document["calibration_pairs"][name] for name in ("given", "used"))
    calibration = "the calibration pairs" if used == given else f"{used:,} of the {given:,} calibration pairs"
    lines = [
        f"{document['out']}: {sizes['after'] / 1e6:.1f} MB of {sizes['before'] / 1e6:.1f} MB",
        f"against {document['model']} in float32, on {document['test'] or calibration}:",
    ]
    if result["change"]:
        measures = _measures(result)
        rows = []
        for name in measures.names:
            values = f"{fixed(result['before'][name], 4)} → {fixed(result['after'][name], 4)}"
            rows.append([f"  {name}", values, result["change"][name].text(4, sign=True)])
        lines += [result["test"]["verdict"], table(rows)]
    if "same_grade" in result:
        share = percent(result["same_grade"], digits=3)
        lines.append(f"  {share} of {result['pairs']} pairs keep their grade")
    elif result["same_order"] == result["same_order"]:
        share = percent(result["same_order"], digits=3)
        lines.append(f"  {share} of two titles of a query keep their order")
    largest = number(rounded(result["largest_probability_difference"], up=True))
    mean = number(result["mean_probability_difference"])
    lines.append(f"  probabilities differ by at most {largest}, on average by {mean}")
    return "\n".join(lines)


def _measures(result: Json) -> Measures:
    return GRADED if "same_grade" in result else RANKED
