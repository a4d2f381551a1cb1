"""Measures the shipped network with its query computed once for a request's titles, and with each title."""

from collections import defaultdict
from collections.abc import Callable
from functools import partial
from itertools import cycle, islice

from benchmarks.measure import alternate, ratio
from benchmarks.report import Report, times_as_fast
from benchmarks.workload import SAMPLE
from headroom import Classifier
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.device import one_thread
from headroom.models.quality.labelled import read_labelled
from headroom.models.training.distil.running import sharing_query

TITLES = 20
REQUESTS = 30
LONG = 8
"""Tokens of a query from which on it counts as long: a quarter of the sample's are."""

SHARED = "once"
APART = "with each title"
TARGET = 1.2


def measure(rounds: int, requests: int = REQUESTS) -> Report:
    """Measure requests of TITLES titles in bf16, from tokens to logits, on one thread."""
    clf = Classifier.load(device="cpu", dtype="bfloat16")
    sharing = sharing_query(clf)
    report = Report(
        f"requests of {TITLES} titles from the sample, tokens to logits, in bf16 on one thread, {rounds} "
        "turns. Both have the shipped weights, which were not taught to share, so only times are compared."
    )
    lines = []
    for name, shortest, score in (
        ("alone", 0, _one_by_one),
        (f"alone, queries of {LONG} tokens and more", LONG, _one_by_one),
        ("in full batches", 0, _in_full_batches),
        (f"in full batches, queries of {LONG} tokens and more", LONG, _in_full_batches),
    ):
        encoded = _requests(clf, shortest)[:requests]
        sides: dict[str, Callable[[], None]] = {
            SHARED: partial(score, sharing, encoded),
            APART: partial(score, clf, encoded),
        }
        with one_thread():
            seconds = alternate(sides, rounds, warm_ups=2)
        times = ratio(seconds, SHARED, APART)
        tokens = sum(pair.query_tokens for pairs in encoded for pair in pairs) / (TITLES * len(encoded))
        lines.append({"requests": name, "tokens of a query": f"{tokens:.1f}", f"{SHARED} is ×": times.text()})
        report.rows.append(times_as_fast(f"{name}: × {APART}", times, TARGET))
    report.tables["The query's tokens are computed"] = lines
    return report


def _requests(clf: Classifier, shortest: int) -> list[list[EncodedPair]]:
    """Return the sample's queries of so many tokens, with TITLES titles each, some twice if it has fewer."""
    titles = defaultdict[str, list[str]](list)
    for pair in read_labelled(SAMPLE / "test.jsonl.gz", grades=5):
        titles[pair.query].append(pair.title)
    requests = (
        clf.tokenizer.encode([(query, title) for title in islice(cycle(own), TITLES)])
        for query, own in titles.items()
    )
    return [pairs for pairs in requests if pairs[0].query_tokens >= shortest]


def _one_by_one(clf: Classifier, requests: list[list[EncodedPair]]) -> None:
    for pairs in requests:
        clf.forward(pairs)


def _in_full_batches(clf: Classifier, requests: list[list[EncodedPair]]) -> None:
    clf.logits([pair for pairs in requests for pair in pairs], None)
