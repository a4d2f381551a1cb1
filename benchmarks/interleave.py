"""Simulated users decide between variants by interleaving and by an A/B test on clicks."""

import math
from collections.abc import Callable
from dataclasses import replace

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
    impatient,
    visits,
)
from benchmarks.interleaved import PAGE, Floats, Ints, Lists, Way, alone, lists_of, team_draft
from benchmarks.report import Report, Row, at_least, at_most
from headroom.service.experiments.estimates import Boundary, Moments, contrast, estimate
from headroom.service.experiments.preference import Preference, Tally, preference

ROUNDS = 10

VARIANTS = {"full": "none", "pruned20": "@pruned20", "half_lower": "0-5.0-5"}
"""The variants by name; half_lower has half of the heads of the lower six layers off."""

CONTROL = "full"
ALPHA = 0.05
LOOK_EVERY = 50
"""Users between two looks."""

AA_RUNS = 400
AA_USERS = 600
AB_USERS = 60_000
PLANNED = {"interleave": 600, "ab": 15_000}
"""The units that the intervals are tuned to: about what finds half_lower."""

MANY_USERS = 200_000
"""Users of a comparison that needs no looks."""

TARGET = 15.0

HARM_MODELS = CLICK_MODELS | {"position-based, looking with chance 1/r": impatient}

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
        f"{queries} test queries of at least {PAGE} titles, scored in float32; pages of {PAGE}. Users have "
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


def ab_found_after(clicks: Clicks, is_treated: Bools, runs: int, planned: float) -> Floats:
    """Return the users at the first look at which an A/B test on clicks per user differs, (runs,)."""
    value = clicks.number.reshape(runs, -1)
    treated = is_treated.reshape(runs, -1)
    arms = [_moments_at_looks(value, weight) for weight in (~treated, treated)]
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
    rankings: Rankings, treatment: str, model: ClickModel, runs: int, users: int, seed: int
) -> tuple[Clicks, Clicks, Bools]:
    """Let the same users take part in an interleaving experiment and in an A/B test.

    Returns the clicks in the first and in the second, and whether a user saw the treatment in the second.
    """
    rng = np.random.default_rng(seed)
    of = visits(Crowd(), runs * users, users, len(rankings.grades), rng)
    mixed = click(model, lists_between(rankings, treatment), rankings.grades, of, rng)
    arm = rng.random(runs * users)
    by_arm = replace(of, luck=arm[of.user])
    ab = click(model, lists_between(rankings, treatment, alone), rankings.grades, by_arm, rng)
    return mixed, ab, arm >= 0.5


def signal(values: Floats) -> float:
    """Return z² per user of the hypothesis that the mean is 0. The users needed are as its inverse."""
    known = values[~np.isnan(values)]
    return float(known.mean() ** 2 / known.var() * len(known) / len(values))


def ab_signal(clicks: Clicks, is_treated: Bools) -> float:
    """Return z² per user of an A/B test on clicks per user; see `signal`."""
    arms = [clicks.number[~is_treated], clicks.number[is_treated]]
    variance = sum(arm.var() / len(arm) for arm in arms)
    return float((arms[1].mean() - arms[0].mean()) ** 2 / variance / len(clicks.number))


def _harm(report: Report, rankings: Rankings, name: str, runs: int) -> dict[str, str]:
    mixed, ab, is_treated = in_both(rankings, "half_lower", HARM_MODELS[name], runs, AB_USERS, seed=1)
    mixed_units = float(np.median(found_after(mixed.values.reshape(runs, -1), PLANNED["interleave"])))
    ab_units = float(np.median(ab_found_after(ab, is_treated, runs, PLANNED["ab"])))
    if name in CLICK_MODELS:
        row = f"users that an A/B test needs, for each of interleaving's, {name}"
        report.rows.append(at_least(row, ab_units / mixed_units, TARGET, ".0f"))
    change = ab.number[is_treated].mean() / ab.number[~is_treated].mean() - 1
    return {
        "users": name,
        "interleaving": f"{mixed_units:,.0f}",
        "A/B test on clicks": f"{ab_units:,.0f}",
        "× by z²": f"{signal(mixed.values) / ab_signal(ab, is_treated):.0f}",
        "preference": f"{np.nanmean(mixed.values):+.3f}",
        "clicks of a user": f"{change:+.1%}",
        "users with a value": f"{np.mean(~np.isnan(mixed.values)):.0%}",
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
    of = visits(Crowd(), AB_USERS, AB_USERS, len(rankings.grades), rng)
    values = click(CLICK_MODELS[name], shown, rankings.grades, of, rng).values
    last = preferences(values[None], 3000)[0][-1]
    return {
        "users": name,
        "lists that differ": f"{differing(shown):.0%}",
        "preference": f"{last.estimate:+.4f} ({last.interval[0]:+.4f} to {last.interval[1]:+.4f})",
        "users with a value": f"{last.units:,} of {AB_USERS:,}",
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
            report.rows.append(Row(f"position bias, {model_name}", f"z {z:+.1f}", "|z| ≤ 3", abs(z) <= 3))
    return lines
