"""The costs of the rows of a request."""

from dataclasses import dataclass

from headroom.service.engine.request import Deadline
from headroom.service.schemas.responses import Timing


@dataclass(slots=True)
class Computed:
    """The costs of the rows of one request so far.

    is_admitted: whether some of them were let into the queue.
    is_cached: whether there is a score cache. asked: for how many rows it was asked. misses: how many of
    these it did not have; None if it was not asked.
    """

    tokenize_s: float = 0.0
    queue_s: float = 0.0
    inference_s: float = 0.0
    is_admitted: bool = False
    is_cached: bool = False
    asked: int = 0
    misses: int | None = None

    @property
    def cache(self) -> str | None:
        """Return what answers say about the score cache: hit, partial or miss; None without one."""
        if not self.is_cached:
            return None
        if not self.misses and self.asked:
            return "hit"
        return "partial" if self.asked > (self.misses or 0) else "miss"

    def count(self, *, asked: int, misses: int) -> None:
        """Count rows for which the score cache was asked, and those of them that it did not have."""
        self.asked += asked
        self.misses = (self.misses or 0) + misses

    def timing(self, deadline: Deadline) -> Timing:
        """Return the times as answers hold them."""
        return Timing(
            tokenize=self.tokenize_s * 1000,
            queue=self.queue_s * 1000,
            inference=self.inference_s * 1000,
            total=deadline.elapsed() * 1000,
        )
