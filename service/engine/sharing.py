"""Virtual time: how far each request would be if the device were shared equally between all of them.

Nothing is served in this way; the fair queue takes its order from it (`service.engine.queue`).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Share:
    """One request under imagined sharing.

    arrived, finish: the virtual times at which it comes and is done.
    """

    __slots__ = ("arrived", "done", "finish")

    def __init__(self, arrived: float, finish: float) -> None:
        self.arrived = arrived
        self.finish = finish
        self.done = False


class ProcessorSharing:
    """Imagined processor sharing by tokens, and its virtual time.

    `time` grows by one while each of the `active` requests, those that are not done under sharing, gets one
    token. A request that the device has finished earlier keeps its share until then, so that as much work is
    left under sharing as is really left. Entering, leaving and advancing cost O(log requests).
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.active = 0
        self._entries = 0
        self._heap: list[tuple[float, int, Share]] = []  # by finish; outdated entries are skipped

    def enter(self, tokens: int) -> Share:
        """Add a request. tokens: its number of tokens, at least one."""
        share = Share(self.time, self.time + tokens)
        self.active += 1
        self._push(share)
        return share

    def shorten(self, share: Share, tokens: int) -> None:
        """Reduce a request that was withdrawn to the tokens of it that were really served."""
        if share.done:
            return
        share.finish = share.arrived + tokens
        if share.finish <= self.time:
            share.done = True
            self.active -= 1
        else:
            self._push(share)
        if len(self._heap) > 2 * self.active + 16:
            self._heap = [entry for entry in self._heap if _is_current(entry)]
            heapify(self._heap)

    def advance(self, tokens: int) -> None:
        """Share out the work that the device has done. tokens: how much it was."""
        remaining = float(tokens)
        while self._heap:
            entry = self._heap[0]
            if _is_current(entry):
                needed = (entry[0] - self.time) * self.active
                if needed > remaining:
                    self.time += remaining / self.active
                    return
                remaining -= needed
                self.time = entry[0]
                entry[2].done = True
                self.active -= 1
            heappop(self._heap)

    def clear(self) -> None:
        """Mark every request as done: nothing waits any more."""
        for _, _, share in self._heap:
            share.done = True
        self._heap.clear()
        self.active = 0

    def _push(self, share: Share) -> None:
        self._entries += 1
        heappush(self._heap, (share.finish, self._entries, share))


def _is_current(entry: tuple[float, int, Share]) -> bool:
    """Whether a heap entry still says when its request is done."""
    return not entry[2].done and entry[2].finish == entry[0]
