"""What a history happens to: a database that may be away, and replicas whose clocks may be wrong."""

from contextlib import AbstractContextManager

from sqlalchemy import Connection

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.events import Exposure, Impression
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.store import Store
from headroom.service.observe.metrics import Metrics

START = 1_000_000.0
NEVER = 10**9
METRICS = Metrics()


class Database(Store):
    """The replicas' database, which may be away. Its clock is right.

    now: the true time, in Unix seconds. left: transactions that succeed before it is away. refused: how many
    did not succeed.
    """

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.begin()

    def begin(self) -> None:
        """Begin a history."""
        self.now = START
        self.left = NEVER
        self.refused = 0

    def _count(self) -> None:
        if self.left <= 0:
            self.refused += 1
            raise DatabaseUnavailable(message="away")
        self.left -= 1

    def read(self) -> AbstractContextManager[Connection]:
        self._count()
        return super().read()

    def read_all(self) -> AbstractContextManager[Connection]:
        self._count()
        return super().read_all()

    def write(self) -> AbstractContextManager[Connection]:
        self._count()
        return super().write()

    def not_ahead(self, now: float) -> float:
        self._count()
        return min(now, self.now)


class Replica:
    """A replica: its clock's error in seconds, its ledger, and the facts that it has not written yet."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.skew = 0.0
        self.ledger = Ledger(database, METRICS, clock=self.clock, monotonic=lambda: database.now)
        self.exposures: list[Exposure] = []
        self.lists: list[Impression] = []

    def clock(self) -> float:
        return self.database.now + self.skew
