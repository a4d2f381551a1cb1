"""Measures the latency table for sequences as long as those of the study's data."""

from __future__ import annotations

import numpy as np

from models.study.latency import LatencyTable, measure
from models.study.study import Study


def measured(study: Study) -> LatencyTable:
    """Time the parts of a layer. Sequences have the mean length of the study's pairs."""
    encoded = study.classifier.tokenizer.encode(study.data.pairs)
    length = round(float(np.mean([len(pair) for pair in encoded])))
    rounds = study.effort.rounds
    return measure(study.classifier, sequence_tokens=length, rounds=rounds, progress=study.progress)
