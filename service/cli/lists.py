"""Measures how much the lists of two variants differ, for `headroom experiment plan --interleave`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer

from headroom.models.commands.options import Network
from headroom.models.terminal import counted

if TYPE_CHECKING:
    from headroom.service.experiments.drawn_lists import Lists
    from headroom.service.scoring.catalog import Variant


@dataclass(frozen=True, slots=True)
class Measured:
    """A measure of how much lists differ. source: where it comes from, in words."""

    lists: Lists
    source: str


def measure(network: Network, data: Path | None, shown: int | None, differing: float | None) -> Measured:
    """Return how much the lists differ by the one source that is given, or what is assumed without one.

    network: names the treatment on `data`, of which a list shows `shown` titles.
    Raises BadParameter for two sources or a wrong one, ModelError for data that cannot be read.
    """
    from headroom.service.experiments.drawn_lists import ASSUMED, DECIDING_IN_DIFFERING, Lists

    if data is not None and differing is not None:
        raise typer.BadParameter("leave out --data or this one", param_hint="--differing")
    if data is not None:
        return _on_data(network, data, shown)
    if differing is None:
        return Measured(ASSUMED, "assumed, as of pruned20 on our sample; --data measures yours")
    if not 0 < differing <= 1:
        raise typer.BadParameter("must be above 0 and at most 1", param_hint="--differing")
    lists = Lists(differing, DECIDING_IN_DIFFERING * differing)
    return Measured(lists, "--differing; of their clicks, 40 % assumed")


def _on_data(network: Network, data: Path, shown: int | None) -> Measured:
    from headroom.models.quality.labelled import read_pairs
    from headroom.service.cli.choice import both
    from headroom.service.experiments.drawn_lists import measure_lists

    if network.variant is None and network.mask is None:
        raise typer.BadParameter("say what the treatment is: --variant or --mask", param_hint="--data")
    pairs = read_pairs(data)
    of_query: dict[str, list[int]] = {}
    for index, (query, _) in enumerate(pairs):
        of_query.setdefault(query, []).append(index)
    pages = [page for page in of_query.values() if len(page) > 1]
    if not pages:
        raise typer.BadParameter(f"{data} has no query with two titles", param_hint="--data")
    control, treatment = both(network)
    with counted("pairs", 2 * len(pairs)) as advance:
        scores = [_raw_scores(variant, pairs, advance) for variant in (control, treatment)]
    lists = measure_lists([(scores[0][page], scores[1][page]) for page in pages], shown)
    name = " ".join(filter(None, [network.variant, network.mask]))
    return Measured(lists, f"{name} on {len(pages):,} queries of {data}")


def _raw_scores(
    variant: Variant, pairs: Sequence[tuple[str, str]], advance: Callable[[int], None]
) -> np.ndarray:
    """Return (pairs,) raw scores, which rank the titles of a query."""
    from headroom.service.scoring.offline import score

    return score(variant, pairs, advance=advance).scores.raw_score
