"""The report of `similarity`: JSON, conclusion, findings and sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.study import claims
from models.study.result import Figure, Finding, Result, Section, Table
from models.study.similarity.compute import Similarity
from models.study.similarity.plots import SCORES, TITLES, matrices, probe_curves
from models.study.similarity.probes import ProbeCurve
from models.study.similarity.seeds import Seeds
from models.study.statistics import LEVEL
from models.study.study import Study
from models.study.wording import p_value, signed

Curves = Mapping[str, ProbeCurve]
_SHARED = "most heads share their pattern"
_INITIAL = "differences between heads come from initialisation"
_SYNTAX = "syntax low, meaning high"


def result(study: Study, similarity: Similarity) -> Result:
    """Return the report of similarity."""
    return Result(
        "similarity",
        _json(similarity),
        _conclusion(study, similarity),
        (
            _distance_section(similarity),
            _probe_section(similarity.probes),
            *_seed_sections(similarity.seeds, study),
        ),
        tuple(_findings(similarity)),
    )


def _json(similarity: Similarity) -> dict[str, Any]:
    """Return the keys of report.json that belong to this study."""
    alike, seeds = similarity.alike, similarity.seeds
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
            }
            for name, curve in similarity.probes.items()
        },
        "seeds": None
        if seeds is None
        else {
            "matched": _triple(seeds.matched),
            "random_matching": seeds.chance,
            "p": seeds.p,
            "same_place": seeds.same_place,
            "same_place_p": seeds.same_place_p,
            "nearest_within": seeds.nearest_within,
            "matched_minus_nearest_within": _triple(seeds.extra),
            "matched_in_same_layer": seeds.same_layer,
            "pairs": seeds.pairs,
            "left_out": seeds.left_out,
        },
    }


def _conclusion(study: Study, similarity: Similarity) -> str:
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
            f"A linear probe tells {TITLES[name]} best from {_place(peak)} ({SCORES[name]} "
            f"{curve.value[peak]:.3f}, {curve.low[peak]:.3f} to {curve.high[peak]:.3f}; control "
            f"{curve.control[peak]:.3f})."
        )
    if similarity.seeds is None:
        text.append(
            "There was no second model to compare with (--peer), so nothing is said about training seeds."
            if study.peer is None
            else "Too few queries are cut into the same words by both models to compare their heads."
        )
    else:
        text.append(_seeds_sentence(similarity.seeds))
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
        _seeds_finding(similarity.seeds),
    ]
    if "word_end" in similarity.probes and "grade" in similarity.probes:
        findings.append(_syntax_finding(similarity.probes["word_end"], similarity.probes["grade"]))
    return findings


def _seeds_finding(seeds: Seeds | None) -> Finding:
    if seeds is None:
        reason = "Needs a second model from another seed (--peer)."
        return Finding(_INITIAL, "yes", "–", None, reason, claims.SEEDS)
    again = seeds.matched[0] < seeds.chance and seeds.p < LEVEL
    moved = seeds.same_place_p is None or seeds.same_place_p >= LEVEL
    return Finding(
        _INITIAL,
        "yes",
        f"matched {_with(seeds.matched)}, at random {seeds.chance:.3f}",
        moved if again else None,
        "The other seed has the same patterns, at other places."
        if again and moved
        else "Heads at the same place in both models are alike beyond chance."
        if again
        else "It is not shown that the other seed's heads repeat this model's patterns.",
        claims.SEEDS,
    )


def _syntax_finding(word_end: ProbeCurve, grade: ProbeCurve) -> Finding:
    low, high = np.quantile(grade.peaks - word_end.peaks, (0.025, 0.975))
    value = int(np.nanargmax(grade.value)) - int(np.nanargmax(word_end.value))
    return Finding(
        _SYNTAX,
        "yes",
        f"the grade peaks {value:+d} layers after word ends ({low:+.0f} to {high:+.0f})",
        True if low > 0 else False if high <= 0 else None,
        "Judged by the layers where linear probes do best; the interval is that of the difference between "
        "the two peaks.",
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


def _seed_sections(seeds: Seeds | None, study: Study) -> tuple[Section, ...]:
    if seeds is None or study.peer is None:
        return ()
    rows = [
        ("each head and its match in the other model", _with(seeds.matched)),
        ("random matchings", f"{seeds.chance:.3f}, p = {p_value(seeds.p)}"),
        ("each head and the nearest other head of its own model", f"{seeds.nearest_within:.3f}"),
        ("match minus nearest", _with(seeds.extra)),
        ("matches in the layer of the same number", f"{seeds.same_layer:.0%}"),
    ]
    if seeds.same_place is not None and seeds.same_place_p is not None:
        rows.append(
            (
                "heads of the same layer and number",
                f"{seeds.same_place:.3f}, p = {p_value(seeds.same_place_p)}",
            )
        )
    return (
        Section(
            "Similarity: training seeds",
            (
                f"Heads of {study.classifier.name} and {study.peer.name} are matched one to one (Hungarian "
                f"matching) on half of the queries and compared on the other half: {seeds.pairs} pairs, "
                f"{seeds.left_out} left out because the two tokenizers cut them into different words.",
                _seeds_sentence(seeds),
            ),
            (Table(("distance between", "value (95 % interval)"), tuple(rows)),),
        ),
    )


def _seeds_sentence(seeds: Seeds) -> str:
    text = (
        f"On queries that took no part in matching, a head is {_with(seeds.matched)} from its match in the "
        f"other model, {seeds.chance:.3f} under random matchings (p = {p_value(seeds.p)}), and "
        f"{seeds.nearest_within:.3f} from the nearest other head of its own model (difference "
        f"{_with(seeds.extra)}); {seeds.same_layer:.0%} of the matches are in the layer of the same number."
    )
    if seeds.same_place is not None and seeds.same_place_p is not None:
        closeness = "closer than" if seeds.same_place_p < LEVEL else "no closer than"
        text += (
            f" Heads of the same layer and number are {seeds.same_place:.3f} apart, {closeness} other heads "
            f"of that layer (p = {p_value(seeds.same_place_p)})."
        )
    return text


def _place(place: int) -> str:
    return "the embeddings" if place == 0 else f"layer {place - 1}"


def _with(values: tuple[float, float, float]) -> str:
    value, low, high = values
    write = signed if value < 0 else lambda v: f"{v:.3f}"
    return f"{write(value)} ({write(low)} to {write(high)})"


def _share(values: tuple[float, float, float]) -> str:
    value, low, high = values
    return f"{value:.0%} ({low:.0%} to {high:.0%})" if low == low else f"{value:.0%} (no interval)"


def _triple(values: tuple[float, float, float]) -> dict[str, float | None]:
    return dict(zip(("value", "low", "high"), _plain(np.array(values)), strict=True))


def _plain(values: np.ndarray) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]
