"""Names the claims that a study cannot make, because too few queries or draws stand behind them."""

from headroom.models.quality.bootstrap import MIN_TESTED
from headroom.models.study.pairs import Judged
from headroom.models.study.statistics import LEVEL
from headroom.models.study.study import Study


def limits(kind: str, study: Study) -> list[str]:
    """Return a sentence about each claim that a study of this kind cannot make, or hardly. It takes no
    computing."""
    effort = study.effort
    sentences = []
    if kind in ("single", "random", "layers", "all"):
        sentences += _queries("that anything is harmless", study.data)
    if kind in ("roles", "all"):
        claim = "that a role's heads matter more than others of their layers"
        sentences += _draws(claim, "sets of heads", effort.role_sets)
    if kind in ("search", "all"):
        claim = "that a smaller network is good enough"
        if study.holdout is None:
            sentences.append(f"This run cannot show {claim}: that takes other queries (--holdout).")
        else:
            sentences += _queries(claim, study.holdout)
        sentences += _draws("that it matters which parts stay", "networks", effort.random_networks)
    return [*sentences, *study.too_hard]


def _queries(claim: str, data: Judged) -> list[str]:
    if data.ranked_queries >= MIN_TESTED:
        return []
    return [
        f"This run cannot show {claim}: {data.ranked_queries} of the {len(data.queries)} queries of "
        f"{data.source} have titles of different grades, and the test needs {MIN_TESTED}."
    ]


def _draws(claim: str, what: str, draws: int) -> list[str]:
    if 1 / (1 + draws) <= LEVEL:
        return []
    return [
        f"This run cannot show {claim}: beside {draws} random {what} no p-value is below "
        f"{1 / (1 + draws):.2f}."
    ]
