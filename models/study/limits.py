"""Names the claims that a study cannot make, because too few queries or draws stand behind them."""

from headroom.models.numbers import number, rounded
from headroom.models.quality.bootstrap import ERROR_RATE, minimum_margin, minimum_queries
from headroom.models.study.pairs import Judged
from headroom.models.study.statistics import LEVEL
from headroom.models.study.study import Study


def limits(kind: str, study: Study) -> list[str]:
    """Return a sentence about each claim that a study of this kind cannot make, whatever it finds."""
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
    return sentences


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
