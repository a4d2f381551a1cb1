"""Similarity: how alike the heads are, and what each layer's output can tell."""

from models.study.similarity.compute import measure
from models.study.similarity.report import result

__all__ = ["measure", "result"]
