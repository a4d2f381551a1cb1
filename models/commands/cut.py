"""Cuts of `headroom evaluate`: what a threshold keeps, and the threshold for a wanted precision."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import typer

from headroom import ModelError
from headroom.models.checkpoint.config import ModelConfig, read_config, read_stored_masks
from headroom.models.checkpoint.hub import locate
from headroom.models.commands import options
from headroom.models.files import Json
from headroom.models.numbers import percent
from headroom.models.quality.bootstrap import MIN_QUERIES, NO_INTERVAL
from headroom.models.quality.labelled import Columns, LabelledPair, query_key
from headroom.models.quality.scoring import scored
from headroom.models.terminal import table


def measure(
    precision: float | None,
    threshold: float | None,
    network: options.Network,
    data: Path,
    columns: Columns,
    relevant: int | None,
) -> Json:
    """Return what a cut keeps of the pairs of a file, as `--json` prints it.

    precision: of the cut; or threshold: its score. relevant: the lowest relevant grade.
    Raises ModelError if the file or the model does not allow it.
    """
    directory = locate(network.model)
    config = read_config(directory, network.label_order)
    if threshold is not None:
        check_threshold(threshold, config)
    mask = config.parse_mask(options.read_form(network.mask or "none"), read_stored_masks(directory, config))
    pairs, lowest = options.read_judged(data, config, columns, relevant)
    queries = len({query_key(pair.query) for pair in pairs})
    check_judged(pairs, lowest, queries, str(data))

    import numpy as np

    from headroom import Classifier  # imports torch, so it comes after the checks that do not need it
    from headroom.models.quality.cutoff import cut_at, cut_for

    clf = Classifier.load(network.model, network.device, network.dtype, label_order=network.label_order)
    texts = [(pair.query, pair.title) for pair in pairs]
    scores = scored(clf, texts, None if mask.is_none else mask).score
    is_relevant = np.array([pair.grade >= lowest for pair in pairs])
    if threshold is not None:
        cut = cut_at(threshold, scores, is_relevant, pairs)
    else:
        assert precision is not None
        cut = cut_for(precision, scores, is_relevant, pairs)
    return {
        "schema": 1,
        "model": clf.name,
        "head_mask": mask.spec,
        "data": str(data),
        "pairs": len(pairs),
        "queries": queries,
        "relevant_from_grade": lowest,
        "relevant": float(is_relevant.mean()),
        "wanted_precision": precision,
        **{
            name: getattr(cut, name) for name in ("threshold", "precision", "recall", "kept", "fifths_missed")
        },
    }


def check_threshold(threshold: float, config: ModelConfig) -> None:
    """Raise BadParameter for a threshold that no score of a model can have."""
    is_raw = config.score_activation == "identity"
    if not math.isfinite(threshold) or not (is_raw or 0 <= threshold <= 1):
        scale = "a finite number: the model's scores are logits" if is_raw else "from 0 to 1, as scores are"
        raise typer.BadParameter(f"{threshold:g}: it must be {scale}", param_hint="--threshold")


def check_judged(pairs: Sequence[LabelledPair], lowest: int, queries: int, name: str) -> None:
    """Raise ModelError if pairs are too few, or if all or none are relevant. lowest: the lowest relevant
    grade; queries: how many the pairs have; name: of their file."""
    count = sum(pair.grade >= lowest for pair in pairs)
    if count in (0, len(pairs)):
        which = "every" if count else "no"
        raise ModelError(f"{name}: {which} pair has grade {lowest} or more; pairs of both kinds are needed")
    if queries < MIN_QUERIES:
        raise ModelError(f"{name}: too few queries, {queries}; at least {MIN_QUERIES} are needed")


def as_text(document: Json) -> str:
    """Return the cut as text for people."""
    from headroom.models.quality.cutoff import as_decimal  # imports numpy

    wanted = document["wanted_precision"]
    share = percent(document["relevant"])
    lines = [
        "{model} on {data}: {pairs} pairs, {queries} queries".format(**document)
        + f"; {share} are relevant (grade {document['relevant_from_grade']} or more)",
        f"min_score {as_decimal(document['threshold'])}"
        + ("" if wanted is None else f", the lowest with a precision of {wanted:g} on all pairs"),
    ]
    rows = [[f"  {name}", document[name].text().removesuffix(NO_INTERVAL)] for name in _MEANINGS]
    lines.append(table([[*row, _MEANINGS[name]] for row, name in zip(rows, _MEANINGS, strict=True)]))
    if any(document[name].low != document[name].low for name in _MEANINGS):
        lines.append(f"a value alone has no interval: it rests on fewer than {MIN_QUERIES} queries")
    if wanted is not None:
        lines.append("each fifth of the queries was cut at the threshold that the others choose")
    if document["fifths_missed"]:
        lines.append(
            f"for {document['fifths_missed']} of 5 fifths, no threshold has that precision on the others, "
            "so their most precise one was taken"
        )
    return "\n".join(lines)


_MEANINGS = {
    "precision": "of what is kept is relevant",
    "recall": "of what is relevant is kept",
    "kept": "of all pairs are kept",
}
