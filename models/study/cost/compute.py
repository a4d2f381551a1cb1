"""Measures the latency table for sequences as long as those of the study's data."""

from __future__ import annotations

from models.study.latency import LatencyTable
from models.study.study import Study
from models.study.timing import mean_length, measure


def measured(study: Study) -> LatencyTable:
    """Time the parts of a layer. Sequences have the mean length of the study's pairs."""
    length, rounds = mean_length(study.classifier, study.data), study.effort.rounds
    return measure(study.classifier, sequence_tokens=length, rounds=rounds, progress=study.progress)
