"""The report of `words`: JSON, conclusion, table and plot."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from models.quality.bootstrap import MIN_QUERIES, Interval
from models.study import plots
from models.study.result import Figure, Result, Section, Table
from models.study.wording import listed, with_interval
from models.study.words.compute import MAX_WORDS, MIN_WORDS, WordChoice

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


def result(found: WordChoice) -> Result:
    """Return the report of the choice of words."""
    return Result("words", {"words": _json(found)}, _conclusion(found), (_section(found),))


def _conclusion(found: WordChoice) -> str:
    if not found.layers:
        return (
            f"Only {found.queries} queries have {MIN_WORDS} to {MAX_WORDS} words and titles of different "
            f"grades; at least {MIN_QUERIES} are needed to say which layers know which words matter."
        )
    worst = min(found.layers, key=lambda layer: layer.ndcg10.value)
    beyond = [str(layer.layer) for layer in found.layers if layer.ndcg10.high < 0]
    least = min(found.layers, key=lambda layer: layer.agreement.value)
    noun = "layers" if len(beyond) > 1 else "layer"
    return (
        f"Half of the words of {found.queries} queries, chosen by the whole model, rank the titles with "
        f"NDCG@10 {found.condensed:.3f}; all words with {found.whole:.3f}. Words chosen with one layer off "
        f"rank them worst without layer {worst.layer}: {with_interval(worst.ndcg10)}. "
        + (f"The interval is below 0 for {noun} {listed(beyond)}. " if beyond else "No interval is below 0. ")
        + f"Without layer {least.layer} the words are ordered least as by the whole model: rank correlation "
        f"{least.agreement.value:.2f}."
    )


def _section(found: WordChoice) -> Section:
    if not found.layers:
        return Section("Which layers know which words matter")
    return Section(
        "Which layers know which words matter",
        (
            f"Each query of {MIN_WORDS} to {MAX_WORDS} words was condensed to half of them (mean "
            f"{found.words:.1f} to {found.kept:.1f} words) by the loss of each word left out alone, under "
            "the whole model and with each layer off. The whole model then ranked the titles by the words "
            "that were kept, so a change is the choice of words and nothing else. Intervals are 95 % "
            "(symmetric bootstrap-t over queries) and hold for one layer at a time.",
        ),
        (
            Table(
                ("layer off", "Δ NDCG@10 of the condensed ranking", "rank correlation of the importance"),
                tuple(
                    (str(layer.layer), with_interval(layer.ndcg10), _plain(layer.agreement))
                    for layer in found.layers
                ),
            ),
        ),
        (
            Figure(
                "words-layers",
                "Change of NDCG@10 in points (hundredths) when a layer is off while the words are chosen.",
                partial(_draw, found),
                "The change of NDCG@10 with its interval for each layer.",
            ),
        ),
    )


def _plain(value: Interval) -> str:
    if value.low != value.low:
        return f"{value.value:.2f} (no interval)"
    return f"{value.value:.2f} ({value.low:.2f} to {value.high:.2f})"


def _json(found: WordChoice) -> dict[str, object]:
    if not found.layers:
        return {"queries": found.queries, "layers": []}
    return {
        "queries": found.queries,
        "mean_words": found.words,
        "mean_kept": found.kept,
        "ndcg10": {"all_words": found.whole, "condensed": found.condensed},
        "layers": [
            {
                "layer": layer.layer,
                "delta": {"ndcg10": layer.ndcg10.value},
                "interval": {"ndcg10": [layer.ndcg10.low, layer.ndcg10.high]},
                "agreement": layer.agreement.value,
                "agreement_interval": [layer.agreement.low, layer.agreement.high],
            }
            for layer in found.layers
        ],
    }


def _draw(found: WordChoice) -> Drawing:
    """Draw the change of each layer with its interval."""
    drawing, axes = plots.figure(8, 0.3 * len(found.layers) + 1.4)
    points = [
        (100 * layer.ndcg10.value, 100 * layer.ndcg10.low, 100 * layer.ndcg10.high) for layer in found.layers
    ]
    marked = [not layer.ndcg10.low <= 0 <= layer.ndcg10.high for layer in found.layers]
    plots.intervals(axes, [str(layer.layer) for layer in found.layers], points, marked=marked)
    axes.set(
        xlabel="change of NDCG@10 in points (0.01), 95 % interval",
        ylabel="layer off",
        title=f"Words chosen without one layer: {found.kept:.1f} of {found.words:.1f} on average",
    )
    return drawing
