"""What a study's pairs can show: names the claims that it cannot make, because too few queries or draws stand
behind them, and chooses the pairs of a `--quick` study.

A quick study takes few pairs, but as many queries as its claim needs by a pilot, within a bound. The held-out
pairs of a search are never cut: its last test is the same, quick or not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headroom.models.numbers import number, rounded
from headroom.models.quality.bootstrap import ERROR_RATE, minimum_margin, minimum_queries
from headroom.models.study.pairs import Judged, quick_sample
from headroom.models.study.runner import Matrix
from headroom.models.study.statistics import LEVEL, Resamples
from headroom.models.study.study import QUICK, QUICK_TITLES, Study

PAIRS = 250
"""The pairs of the pilot, or more if the tests need more queries."""

MOST = 6
"""A study takes at most so many times as many pairs as its pilot: it stays quick."""

MASKS = 4
"""A pilot takes the spread under the mask that moves the metrics least: a study looks for such masks."""

DRAWN = 0.1
"""The share of the heads that a mask of a pilot removes where the study itself removes several."""


def limits(kind: str, study: Study) -> list[str]:
    """Return a sentence about each claim that a study of this kind cannot make, or hardly. It takes no
    computing."""
    effort = study.effort
    sentences = []
    for which, claim, masks in (
        ("single", "that a head alone is harmless", len(study.heads)),
        ("layers", "that a layer alone is harmless", study.shape[0]),
        ("random", "that some heads at random change nothing", len(study.measures.names)),
    ):
        if kind in (which, "all") and study.part == "encoder":
            sentences += _queries(claim, study.data, study.margin, LEVEL / masks, f"study {which}")
    if kind in ("roles", "all"):
        claim = "that a role's heads matter more than others of their layers"
        sentences += _draws(claim, "sets of heads", effort.role_sets)
    if kind in ("search", "all"):
        claim = "that a smaller network is good enough"
        if study.holdout is None:
            sentences.append(f"This run cannot show {claim}: that takes other queries (--holdout).")
        else:
            sentences += _queries(claim, study.holdout, study.margin, ERROR_RATE, "study search")
        sentences += _draws("that it matters which parts stay", "networks", effort.random_networks)
    if kind == "all" and study.left_out:
        sentences.append("`study initialisation` is left out: 8-bit weights cannot be trained.")
    return [*sentences, *study.too_hard]


def _queries(claim: str, data: Judged, margin: float, level: float, command: str) -> list[str]:
    """Say that the queries are too few for a margin, and what they can show. level: of the test of one mask.
    command: that makes the claim."""
    ranked = data.ranked_queries
    needed = minimum_queries(margin, level)
    if ranked >= needed:
        return []
    smallest = minimum_margin(ranked, level)
    possible = (
        f"they can show a loss below {number(rounded(smallest, up=True, digits=2))} at best (--margin)"
        if smallest <= 0.5
        else "they can show no useful margin"
    )
    others = "" if command == "study search" else "; which parts matter can be shown all the same"
    queries = f"{ranked} of the {len(data.queries)} queries of {data.source} have titles of different grades"
    return [
        f"`{command}` cannot show {claim} with a margin of {margin:g}: {queries}, and that takes {needed:,}; "
        f"{possible}{others}."
    ]


def _draws(claim: str, what: str, draws: int) -> list[str]:
    if 1 / (1 + draws) <= LEVEL:
        return []
    return [
        f"This run cannot show {claim}: beside {draws} random {what} no p-value is below "
        f"{1 / (1 + draws):.2f}."
    ]


@dataclass(frozen=True)
class Pilot:
    """A claim that a study may show, and masks like those that it would show it of.

    level: of the one-sided test of one mask.
    """

    claim: str
    masks: Sequence[Matrix]
    level: float


def shortened(kind: str, study: Study) -> Study:
    """Return the study on few of its pairs. It knows which claims they will hardly show."""
    data, sentences = _sample(study, study.data, PAIRS, _of_data(kind, study))
    return replace(study, data=data, effort=QUICK, too_hard=tuple(sentences))


def _of_data(kind: str, study: Study) -> Pilot | None:
    """Return the pilot for what a study of this kind tests on the data that it studies."""
    rng = np.random.default_rng([study.seed, 13])
    if study.part != "encoder":
        return None
    if kind in ("single", "all"):
        heads = [study.heads[number] for number in rng.permutation(len(study.heads))[:MASKS]]
        masks = [study.without([head]) for head in heads]
        return Pilot("that a head alone is harmless", masks, LEVEL / len(study.heads))
    if kind == "layers":
        layers = sorted({layer for layer, _ in study.heads})
        drawn = rng.permutation(layers)[:MASKS]
        masks = [study.without(head for head in study.heads if head[0] == layer) for layer in drawn]
        return Pilot("that a layer alone is harmless", masks, LEVEL / len(layers))
    if kind == "random":
        return Pilot("that some heads are harmless", _random(study, rng), LEVEL)
    return None


def _random(study: Study, rng: np.random.Generator) -> list[Matrix]:
    """Return MASKS masks without the share DRAWN of the heads."""
    count = max(1, round(DRAWN * len(study.heads)))
    return [
        study.without(study.heads[number] for number in rng.permutation(len(study.heads))[:count])
        for _ in range(MASKS)
    ]


def _sample(study: Study, whole: Judged, pairs: int, pilot: Pilot | None) -> tuple[Judged, list[str]]:
    """Return as many queries as the pilot asks for, about QUICK_TITLES titles each, and a sentence if these
    are more than there are or than a quick study takes."""
    minimum = 0 if pilot is None else minimum_queries(study.margin, pilot.level)
    fits = minimum * QUICK_TITLES <= MOST * pairs
    sample = quick_sample(whole, pairs, QUICK_TITLES, study.seed, ranked=minimum if fits else 0)
    if pilot is None:
        return sample, []
    if sample.ranked_queries < minimum:  # `limits` says that even these cannot show it
        wanted = min(MOST * pairs, _of_all_queries(whole, study))
        return quick_sample(whole, wanted, QUICK_TITLES, study.seed), []
    piloted = len(sample.queries)
    needed = _queries_needed(study, sample, pilot)
    if needed is None or needed <= piloted:
        return sample, []
    wanted = min(needed * QUICK_TITLES, MOST * pairs, _of_all_queries(whole, study))
    larger = quick_sample(whole, wanted, QUICK_TITLES, study.seed, ranked=minimum)
    sample = max(sample, larger, key=lambda data: len(data.queries))
    if needed <= len(sample.queries):
        return sample, []
    return sample, [
        f"This run will hardly show {pilot.claim} (margin {study.margin}): by a pilot on {piloted:,} queries "
        f"of {whole.source} that takes about {needed:,}, and this run takes {len(sample.queries):,}."
    ]


def _of_all_queries(whole: Judged, study: Study) -> int:
    """Return how many pairs QUICK_TITLES titles of each query are: with more come more titles of fewer
    queries."""
    _, turn = whole.in_turns(study.seed)
    return int(np.count_nonzero(turn < QUICK_TITLES))


def _queries_needed(study: Study, sample: Judged, pilot: Pilot) -> int | None:
    """Return how many queries would show that the easiest of the pilot's masks costs less than the margin,
    if it costs nothing; None if that is not known of one."""
    whole, *masked = study.runner.evaluate(sample, [study.without(()), *pilot.masks], "pilot")
    resamples = Resamples(whole, QUICK.resamples, study.seed)
    tested = whole.measures.tested
    counts = [
        resamples.queries_needed_for(
            resamples.changes(resamples.draws(one)), tested, study.margin, pilot.level
        )
        for one in masked
    ]
    known = [count for count in counts if count is not None]
    return min(known, default=None)
