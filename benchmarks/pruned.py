"""Measures the shipped masks and smaller networks in every number format: their speed and their loss."""

import math
import statistics
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.checkpoints import quantize_into
from benchmarks.int8 import INT8, loaded
from benchmarks.measure import alternate, ratio, turns
from benchmarks.model_alone import idle_ms
from benchmarks.report import Report, Row, times_as_fast
from benchmarks.workload import SAMPLE
from headroom import Classifier, HeadMask
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.device import one_thread
from headroom.models.quality.evaluation import Evaluation
from headroom.models.quality.graded import evaluation_of
from headroom.models.quality.labelled import read_labelled
from headroom.models.quality.noninferiority import MARGIN, Loss
from headroom.models.study.pairs import Judged
from headroom.models.study.search.compute import tests_of

PAIRS = 256
IDLE_ROUNDS = 3
INTACT = "intact"
PROVEN = "fast"
TARGET = 2.2


def measure(rounds: int, limit: int | None = None) -> Report:
    """Measure masks and networks, cached tokens to scores, on one thread, in turns with the intact model.

    limit: number of pairs to calibrate and to judge; None: 512, and all.
    """
    sample = read_labelled(SAMPLE / "test.jsonl.gz", grades=5)[:limit]
    judged = Judged(sample, "data/sample/test.jsonl.gz")
    report = Report(
        f"scores of {PAIRS} pairs whose tokens are cached, on one thread, {rounds} turns. Losses are "
        f"against the intact model in the same format, on {len(judged.queries)} held-out queries, with "
        "one-sided 97.5 % lower bounds if enough of these have titles of different grades."
    )
    with TemporaryDirectory() as directory:
        networks = {"": DEFAULT} | {file.name: file for file in sorted((DEFAULT / "networks").iterdir())}
        formats: dict[str, dict[str, Classifier]] = {}
        for network, source in networks.items():
            int8 = Path(directory) / f"{network}-{INT8}"
            quantize_into(source, int8, limit or 512)
            for name, clf in loaded(source, int8).items():
                formats.setdefault(name, {})[network] = clf
        report.rows.append(one_pair(formats, judged))
        for name, by_network in formats.items():
            add(report, name, by_network.pop(""), by_network, judged, rounds)
    return report


def one_pair(formats: Mapping[str, Mapping[str, Classifier]], judged: Judged) -> Row:
    """Return the row of the time that a pair of median length takes alone, now and then. formats: networks by
    name, by number format."""
    pair = sorted(judged.pairs, key=lambda texts: len(" ".join(texts)))[len(judged.pairs) // 2]
    sides = {
        (network or INTACT, name): lambda _, clf=clf: idle_ms(partial(clf.score, [pair]))
        for name, by_network in formats.items()
        for network, clf in by_network.items()
        if network in ("", PROVEN)
    }
    taken = turns(sides, IDLE_ROUNDS)
    figures = [f"{' '.join(side)} {statistics.median(ms):.1f} ms" for side, ms in taken.items()]
    return Row("one pair, idle, p50 of the model alone", "; ".join(figures))


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

    pairs = judged.pairs[:PAIRS]
    lost = losses(servables, judged)
    sides = {side: partial(one.score, pairs, mask) for side, (one, mask) in servables.items()}
    with one_thread():
        seconds = alternate(sides, rounds, warm_ups=2)
    report.tables[name] = [
        {
            "variant": side,
            "pairs/s": f"{len(pairs) / statistics.median(seconds[side]):.0f}",
            "× intact": ratio(seconds, side, INTACT).text(),
            "QWK": str_of(lost[side]["qwk"]) if side in lost else "",
            "NDCG@10": str_of(lost[side]["ndcg10"]) if side in lost else "",
        }
        for side in sides
    ]
    faster = ratio(seconds, PROVEN, INTACT)
    report.rows.append(times_as_fast(f"`{PROVEN}` × intact, {name}", faster, TARGET))
    report.rows += [row_of(f"`{PROVEN}`, {name}: {metric}", loss) for metric, loss in lost[PROVEN].items()]


def row_of(name: str, loss: Loss) -> Row:
    """Return the row of a loss; it has a target if there are enough queries for a bound."""
    if not math.isfinite(loss.bound):
        return Row(name, str_of(loss))
    return Row(name, str_of(loss), f"bound > −{MARGIN}", ok=loss.excluded)


def losses(servables: Mapping[str, Servable], judged: Judged) -> dict[str, dict[str, Loss]]:
    """Return the loss of each servable but the intact model by metric, against that in the same format."""

    def evaluation(servable: Servable) -> Evaluation:
        clf, mask = servable
        return evaluation_of(judged.labelled, clf.score(judged.pairs, mask))

    names = [name for name in servables if name != INTACT]
    smaller = [evaluation(servables[name]) for name in names]
    tests = tests_of(evaluation(servables[INTACT]), smaller, MARGIN)
    return {name: test.losses for name, test in zip(names, tests, strict=True)}


def str_of(loss: Loss) -> str:
    """Return a change and its lower bound."""
    bound = f"≥ {loss.bound:+.3f}" if math.isfinite(loss.bound) else "too few queries"
    return f"{loss.change.value:+.3f} ({bound})"
