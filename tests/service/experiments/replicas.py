"""What a history happens to: a database that may be away, and replicas whose clocks may be wrong."""

from contextlib import AbstractContextManager
from dataclasses import dataclass

from sqlalchemy import Connection

from headroom.service.errors import DatabaseUnavailable
from headroom.service.experiments.assignment import Assigner
from headroom.service.experiments.events import Exposure, Impression
from headroom.service.experiments.ledger import Ledger
from headroom.service.experiments.log import Entry, World, replay
from headroom.service.experiments.state import Experiments
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

    def clock(self, _: Connection) -> float:
        return self.now


@dataclass(frozen=True)
class Answers:
    """How a replica assigned units at a time.

    number: of the last row of the log that it knew. waiting: the rows that it had to add.
    """

    time: float
    experiments: Experiments
    assigner: Assigner
    config_version: str
    number: int
    waiting: tuple[Entry, ...]


def arm_of(assigner: Assigner, unit: str) -> tuple[str, str] | None:
    """Return the experiment and arm that a replica assigns a unit to."""
    assigned = assigner.assign(unit)
    return None if assigned is None else (assigned.experiment, assigned.arm)


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

    @property
    def has_read(self) -> bool:
        """Whether it has read the log, before which it assigns nobody."""
        return self.ledger._has_read

    def version_in_force(self, world: World) -> str:
        """Return the config's version once this replica's waiting rows are in the log. world: of the log."""
        return replay(world, self.ledger._waiting).config.config_version

    def answers(self) -> Answers:
        """Return how it assigns units now."""
        ledger = self.ledger
        number = ledger._world.number
        return Answers(
            time=self.clock(),
            experiments=ledger.experiments,
            assigner=ledger.assigner,
            config_version=ledger.config_version,
            number=number,
            waiting=tuple(ledger._waiting),
        )
