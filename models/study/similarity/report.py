"""What `similarity` found, as JSON, tables, plots and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from models.study import claims
from models.study.base import Figure, Finding, Section, Study, Table
from models.study.plots import LINES, figure
from models.study.similarity.probes import Curve
from models.study.similarity.seeds import Seeds
from models.study.wording import p_value, signed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from models.study.similarity.compute import Alike

Curves = Mapping[str, Curve]
TITLES = {"word_end": "where words end", "term_overlap": "which terms match", "grade": "the grade"}
SCORES = {"word_end": "AUC", "term_overlap": "AUC", "grade": "Spearman"}
_SHARED = "most heads share their pattern"
_INITIAL = "differences between heads come from initialisation"
_SYNTAX = "syntax low, meaning high"


def as_json(found: Alike, probes: Curves, other: Seeds | None, pairs: int) -> dict[str, Any]:
    """The keys of report.json that are the study's own."""
    return {
        "similarity": {
            "pairs": pairs,
            "heads": [list(head) for head in found.heads],
            "distance": found.matrix.round(4).tolist(),
            "within_layers": _triple(found.within),
            "across_layers": _triple(found.across),
            "across_minus_within": {**_triple(found.gap), "p": found.gap_p},
            "by_layer": found.by_layer,
            "mean": found.mean,
            "sharing": found.sharing,
            "clusters": found.clusters.tolist(),
            "silhouette": found.silhouette,
        },
        "probes": {
            name: {
                "score": SCORES[name],
                "value": _plain(curve.value),
                "low": _plain(curve.low),
                "high": _plain(curve.high),
                "control": _plain(curve.control),
            }
            for name, curve in probes.items()
        },
        "seeds": None
        if other is None
        else {
            "matched": _triple(other.matched),
            "random_matching": other.chance,
            "p": other.p,
            "same_place": other.same_place,
            "same_place_p": other.same_place_p,
            "nearest_within": other.nearest_within,
            "matched_minus_nearest_within": _triple(other.extra),
            "matched_in_same_layer": other.same_layer,
            "pairs": other.pairs,
            "left_out": other.left_out,
        },
    }


def conclusion(found: Alike, probes: Curves, other: Seeds | None, study: Study) -> str:
    """One paragraph that follows from the numbers."""
    text = [
        f"Two heads of one layer are {_with(found.within)} apart in Jensen–Shannon distance, two of "
        f"different layers {_with(found.across)} (difference {_with(found.gap)}, p = "
        f"{p_value(found.gap_p)}). {found.sharing:.0%} of the heads have another head at less than half the "
        f"mean distance of {found.mean:.2f}; the best cut of the tree makes "
        f"{len(np.unique(found.clusters))} clusters (silhouette {found.silhouette:.2f})."
    ]
    for name, curve in probes.items():
        peak = int(np.nanargmax(curve.value))
        text.append(
            f"A linear probe tells {TITLES[name]} best from {_place(peak)} ({SCORES[name]} "
            f"{curve.value[peak]:.3f}, {curve.low[peak]:.3f} to {curve.high[peak]:.3f}; control "
            f"{curve.control[peak]:.3f})."
        )
    if other is None:
        text.append(
            "There was no second model to compare with (--peer), so nothing is said about training seeds."
            if study.peer is None
            else "Too few queries are cut into the same words by both models to compare their heads."
        )
    else:
        text.append(_seeds_sentence(other))
    return " ".join(text)


def sections(
    found: Alike, probes: Curves, other: Seeds | None, study: Study, pairs: int
) -> tuple[Section, ...]:
    """Distances, probes, seeds."""
    rows = [
        ("two heads of one layer", _with(found.within)),
        ("two heads of different layers", _with(found.across)),
        ("difference", f"{_with(found.gap)}, p = {p_value(found.gap_p)}"),
        *((f"within layer {layer}", f"{value:.3f}") for layer, value in found.by_layer.items()),
    ]
    distances = Section(
        "Similarity: the heads' patterns",
        (
            "The distance of two heads is the mean over words of √JSD (base 2) between what they attend to, "
            f"from word to word, on {pairs} pairs spread over the queries: 0 is the same attention, 1 has "
            "nothing in common. Intervals are bootstraps over queries; p is that of dealing the heads to "
            "layers at random. The tree is average linkage, cut where the mean silhouette is largest.",
        ),
        (Table(("what", "distance (95 % interval)"), tuple(rows)),),
        (
            Figure(
                "similarity_matrix",
                "Distance of every two heads, by layer; and the same in the order of the tree.",
                lambda: matrices(found),
                alt="Two square heat maps of distances between heads and a dendrogram.",
            ),
        ),
    )
    return (distances, _probe_section(probes), *_seed_sections(other, study))


def findings(found: Alike, probes: Curves, other: Seeds | None) -> tuple[Finding, ...]:
    """Shared patterns, initialisation, syntax low and meaning high."""
    rows = [
        Finding(
            _SHARED,
            "most",
            f"{found.sharing:.0%}",
            found.sharing > 0.5,
            "Share of heads whose nearest other head is at less than half the mean distance of two heads.",
            claims.SHARED,
        )
    ]
    if other is None:
        rows.append(
            Finding(
                _INITIAL, "yes", "–", None, "Needs a second model from another seed (--peer).", claims.SEEDS
            )
        )
    else:
        again = other.matched[0] < other.chance and other.p < 0.05
        moved = other.same_place_p is None or other.same_place_p >= 0.05
        rows.append(
            Finding(
                _INITIAL,
                "yes",
                f"matched {_with(other.matched)}, at random {other.chance:.3f}",
                again and moved,
                "The other seed has the same patterns, at other places."
                if again and moved
                else "Heads at the same place in both models are alike beyond chance."
                if again
                else "The other seed's heads do not repeat this model's patterns beyond chance.",
                claims.SEEDS,
            )
        )
    if "word_end" in probes and "grade" in probes:
        later = probes["grade"].peaks - probes["word_end"].peaks
        low, high = np.quantile(later, (0.025, 0.975))
        value = int(np.nanargmax(probes["grade"].value)) - int(np.nanargmax(probes["word_end"].value))
        rows.append(
            Finding(
                _SYNTAX,
                "yes",
                f"the grade peaks {value:+d} layers after word ends ({low:+.0f} to {high:+.0f})",
                True if low > 0 else False if high <= 0 else None,
                "By where linear probes do best; the interval is that of the difference between the two "
                "peaks.",
            )
        )
    return tuple(rows)


def matrices(found: Alike) -> Drawing:
    """The distance matrix by layer and, beside its tree, in the tree's order."""
    from scipy.cluster.hierarchy import dendrogram

    drawing, panels = figure(17, 6, columns=3, width_ratios=(1, 1, 0.8))
    tree = dendrogram(found.tree, no_plot=True)
    orders = (np.arange(len(found.heads)), np.array(tree["leaves"]))
    top = float(found.matrix.max())
    for axes, order, title in zip(
        panels[:2], orders, ("heads by layer", "heads in the order of the tree"), strict=True
    ):
        image = axes.imshow(
            found.matrix[np.ix_(order, order)], cmap="cividis", vmin=0, vmax=top, origin="lower"
        )
        axes.set(title=title)
        axes.grid(False)
    layers = np.array([layer for layer, _ in found.heads])
    middles = [float(np.flatnonzero(layers == layer).mean()) for layer in np.unique(layers)]
    for axis in (panels[0].xaxis, panels[0].yaxis):
        axis.set_ticks(middles, [str(layer) for layer in np.unique(layers)])
    panels[0].set(xlabel="layer", ylabel="layer")
    panels[1].set(xlabel="place in the tree", ylabel="place in the tree")
    drawing.colorbar(image, ax=panels[1], label="Jensen–Shannon distance", shrink=0.85)
    for x, y in zip(tree["dcoord"], tree["icoord"], strict=True):
        panels[2].plot(x, np.array(y) / 10 - 0.5, color="#333333", lw=0.8)
    panels[2].set(
        xlabel="Jensen–Shannon distance", title="tree (labels: layer)", ylim=(-0.5, len(layers) - 0.5)
    )
    size = 5 if len(layers) > 60 else 8
    panels[2].set_yticks(range(len(layers)), [str(layers[i]) for i in tree["leaves"]], fontsize=size)
    panels[2].grid(False)
    return drawing


def probe_curves(probes: Curves) -> Drawing:
    """Score by layer with band, control dashed, a panel per task."""
    drawing, panels = figure(5 * len(probes), 4.2, columns=len(probes))
    for place, (axes, (name, curve)) in enumerate(zip(np.atleast_1d(panels), probes.items(), strict=True)):
        colour, _, marker = LINES[place]
        layers = np.arange(len(curve.value))
        axes.plot(layers, curve.value, color=colour, marker=marker, label="probe")
        axes.fill_between(layers, curve.low, curve.high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(layers, curve.control, color="#555555", linestyle="--", label="control task")
        names = ["emb.", *(str(layer) for layer in layers[:-1])]
        axes.set_xticks(layers, names, fontsize=9)
        axes.set(title=TITLES[name], xlabel="output of layer", ylabel=SCORES[name])
    np.atleast_1d(panels)[0].legend()
    return drawing


def _probe_section(probes: Curves) -> Section:
    rows = []
    for name, curve in probes.items():
        for place, value in enumerate(curve.value):
            interval = f"{value:.3f} ({curve.low[place]:.3f} to {curve.high[place]:.3f})"
            rows.append((TITLES[name], _place(place), SCORES[name], interval, f"{curve.control[place]:.3f}"))
    figures = (
        (
            Figure(
                "probes",
                "What a linear probe can tell from each layer's output, with 95 % bands, and its control "
                "task.",
                lambda: probe_curves(probes),
                alt="A panel per task: probe score by layer with a band, and the control task dashed.",
            ),
        )
        if probes
        else ()
    )
    return Section(
        "Similarity: what each layer can tell",
        (
            "Ridge probes, cross-validated by query in five folds: does the word end with this token, does "
            "the other text hold its word (AUC), and the grade from [CLS] (Spearman). Control tasks give "
            "each word piece a label drawn once (Hewitt and Liang 2019), or shuffle the grades: what a probe "
            "reaches there it knows by heart or by chance.",
        ),
        (Table(("task", "from", "score", "value (95 % interval)", "control"), tuple(rows)),),
        figures,
    )


def _seed_sections(other: Seeds | None, study: Study) -> tuple[Section, ...]:
    if other is None or study.peer is None:
        return ()
    rows = [
        ("each head and its match in the other model", _with(other.matched)),
        ("random matchings", f"{other.chance:.3f}, p = {p_value(other.p)}"),
        ("each head and the nearest other head of its own model", f"{other.nearest_within:.3f}"),
        ("match minus nearest", _with(other.extra)),
        ("matches in the layer of the same number", f"{other.same_layer:.0%}"),
    ]
    if other.same_place is not None and other.same_place_p is not None:
        rows.append(
            (
                "heads of the same layer and number",
                f"{other.same_place:.3f}, p = {p_value(other.same_place_p)}",
            )
        )
    return (
        Section(
            "Similarity: training seeds",
            (
                f"Heads of {study.classifier.name} and {study.peer.name} are matched one to one (Hungarian "
                f"matching) on half of the queries and compared on the other half: {other.pairs} pairs, "
                f"{other.left_out} left out because the two tokenizers cut them into different words.",
                _seeds_sentence(other),
            ),
            (Table(("distance between", "value (95 % interval)"), tuple(rows)),),
        ),
    )


def _seeds_sentence(other: Seeds) -> str:
    text = (
        f"On queries that took no part in matching, a head is {_with(other.matched)} from its match in the "
        f"other model, {other.chance:.3f} under random matchings (p = {p_value(other.p)}), and "
        f"{other.nearest_within:.3f} from the nearest other head of its own model (difference "
        f"{_with(other.extra)}); {other.same_layer:.0%} of the matches are in the layer of the same number."
    )
    if other.same_place is not None and other.same_place_p is not None:
        alike_ = "closer than" if other.same_place_p < 0.05 else "no closer than"
        text += (
            f" Heads of the same layer and number are {other.same_place:.3f} apart, {alike_} other heads of "
            f"that layer (p = {p_value(other.same_place_p)})."
        )
    return text


def _place(place: int) -> str:
    return "the embeddings" if place == 0 else f"layer {place - 1}"


def _with(values: tuple[float, float, float]) -> str:
    value, low, high = values
    write = signed if value < 0 else lambda v: f"{v:.3f}"
    return f"{write(value)} ({write(low)} to {write(high)})"


def _triple(values: tuple[float, float, float]) -> dict[str, float | None]:
    return dict(zip(("value", "low", "high"), _plain(np.array(values)), strict=True))


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
