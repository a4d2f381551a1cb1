"""Measures the shipped masks and smaller networks in every number format: their speed and their loss."""

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoints import quantize_into
from benchmarks.int8 import INT8, loaded
from benchmarks.measure import alternate, ratio
from benchmarks.report import Report, Row, at_least
from benchmarks.workload import SAMPLE
from headroom import Classifier, HeadMask
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.device import one_thread
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.labelled import read_labelled
from headroom.models.study.pairs import Judged
from headroom.models.study.statistics import Loss, Resamples, loss_by_metric

PAIRS = 256
INTACT = "intact"
PROVEN = "fast"
TARGET = 2.2
MARGIN = 0.02
RESAMPLES = 2000


def measure(rounds: int, limit: int | None = None) -> Report:
    """Measure masks and networks, text to scores, on one thread, in turns with the intact model.

    limit: number of pairs to calibrate and to judge; None: 512, and all.
    """
    sample = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:limit]
    judged = Judged(sample, "data/sample/test.jsonl.gz")
    report = Report(
        f"text to scores of {PAIRS} pairs on one thread, {rounds} turns. Losses are against the "
        f"intact model in the same format, on {len(judged.queries)} held-out queries, with one-sided 97.5 % "
        "lower bounds if enough of these have titles of different grades."
    )
    with TemporaryDirectory() as directory:
        networks = {"": DEFAULT} | {file.name: file for file in sorted((DEFAULT / "networks").iterdir())}
        formats: dict[str, dict[str, Classifier]] = {}
        for network, source in networks.items():
            int8 = Path(directory) / f"{network}-{INT8}"
            quantize_into(source, int8, limit or 512)
            for name, clf in loaded(source, int8).items():
                formats.setdefault(name, {})[network] = clf
        for name, by_network in formats.items():
            add(report, name, by_network.pop(""), by_network, judged, rounds)
    return report


Servable = tuple[Classifier, HeadMask | None]


def add(
    report: Report,
    name: str,
    clf: Classifier,
    networks: Mapping[str, Classifier],
    judged: Judged,
    rounds: int,
) -> None:
    """Add the rows and the table of one number format. networks: the smaller ones, by name."""
    masks = Classifier.load(DEFAULT, "cpu", "float32").stored_masks
    servables: dict[str, Servable] = {INTACT: (clf, None)}
    servables |= {mask: (clf, masks[mask]) for mask in masks}
    servables |= {network: (one, None) for network, one in networks.items()}

    def run(servable: Servable) -> Callable[[], object]:
        return lambda: servable[0].score(judged.pairs[:PAIRS], servable[1])

    lost = losses(servables, judged)
    sides = {side: run(servable) for side, servable in servables.items()}
    with one_thread():
        seconds = alternate(sides, rounds, warm_ups=2)
    report.tables[name] = [
        {
            "variant": side,
            "pairs/s": f"{len(judged.pairs[:PAIRS]) / statistics.median(seconds[side]):.0f}",
            "× intact": ratio(seconds, side, INTACT).text(),
            "QWK": str_of(lost[side]["qwk"]) if side in lost else "",
            "NDCG@10": str_of(lost[side]["ndcg10"]) if side in lost else "",
        }
        for side in sides
    ]
    faster = ratio(seconds, PROVEN, INTACT)
    report.rows.append(at_least(f"`{PROVEN}` × intact, {name}", faster.median, TARGET, more=faster.range()))
    for metric, loss in lost[PROVEN].items():
        row = Row(f"`{PROVEN}`, {name}: {metric}", str_of(loss))
        if math.isfinite(loss.bound):
            row = replace(row, target=f"bound > −{MARGIN}", ok=loss.bound > -MARGIN)
        report.rows.append(row)


def losses(servables: Mapping[str, Servable], judged: Judged) -> dict[str, dict[str, Loss]]:
    """Return the loss of each servable but the intact model by metric, against that in the same format."""

    def evaluation(servable: Servable) -> Evaluation:
        clf, mask = servable
        return Evaluation.of(judged.labelled, clf.score(judged.pairs, mask))

    resamples = Resamples(evaluation(servables[INTACT]), RESAMPLES, seed=0)
    return {
        name: loss_by_metric(resamples, evaluation(one), MARGIN)
        for name, one in servables.items()
        if name != INTACT
    }


def str_of(loss: Loss) -> str:
    """Return a change and its lower bound."""
    bound = f"≥ {loss.bound:+.3f}" if math.isfinite(loss.bound) else "too few queries"
    return f"{loss.delta:+.3f} ({bound})"
