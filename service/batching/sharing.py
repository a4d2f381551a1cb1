"""Virtual time: how far each request would be if the device were shared equally between all of them.

Nothing is served in this way; the waiting line takes its order from it (`service.batching.fair_queue`).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush


class Share:
    """One request in the imagined sharing. `finish` is the virtual time at which it is done there."""

    __slots__ = ("arrived", "done", "finish")

    def __init__(self, arrived: float, finish: float) -> None:
        self.arrived = arrived
        self.finish = finish
        self.done = False


class Sharing:
    """Processor sharing by tokens: `time` grows by one while each request that is not done gets one token.

    A request that was served already, but would not be done yet under sharing, goes on having its share: so
    no more is owed to the others than what is left to do. O(log requests) to enter, to leave, to advance.
    """

    def __init__(self) -> None:
        self.time = 0.0
        self.active = 0  # requests that are not done
        self._entries = 0
        self._line: list[tuple[float, int, Share]] = []  # heap by finish; it may name a share more than once

    def enter(self, tokens: int) -> Share:
        """A request of so many tokens, at least one, arrives."""
        share = Share(self.time, self.time + tokens)
        self.active += 1
        self._push(share)
        return share

    def shorten(self, share: Share, tokens: int) -> None:
        """A request was withdrawn after `tokens` tokens of it were served: those it keeps, no more."""
        if share.done:
            return
        share.finish = share.arrived + tokens
        if share.finish <= self.time:
            share.done = True
            self.active -= 1
        else:
            self._push(share)
        if len(self._line) > 2 * self.active + 16:
            self._line = [entry for entry in self._line if _holds(entry)]
            heapify(self._line)

    def advance(self, tokens: int) -> None:
        """The device did so many tokens of work."""
        left = float(tokens)
        while self._line:
            entry = self._line[0]
            if _holds(entry):
                needed = (entry[0] - self.time) * self.active
                if needed > left:
                    self.time += left / self.active
                    return
                left -= needed
                self.time = entry[0]
                entry[2].done = True
                self.active -= 1
            heappop(self._line)

    def clear(self) -> None:
        """Nothing waits any more: whatever the sharing still owes is done as well."""
        for _, _, share in self._line:
            share.done = True
        self._line.clear()
        self.active = 0

    def _push(self, share: Share) -> None:
        self._entries += 1
        heappush(self._line, (share.finish, self._entries, share))


def _holds(entry: tuple[float, int, Share]) -> bool:
    return not entry[2].done and entry[2].finish == entry[0]
