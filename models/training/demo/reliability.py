"""Draws the calibration curves of the groups of sources."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from models.quality.calibration import Curve, curve
from models.training.data import Judged, source_groups
from models.training.evaluate import Floats

SHOWN = {"products": "ESCI and Chorus", "esci": "ESCI", "chorus": "Chorus", "dbpedia": "DBpedia"}
"""The groups that get a curve; the others have too few pairs."""

_STYLES = (("#0072B2", "o", "-"), ("#D55E00", "s", "--"), ("#009E73", "^", ":"), ("#666666", "D", "-."))


def curves(judged: Sequence[Judged], probabilities: Floats) -> dict[str, Curve]:
    """Return a curve for each group of sources in `SHOWN`."""
    groups = source_groups(judged)
    return {
        name: curve([judged[place].grade for place in groups[name]], probabilities[groups[name]])
        for name in SHOWN
        if name in groups
    }


def plot(found: Mapping[str, Curve], path: Path) -> None:
    """Draw the curves as PNG or SVG, by the path's ending; a point's size is its number of pairs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 4.8), layout="constrained")
    axes = figure.subplots()
    axes.plot((0, 1), (0, 1), color="#999999", linewidth=1, label="perfectly calibrated")
    for (name, points), (color, marker, line) in zip(found.items(), _STYLES, strict=False):
        few = points.pairs < 20  # too few to mean anything
        axes.plot(points.confidence[~few], points.accuracy[~few], line, color=color, linewidth=1.4)
        axes.scatter(
            points.confidence[~few],
            points.accuracy[~few],
            s=12 + 160 * points.pairs[~few] / points.pairs.sum(),
            color=color,
            marker=marker,
            label=f"{SHOWN[name]} ({points.pairs.sum():,.0f} pairs)",
        )
    axes.set(
        xlim=(0.15, 1),
        ylim=(0, 1),
        xlabel="probability of the likeliest grade",
        ylabel="share of pairs where it is the human grade",
    )
    axes.grid(color="#e5e5e5")
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
