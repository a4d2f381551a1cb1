"""Texts as sparse vectors: a weight for each word or n-gram that occurs."""

import math
from collections.abc import Mapping


def unit(vector: Mapping[str, float]) -> dict[str, float]:
    """The vector at length 1; one of length 0 as it is."""
    norm = math.sqrt(sum(value * value for value in vector.values())) or 1.0
    return {word: value / norm for word, value in vector.items()}


def dot(left: Mapping[str, float], right: Mapping[str, float]) -> float:
    """The inner product; of two unit vectors, their cosine."""
    few, many = sorted((left, right), key=len)
    return sum(value * many.get(word, 0.0) for word, value in few.items())
