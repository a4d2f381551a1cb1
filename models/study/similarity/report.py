"""The report of `similarity`: JSON, conclusion, findings and sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.quality.bootstrap import Interval
from models.study import claims
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.similarity.compute import Similarity
from models.study.similarity.plots import SCORES, TITLES, matrices, probe_curves
from models.study.similarity.probes import ProbeCurve
from models.study.wording import p_value, signed, with_interval

Curves = Mapping[str, ProbeCurve]
_SHARED = "most heads share their pattern"
_SYNTAX = "syntax low, meaning high"


def result(similarity: Similarity) -> Result:
    """Return the report of similarity."""
    return Result(
        "similarity",
        _json(similarity),
        _conclusion(similarity),
        (
            _distance_section(similarity),
            _probe_section(similarity.probes),
        ),
        tuple(_findings(similarity)),
    )


def _json(similarity: Similarity) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    alike = similarity.alike
    return {
        "similarity": {
            "pairs": similarity.pairs,
            "heads": [list(head) for head in alike.heads],
            "distance": alike.matrix.round(4).tolist(),
            "within_layers": _triple(alike.within),
            "across_layers": _triple(alike.across),
            "across_minus_within": {**_triple(alike.gap), "p": alike.gap_p},
            "by_layer": alike.by_layer,
            "mean": alike.mean,
            "sharing": alike.sharing[0],
            "sharing_interval": _plain(np.array(alike.sharing[1:])),
            "clusters": alike.clusters.tolist(),
            "silhouette": alike.silhouette,
        },
        "probes": {
            name: {
                "score": SCORES[name],
                "value": _plain(curve.value),
                "low": _plain(curve.low),
                "high": _plain(curve.high),
                "control": _plain(curve.control),
                "upper_minus_lower": _triple(curve.rise),
            }
            for name, curve in similarity.probes.items()
        },
    }


def _conclusion(similarity: Similarity) -> str:
    """Return one paragraph that follows from the numbers."""
    alike = similarity.alike
    text = [
        f"Two heads of one layer are {_with(alike.within)} apart in Jensen–Shannon distance, two of "
        f"different layers {_with(alike.across)} (difference {_with(alike.gap)}, p = "
        f"{p_value(alike.gap_p)}). {_share(alike.sharing)} of the heads have another head at less than half "
        f"the mean distance of {alike.mean:.2f}; the best cut of the tree makes "
        f"{len(np.unique(alike.clusters))} clusters (silhouette {alike.silhouette:.2f})."
    ]
    for name, curve in similarity.probes.items():
        peak = int(np.nanargmax(curve.value))
        text.append(
            f"A linear probe's highest {SCORES[name]} for {TITLES[name]} is {curve.value[peak]:.3f}, from "
            f"{_place(peak)} (control {curve.control[peak]:.3f}); upper minus lower half of the layers: "
            f"{_signed(curve.rise)}."
        )
    return " ".join(text)


def _distance_section(similarity: Similarity) -> Section:
    alike = similarity.alike
    rows = [
        ("two heads of one layer", _with(alike.within)),
        ("two heads of different layers", _with(alike.across)),
        ("difference", f"{_with(alike.gap)}, p = {p_value(alike.gap_p)}"),
        *((f"within layer {layer}", f"{value:.3f}") for layer, value in alike.by_layer.items()),
    ]
    return Section(
        "Similarity: the heads' patterns",
        (
            "The distance of two heads is the mean over words of √JSD (base 2) between their attention, from "
            f"word to word, on {similarity.pairs} pairs spread over the queries: 0 is the same attention, 1 "
            "has nothing in common. Intervals are bootstraps over queries; p comes from dealing the heads to "
            "layers at random. The tree is average linkage, cut where the mean silhouette is largest.",
        ),
        (Table(("what", "distance (95 % interval)"), tuple(rows)),),
        (
            Figure(
                "similarity_matrix",
                "Distance of every two heads, by layer; and the same in the order of the tree.",
                lambda: matrices(alike),
                alt="Two square heat maps of distances between heads and a dendrogram.",
            ),
        ),
    )


def _findings(similarity: Similarity) -> list[Finding]:
    """Return the findings on shared patterns, on initialisation, and on syntax low and meaning high."""
    sharing = similarity.alike.sharing
    _, low, high = sharing
    findings = [
        Finding(
            _SHARED,
            "most",
            _share(sharing),
            True if low > 0.5 else False if high < 0.5 else None,
            "Share of heads whose nearest other head is at less than half the mean distance of two heads. "
            "The interval begins with the heads shown to have such a neighbour and ends without those shown "
            "to have none. Replicated if it lies above one half, not replicated if below.",
            claims.SHARED,
        ),
    ]
    if "word_end" in similarity.probes and "grade" in similarity.probes:
        findings.append(_syntax_finding(similarity.probes["word_end"], similarity.probes["grade"]))
    return findings


def _syntax_finding(word_end: ProbeCurve, grade: ProbeCurve) -> Finding:
    """Return the finding on two differences between layers that were fixed before: the halves."""
    falls, rises = word_end.rise[2] < 0, grade.rise[1] > 0
    opposite = word_end.rise[1] > 0 or grade.rise[2] < 0
    return Finding(
        _SYNTAX,
        "yes",
        f"upper minus lower half: word ends {_signed(word_end.rise)}, the grade {_signed(grade.rise)}",
        True if falls and rises else False if opposite else None,
        "Judged by what linear probes tell from the layers of the upper half less what they tell from those "
        "of the lower half, paired over queries. Replicated if word ends are told better from the lower half "
        "and the grade from the upper one, not replicated if the opposite of either is shown.",
    )


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


def _place(place: int) -> str:
    return "the embeddings" if place == 0 else f"layer {place - 1}"


def _with(values: tuple[float, float, float]) -> str:
    value, low, high = values
    write = signed if value < 0 else lambda v: f"{v:.3f}"
    return f"{write(value)} ({write(low)} to {write(high)})"


def _signed(values: tuple[float, float, float]) -> str:
    return with_interval(Interval(*values))


def _share(values: tuple[float, float, float]) -> str:
    value, low, high = values
    return f"{value:.0%} ({low:.0%} to {high:.0%})" if low == low else f"{value:.0%} (no interval)"


def _triple(values: tuple[float, float, float]) -> dict[str, float | None]:
    return dict(zip(("value", "low", "high"), _plain(np.array(values)), strict=True))


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
