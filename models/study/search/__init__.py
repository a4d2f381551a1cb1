"""Search: the smallest mask, or the best network for a speed, that is not worse on other queries."""

from models.study.search.compute import measure
from models.study.search.report import result

__all__ = ["measure", "result"]
