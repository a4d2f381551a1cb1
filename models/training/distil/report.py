"""Measures a student beside its teacher and itself before: quality, agreement and speed, with intervals."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from headroom.models.arrays import Floats
from headroom.models.checkpoint.config import ModelConfig
from headroom.models.checkpoint.files import bytes_of_weights
from headroom.models.classifier import Classifier
from headroom.models.device import in_turns, one_thread
from headroom.models.files import Json
from headroom.models.quality.bootstrap import Interval, MetricDraws, resample
from headroom.models.quality.evaluation import Evaluation, changes_of, intervals_of
from headroom.models.quality.graded import evaluation_of
from headroom.models.quality.labelled import LabelledPair, numbers_of_queries
from headroom.models.quality.noninferiority import MARGIN, RESAMPLES, SEED, non_inferiority
from headroom.models.quality.scoring import scored_in_portions
from headroom.models.quality.speed import speedup
from headroom.models.scores import Scores
from headroom.models.terminal import ProgressBar
from headroom.models.training.distil.job import Job
from headroom.models.training.distil.lessons import given_scores
from headroom.models.training.distil.pairs import HELD_OUT, Pair, read_portion

METRICS = ("ndcg10", "query_spearman", "qwk")
"""The metrics of the table, as far as a model has them."""

SPEED_PAIRS = 128
ROUNDS = 7
"""How often the time of these pairs is measured."""


def measure(
    before: Classifier, student: Classifier, teacher: Classifier | None, job: Job, bar: ProgressBar
) -> Json:
    """Return quality on the judged pairs, agreement with the teacher on pairs held out, speed and sizes.

    The sizes are those of all sides, and of the source: the checkpoint that the student is, or was cut from.
    """
    sides = {"student": student, "before": before}
    if teacher is not None:
        sides["teacher"] = teacher
    held_out = read_portion(job.options.pairs / f"{HELD_OUT}.jsonl")
    agreed = _agreement(sides, held_out, job, bar)
    figures: Json = {"agreement": agreed}
    if job.test:
        quality, test = _quality(sides, job, bar)
        figures["against_teacher"] = test
        figures |= {"test": {name: one.value for name, one in quality["student"].items()}, "quality": quality}
        figures |= {"test_file": job.test_name, "test_pairs": len(job.test)}
        figures["test_queries"] = len(set(numbers_of_queries(job.test)))
    else:
        figures["validation"] = {} if agreed is None else {"agreement": agreed["student"].value}
    pairs = [(pair.query, pair.title) for pair in (job.test or held_out)[:SPEED_PAIRS]]
    if not pairs:
        pairs = [("query", "title")]
    figures["speed"] = _speed(sides, pairs, bar)
    figures["size"] = {name: _size(one.config, one.directory) for name, one in sides.items()}
    figures["size"]["source"] = _size(job.config, job.source)
    return figures


def _size(config: ModelConfig, directory: Path | None) -> Json:
    return {
        "layers": config.num_layers,
        "heads": sum(map(len, config.kept_heads)),
        "units": sum(config.widths),
        "bytes": 0 if directory is None else bytes_of_weights(directory),
    }


def _scores(clf: Classifier, pairs: Sequence[tuple[str, str]], what: str, bar: ProgressBar) -> Scores:
    """Return the scores of pairs. what: the name of the stage."""
    bar.start(what, len(pairs))
    return scored_in_portions(clf, pairs, bar.advance)


def _quality(sides: dict[str, Classifier], job: Job, bar: ProgressBar) -> tuple[Json, Json | None]:
    """Return each side's metrics, and the student's paired differences to the others, an Interval each; and
    whether the student is shown to lose less than MARGIN against the teacher, None without one.

    The test has the student's grades. A side with another number of labels is judged by its order alone.
    """
    texts = [(pair.query, pair.title) for pair in job.test]
    draws: dict[str, MetricDraws] = {}
    every: dict[str, MetricDraws] = {}
    evaluations: dict[str, Evaluation] = {}
    counts = np.empty(0)
    for name, clf in sides.items():
        scores = _scores(clf, texts, f"judging the {name}", bar)
        if len(clf.config.labels) == len(job.config.labels):
            evaluation = evaluation_of(job.test, scores)
        else:
            evaluation = Evaluation(job.test, scores.raw_score)
        counts = resample(evaluation.clusters, RESAMPLES, SEED)
        every[name] = evaluation.draws(counts)
        evaluations[name] = evaluation
        draws[name] = {metric: every[name][metric] for metric in METRICS if metric in every[name]}
    quality: Json = {name: intervals_of(drawn, counts) for name, drawn in draws.items()}
    for name in draws.keys() - {"student"}:
        quality[f"student_minus_{name}"] = _changes_in_both(draws[name], draws["student"], counts)
    if "teacher" not in evaluations:
        return quality, None
    outcome = non_inferiority(evaluations["teacher"], every["teacher"], every["student"], counts, MARGIN)
    return quality, outcome.as_json() | {"margin": MARGIN, "verdict": outcome.sentence("The student")}


def _changes_in_both(first: MetricDraws, second: MetricDraws, counts: Floats) -> dict[str, Interval]:
    """Return the paired changes of the metrics that both sides have."""
    both = [metric for metric in second if metric in first]
    before = {metric: first[metric] for metric in both}
    after = {metric: second[metric] for metric in both}
    return changes_of(before, after, counts)


def _agreement(
    sides: dict[str, Classifier], held_out: Sequence[Pair], job: Job, bar: ProgressBar
) -> Json | None:
    """Return Spearman's correlation within queries with what teaches, on queries that were not trained on: of
    the student, before, and the paired change. None if no such query has two titles of different scores."""
    if not held_out:
        return None
    texts = [(pair.query, pair.title) for pair in held_out]
    scores = {name: _scores(clf, texts, f"asking the {name}", bar).raw_score for name, clf in sides.items()}
    wanted = scores.get("teacher")
    if wanted is None:
        wanted = given_scores(held_out, are_shares=False)
    ranks = rankdata(wanted, "dense").tolist()  # the metric takes grades
    ranked = [LabelledPair(*text, int(rank)) for text, rank in zip(texts, ranks, strict=True)]
    before = Evaluation(ranked, scores["before"])
    if not before.ranked_queries:
        return None
    counts = resample(before.clusters, RESAMPLES, job.options.seed)
    student = Evaluation(ranked, scores["student"])
    draws = {"before": _order_draws(before, counts), "student": _order_draws(student, counts)}
    return {
        "queries": before.ranked_queries,
        **{name: intervals_of(drawn, counts)["query_spearman"] for name, drawn in draws.items()},
        "change": changes_of(draws["before"], draws["student"], counts)["query_spearman"],
    }


def _order_draws(evaluation: Evaluation, counts: Floats) -> MetricDraws:
    """Return Spearman's correlation within queries on the data and on resamples."""

    def statistics(drawn: Floats) -> dict[str, Floats]:
        return {"query_spearman": evaluation.mean_over_lists("query_spearman", drawn)}

    return evaluation.draws(counts, statistics)


def _speed(sides: dict[str, Classifier], pairs: Sequence[tuple[str, str]], bar: ProgressBar) -> Json:
    """Return pairs per second of teacher and student on one thread, which take turns, an Interval each, and
    how many times as fast the student is."""
    names = [name for name in sides if name != "before"]
    bar.start("speed", (1 + ROUNDS) * len(names))
    calls: list[Callable[[], object]] = [partial(sides[name].score, pairs) for name in names]
    with one_thread():
        seconds = in_turns(calls, ROUNDS, bar.advance)
    rates = {
        name: speedup(before=np.full(ROUNDS, float(len(pairs))), after=seconds[:, column])
        for column, name in enumerate(names)
    }
    times = None
    if "teacher" in names:
        columns = {name: column for column, name in enumerate(names)}
        times = speedup(before=seconds[:, columns["teacher"]], after=seconds[:, columns["student"]])
    return {"pairs": len(pairs), "threads": 1, "pairs_per_second": rates, "student_times_teacher": times}
