"""The report of `similarity`: JSON, verdict, findings and sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.quality.bootstrap import Interval
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.similarity.compute import Alike, Similarity
from models.study.similarity.plots import SCORES, TITLES, matrices, probe_curves
from models.study.similarity.probes import ProbeCurve
from models.study.wording import p_value, value_or_dash, with_interval


def result(similarity: Similarity) -> Result:
    """Return the report of similarity."""
    alike = similarity.alike
    verdict = (
        f"{_share(alike.sharing)} of the heads have another head at less than half the mean distance; "
        f"two heads of one layer are {alike.within.value:.2f} apart, two of different layers "
        f"{alike.across.value:.2f}."
    )
    picture = Figure(
        "similarity_matrix",
        "Distance of every two heads, by layer; and the same in the order of the tree.",
        lambda: matrices(alike),
        alt="Two square heat maps of distances between heads.",
    )
    findings = [_sharing_finding(alike)]
    if {"word_end", "grade"} <= similarity.probes.keys():
        findings.append(_syntax_finding(similarity.probes["word_end"], similarity.probes["grade"]))
    sections = (_distance_section(similarity), _probe_section(similarity.probes))
    json, conclusion = _json(similarity), _conclusion(similarity)
    return Result("similarity", json, verdict, conclusion, sections, tuple(findings), picture)


def _json(similarity: Similarity) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    alike = similarity.alike
    return {
        "similarity": {
            "pairs": similarity.pairs,
            "heads": [list(head) for head in alike.heads],
            "distance": alike.matrix.round(4).tolist(),
            "within_layers": alike.within,
            "across_layers": alike.across,
            "across_minus_within": {
                "value": alike.gap.value, "low": alike.gap.low, "high": alike.gap.high, "p": alike.gap_p,
            },
            "by_layer": alike.by_layer,
            "mean": alike.mean,
            "sharing": alike.sharing.value,
            "sharing_interval": [alike.sharing.low, alike.sharing.high],
            "clusters": alike.clusters.tolist(),
            "silhouette": alike.silhouette,
        },
        "probes": {
            name: {
                "score": SCORES[name],
                "value": [one.value for one in curve.values],
                "low": [one.low for one in curve.values],
                "high": [one.high for one in curve.values],
                "control": curve.control,
                "upper_minus_lower": curve.rise,
            }
            for name, curve in similarity.probes.items()
        },
    }  # fmt: skip


def _conclusion(similarity: Similarity) -> str:
    """Return one paragraph that follows from the numbers."""
    alike = similarity.alike
    text = [
        f"Two heads of one layer are {_plain(alike.within)} apart in Jensen–Shannon distance, two of "
        f"different layers {_plain(alike.across)} (difference {with_interval(alike.gap)}, p = "
        f"{p_value(alike.gap_p)}). The best cut of the tree makes {len(np.unique(alike.clusters))} "
        f"clusters (silhouette {alike.silhouette:.2f})."
    ]
    for name, curve in similarity.probes.items():
        values = [one.value for one in curve.values]
        peak = int(np.nanargmax(values))
        text.append(
            f"A linear probe's highest {SCORES[name]} for {TITLES[name]} is {values[peak]:.3f}, from "
            f"{_output(peak)} (control {value_or_dash(curve.control[peak])}); upper minus lower half "
            f"of the layers: {with_interval(curve.rise)}."
        )
    return " ".join(text)


def _distance_section(similarity: Similarity) -> Section:
    alike = similarity.alike
    rows = [
        ("two heads of one layer", _plain(alike.within)),
        ("two heads of different layers", _plain(alike.across)),
        ("difference", f"{with_interval(alike.gap)}, p = {p_value(alike.gap_p)}"),
        *((f"within layer {layer}", f"{value:.3f}") for layer, value in alike.by_layer.items()),
    ]
    return Section(
        "Similarity: the heads' patterns",
        (
            "The distance of two heads is the mean over words of √JSD (base 2) between their "
            f"attention, from word to word, on {similarity.pairs} pairs spread over the queries: 0 is "
            "the same attention, 1 has nothing in common. Intervals are bootstraps over queries; p "
            "comes from dealing the heads to layers at random. The tree is average linkage, cut "
            "where the mean silhouette is largest.",
        ),
        (Table(("what", "distance (95 % interval)"), tuple(rows)),),
    )


def _sharing_finding(alike: Alike) -> Finding:
    return Finding(
        "most heads share their pattern",
        "most",
        _share(alike.sharing),
        True if alike.sharing.low > 0.5 else False if alike.sharing.high < 0.5 else None,
        "Share of heads whose nearest other head is at less than half the mean distance of two "
        "heads. The interval begins with the heads shown to have such a neighbour and ends without "
        "those shown to have none. Replicated if it lies above one half, not replicated if below.",
    )


def _syntax_finding(word_end: ProbeCurve, grade: ProbeCurve) -> Finding:
    """Return the finding on two differences between layers that were fixed before: the halves."""
    falls, rises = word_end.rise.high < 0, grade.rise.low > 0
    opposite = word_end.rise.low > 0 or grade.rise.high < 0
    return Finding(
        "syntax low, meaning high",
        "yes",
        f"upper minus lower half: word ends {with_interval(word_end.rise)}, the grade "
        f"{with_interval(grade.rise)}",
        True if falls and rises else False if opposite else None,
        "Judged by what linear probes tell from the layers of the upper half less what they tell "
        "from those of the lower half, paired over queries. Replicated if word ends are told better "
        "from the lower half and the grade from the upper one, not replicated if the opposite of "
        "either is shown.",
    )


def _probe_section(probes: Mapping[str, ProbeCurve]) -> Section:
    rows = tuple(
        (TITLES[name], _output(layer), SCORES[name], _plain(one), value_or_dash(control))
        for name, curve in probes.items()
        for layer, (one, control) in enumerate(zip(curve.values, curve.control, strict=True))
    )
    picture = Figure(
        "probes",
        "What a linear probe can tell from each layer's output, with 95 % bands, and its control task.",
        lambda: probe_curves(probes),
        alt="A panel per task: probe score by layer with a band, and the control task dashed.",
    )
    return Section(
        "Similarity: what each layer can tell",
        (
            "Ridge probes, cross-validated by query in five folds: does the word end with this "
            "token, does the other text hold its word (AUC), and the grade from the first token "
            "(Spearman). Control tasks give each word piece a label drawn once (Hewitt and Liang "
            "2019), or shuffle the grades: what a probe reaches there it knows by heart or by chance.",
        ),
        (Table(("task", "from", "score", "value (95 % interval)", "control"), rows),),
        (picture,) if probes else (),
    )


def _output(layer: int) -> str:
    return "the embeddings" if layer == 0 else f"layer {layer - 1}"


def _plain(one: Interval) -> str:
    return f"{value_or_dash(one.value)} ({value_or_dash(one.low)} to {value_or_dash(one.high)})"


def _share(one: Interval) -> str:
    ends = f"({one.low:.0%} to {one.high:.0%})" if one.low == one.low else "(no interval)"
    return f"{one.value:.0%} {ends}"
