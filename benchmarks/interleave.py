"""Simulated users decide between variants by interleaving and by an A/B test on clicks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchmarks import interleaved
from benchmarks.clicks import (
    CLICK_MODELS,
    NO_TITLE,
    Bools,
    ClickModel,
    Clicks,
    Crowd,
    Rankings,
    click,
    hasty,
    visits,
)
from benchmarks.interleaved import PAGE, Floats, Ints, Lists, Way, alone, lists_of, team_draft
from benchmarks.report import Report, Row, at_least, at_most
from headroom.service.experiments.estimates import Boundary, Moments, contrast, estimate
from headroom.service.experiments.preference import Preference, Tally, preference

ROUNDS = 20

VARIANTS = {"full": "none", "pruned20": "@pruned20", "half_lower": "0-5.0-5"}
"""The variants by name; half_lower has half of the heads of the lower six layers off."""

CONTROL = "full"
ALPHA = 0.05
LOOK_EVERY = 50
"""Users between two looks."""

AA_RUNS = 400
AA_USERS = 600
AB_USERS = 30_000
PLANNED = {"interleave": 500, "ab": 15_000}
"""The units that the intervals are tuned to: about what finds half_lower."""

MANY_USERS = 100_000
"""Users of a comparison that needs no looks."""

TARGET = 15.0

HARM_MODELS = CLICK_MODELS | {"position-based, looking with chance 1/r": hasty}

BLIND = 2
"""The grade that all titles seem to have to users who click without looking at the title."""

CROWDS = {
    "plain": Crowd(),
    "2 % of users click in 20 lists of one query": Crowd(heavy=0.02),
    "the mix of queries drifts": Crowd(drifts=True),
    "5 % of users are bots that click everything": Crowd(bots=0.05),
}

WAYS: dict[str, Way] = {
    "team-draft, ties shared": team_draft,
    "team-draft as published": interleaved.classic_team_draft,
    "balanced": interleaved.balanced,
    "balanced, debiased": interleaved.counterfactual,
    "optimized": interleaved.optimized,
}

Credit = Callable[[Clicks], Floats]
CREDITS: dict[str, Credit] = {
    "mean": lambda clicks: clicks.values,
    "sum": lambda clicks: clicks.gained,
    "sign": lambda clicks: np.sign(clicks.values),
}
"""A user's value: the mean or the sum of the credits of his clicks, or which arm has more of them."""


def measure(rounds: int = ROUNDS) -> Report:
    """Score the sample's test queries and simulate everything. rounds: experiments that look for the harm."""
    rankings = Rankings.of_model(VARIANTS)
    queries = len(rankings.grades)
    report = Report(
        f"{queries} test queries of at least {PAGE} titles, scored in float32; {PAGE} are shown. Users have "
        "one to five lists each and click e^N(−0.3, 1) times as readily. Intervals at 95 %, with a look "
        f"every {LOOK_EVERY} users."
    )
    report.tables["units until the harm is found"] = [
        _harm(report, rankings, name, rounds) for name in HARM_MODELS
    ]
    report.tables[f"A/A: runs of {AA_RUNS} with a false alarm"] = [
        _alarms(report, rankings, crowd) for crowd in CROWDS
    ]
    report.tables["pruned20 against full"] = [_pruned(rankings, name) for name in CLICK_MODELS]
    report.tables["ways, with half_lower against full"] = [
        line for way in WAYS for line in _ways(report, rankings, way)
    ]
    return report


def lists_between(rankings: Rankings, treatment: str, way: Way = team_draft) -> Lists:
    """Return the lists that a way may show of CONTROL and another variant."""
    return lists_of(
        way,
        [
            (rankings.ranking(CONTROL, query), rankings.ranking(treatment, query))
            for query in range(len(rankings.grades))
        ],
    )


def alike(rankings: Rankings, seed: int = 0) -> Lists:
    """Return lists of CONTROL's order and of one with its equally graded titles in any order.

    Both have the same grades at every rank, so no user prefers one to the other, but most titles have a team.
    """
    rng = np.random.default_rng(seed)
    pairs = []
    for query, grades in enumerate(rankings.grades):
        order = np.array(rankings.ranking(CONTROL, query))
        shuffled = order.copy()
        for grade in np.unique(grades[grades != NO_TITLE]):
            has_grade = grades[order] == grade
            shuffled[has_grade] = rng.permutation(order[has_grade])
        pairs.append((order.tolist(), shuffled.tolist()))
    return lists_of(team_draft, pairs)


def differing(shown: Lists) -> float:
    """Return the share of lists in which a title of the page belongs to a team."""
    has_team = (shown.credit != 0).any(2)
    return float((shown.probability * has_team).sum(1).mean())


def preferences(values: Floats, planned: float) -> list[list[Preference]]:
    """Return the judgement at each look of each run. values: (runs, users), NaN for users without."""
    has_value = ~np.isnan(values)
    known = np.where(has_value, values, 0.0)

    def at_looks(of_users: Floats | Bools) -> list[list[float]]:
        return np.cumsum(of_users, axis=1)[:, LOOK_EVERY - 1 :: LOOK_EVERY].tolist()  # type: ignore[no-any-return]

    units = at_looks(has_value)
    totals = at_looks(known)
    squares = at_looks(known**2)
    return [
        [
            preference(Tally(int(count), total, square), planned_units=planned, alpha=ALPHA)
            for count, total, square in zip(*looks, strict=True)
        ]
        for looks in zip(units, totals, squares, strict=True)
    ]


def found_after(values: Floats, planned: float) -> Floats:
    """Return the users at the first look whose interval is clear of 0, (runs,); infinity if none is.

    values: (runs, users), NaN for users without one, who are counted too.
    """
    first = np.full(len(values), math.inf)
    for run, looks in enumerate(preferences(values, planned)):
        for look, found in enumerate(looks, start=1):
            if found.interval[0] > 0 or found.interval[1] < 0:
                first[run] = look * LOOK_EVERY
                break
    return first


def ab_found_after(clicks: Floats, is_treated: Bools, planned: float) -> Floats:
    """Return the users at the first look at which an A/B test on clicks finds a difference, (runs,).

    clicks, is_treated: (runs, users). Infinity if no look finds one.
    """
    arms = [_moments_at_looks(clicks, weight) for weight in (~is_treated, is_treated)]
    pooled = arms[0] + arms[1]
    control, treatment, both = (estimate(part, pooled) for part in (*arms, pooled))
    at_looks = contrast(control, treatment, both, Boundary(ALPHA, planned))
    is_found = (at_looks.low > 0) | (at_looks.high < 0)
    return np.where(is_found.any(1), (is_found.argmax(1) + 1.0) * LOOK_EVERY, math.inf)


def _moments_at_looks(value: Floats, weight: Bools) -> Moments:
    """Return the moments of the users with a weight at each look, (runs, looks)."""

    def at_looks(of_users: Floats | Bools) -> Floats:
        return np.cumsum(of_users * weight, axis=1)[:, LOOK_EVERY - 1 :: LOOK_EVERY].astype(np.float64)

    units = at_looks(np.ones_like(value))
    sums = np.zeros((*units.shape, 3))
    products = np.zeros((*units.shape, 3, 3))
    sums[..., 0] = at_looks(value)
    products[..., 0, 0] = at_looks(value**2)
    return Moments.from_sums(units, sums, products, np.zeros(3))


def in_both(
    rankings: Rankings, treatment: str, model: ClickModel, runs: int, users: int
) -> Iterator[tuple[Clicks, Clicks, Bools]]:
    """Let the same users take part in an interleaving experiment and in an A/B test, run by run.

    Yields the clicks in the first and in the second, and whether a user saw the treatment in the second.
    """
    mixed = lists_between(rankings, treatment)
    by_arm = lists_between(rankings, treatment, alone)
    grades = rankings.grades
    for run in range(runs):
        rng = np.random.default_rng(run)
        of = visits(Crowd(), users, users, len(grades), rng)
        arm = rng.random(users)
        yield (
            click(model, mixed, grades, of, rng),
            click(model, by_arm, grades, replace(of, luck=arm[of.user]), rng),
            arm >= 0.5,
        )


@dataclass(frozen=True, slots=True)
class Harm:
    """How the harm of half_lower is found by the same users in both kinds of experiment.

    units, ab_units: median users until it is found. times_z: ratio of z² per user, over all runs.
    preference: the mean value. change: of clicks per user, as a share. valued: share of users with a value.
    """

    units: float
    ab_units: float
    times_z: float
    preference: float
    change: float
    valued: float


def harm(rankings: Rankings, model: ClickModel, runs: int, users: int) -> Harm:
    """Look for the harm in several runs."""
    parts = list(in_both(rankings, "half_lower", model, runs, users))
    values = np.stack([mixed.values for mixed, _, _ in parts])
    clicks = np.stack([ab.number for _, ab, _ in parts])
    is_treated = np.stack([treated for _, _, treated in parts])
    return Harm(
        units=float(np.median(found_after(values, PLANNED["interleave"]))),
        ab_units=float(np.median(ab_found_after(clicks, is_treated, PLANNED["ab"]))),
        times_z=signal(values) / ab_signal(clicks, is_treated),
        preference=float(np.nanmean(values)),
        change=float(clicks[is_treated].mean() / clicks[~is_treated].mean() - 1),
        valued=float(np.mean(~np.isnan(values))),
    )


def signal(values: Floats) -> float:
    """Return z² per user of the hypothesis that the mean is 0. The users needed are as its inverse."""
    known = values[~np.isnan(values)]
    return float(known.mean() ** 2 / known.var() * known.size / values.size)


def ab_signal(clicks: Floats, is_treated: Bools) -> float:
    """Return z² per user of an A/B test on clicks per user; see `signal`."""
    arms = [clicks[~is_treated], clicks[is_treated]]
    variance = sum(arm.var() / arm.size for arm in arms)
    return float((arms[1].mean() - arms[0].mean()) ** 2 / variance / clicks.size)


def _harm(report: Report, rankings: Rankings, name: str, runs: int) -> dict[str, str]:
    found = harm(rankings, HARM_MODELS[name], runs, AB_USERS)
    if name in CLICK_MODELS:
        row = f"users that an A/B test needs, for each of interleaving's, {name}"
        report.rows.append(at_least(row, found.ab_units / found.units, TARGET, ".1f"))
    return {
        "users": name,
        "interleaving": f"{found.units:,.0f}",
        "A/B test on clicks": f"{found.ab_units:,.0f}",
        "× by z²": f"{found.times_z:.1f}",
        "preference": f"{found.preference:+.3f}",
        "clicks of a user": f"{found.change:+.1%}",
        "users with a value": f"{found.valued:.0%}",
        "lists that differ": f"{differing(lists_between(rankings, 'half_lower')):.0%}",
    }


def false_alarms(rankings: Rankings, crowd: Crowd, model: ClickModel, runs: int = AA_RUNS) -> float:
    """Return the share of A/A runs of AA_USERS users in which any look's interval excludes 0."""
    rng = np.random.default_rng(2)
    of = visits(crowd, runs * AA_USERS, AA_USERS, len(rankings.grades), rng)
    clicks = click(model, alike(rankings), rankings.grades, of, rng)
    found = found_after(clicks.values.reshape(runs, -1), AA_USERS)
    return float(np.isfinite(found).mean())


def _alarms(report: Report, rankings: Rankings, name: str) -> dict[str, str]:
    line = {"users": name}
    for model_name, model in CLICK_MODELS.items():
        share = false_alarms(rankings, CROWDS[name], model)
        report.rows.append(at_most(f"false alarms, {model_name}, {name}", 100 * share, 5.0, ".1f", " %"))
        line[model_name] = f"{share:.1%}"
    return line


def _pruned(rankings: Rankings, name: str) -> dict[str, str]:
    shown = lists_between(rankings, "pruned20")
    rng = np.random.default_rng(3)
    of = visits(Crowd(), MANY_USERS, MANY_USERS, len(rankings.grades), rng)
    values = click(CLICK_MODELS[name], shown, rankings.grades, of, rng).values
    last = preferences(values[None], 3000)[0][-1]
    return {
        "users": name,
        "lists that differ": f"{differing(shown):.0%}",
        "preference": f"{last.estimate:+.4f} ({last.interval[0]:+.4f} to {last.interval[1]:+.4f})",
        "users with a value": f"{last.units:,} of {MANY_USERS:,}",
    }


def blinded(grades: Ints) -> Ints:
    """Return the grades as they seem to users who click and leave by position alone: all titles are alike."""
    return np.full_like(grades, BLIND)


def bias(values: Floats) -> tuple[float, float]:
    """Return the mean of users' values, and its z. Both should be near 0 for users who are blind."""
    known = values[~np.isnan(values)]
    mean = float(known.mean())
    return mean, mean / float(known.std() / math.sqrt(len(known)))


def _ways(report: Report, rankings: Rankings, name: str) -> list[dict[str, str]]:
    shown = lists_between(rankings, "half_lower", WAYS[name])
    ours = lists_between(rankings, "half_lower")
    of = visits(Crowd(), MANY_USERS, MANY_USERS, len(rankings.grades), np.random.default_rng(4))
    lines = [{"way": name, "a user's value": credit} for credit in CREDITS]
    for model_name, model in CLICK_MODELS.items():
        clicks = click(model, shown, rankings.grades, of, np.random.default_rng(5))
        reference = click(model, ours, rankings.grades, of, np.random.default_rng(5))
        blind = click(model, shown, blinded(rankings.grades), of, np.random.default_rng(6))
        for line, credit in zip(lines, CREDITS.values(), strict=True):
            needed = signal(reference.values) / signal(credit(clicks))
            mean, z = bias(credit(blind))
            line[f"{model_name}: users needed, ×"] = f"{needed:.2f}"
            line[f"{model_name}: bias"] = f"{mean:+.4f} (z {z:+.1f})"
        if WAYS[name] is team_draft:
            _, z = bias(blind.values)
            report.rows.append(Row(f"position bias, {model_name}", f"z {z:+.1f}", "within ±3", abs(z) <= 3))
    return lines
