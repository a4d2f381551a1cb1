"""What one replica does, another does not undo unseen; and reports that take long hold up nobody."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from headroom.service.config.settings import LiveConfig
from headroom.service.errors import Conflict, DatabaseUnavailable, Draining
from headroom.service.experiments.admin import ExperimentAdmin
from headroom.service.experiments.analysis import analyse
from headroom.service.experiments.log import Entry
from headroom.service.experiments.report import Report
from headroom.service.experiments.state import Experiment
from headroom.service.experiments.store import Store
from tests.service.experimenting import config
from tests.service.experiments.making import act, in_log, live_of

CONFIGS = LiveConfig.model_validate(config()).experiments


def two_experiments() -> dict[str, Any]:
    both = config(slots=[0, 5000])
    both["experiments"].append(both["experiments"][0] | {"name": "b", "salt": "b", "slots": [5000, 10_000]})
    return both


BOTH = LiveConfig.model_validate(two_experiments()).experiments


@asynccontextmanager
async def replica(store: Store, configs: Any = CONFIGS, **clocks: Any) -> AsyncIterator[ExperimentAdmin]:
    """A replica, which reads the log only when told to."""
    live = live_of(store, **clocks)
    live.apply(configs, "v")
    admin = ExperimentAdmin(live)
    try:
        yield admin
    finally:
        admin.close()
        await live.close(1)


def kinds(admin: ExperimentAdmin) -> list[str]:
    admin._ledger.refresh()
    return [action.kind for action in admin._ledger.experiments["prune20"].history]


async def refused(call: Awaitable[Any]) -> str:
    with pytest.raises(Conflict) as refusal:
        await call
    return str(refusal.value)


async def test_what_one_replica_ends_another_that_has_not_seen_it_does_not_change(file_url: str) -> None:
    async with replica(Store(file_url)) as first, replica(Store(file_url)) as second:
        await second.act("prune20", "ramp", traffic=0.5, actor="boss")
        await first.act("prune20", "ship", arm="pruned", actor="boss")
        ramped = second.act("prune20", "ramp", traffic=1.0, actor="boss")
        assert "has shipped an arm; roll it back" in await refused(ramped)
        assert second.listing().experiments[0].status == "running"  # as it knows
        await first.act("prune20", "stop", actor="boss")
        for kind in ("ramp", "stop"):
            refusal = await refused(second.act("prune20", kind, traffic=1.0, actor="boss"))  # type: ignore[arg-type]
            assert "is stopped already; to go on, give a new" in refusal
        await second.act("prune20", "ship", arm="control", actor="boss")
        assert kinds(second) == ["start", "ramp", "ship", "stop", "ship"]


class IsOvertaken(Store):
    """Somebody else stops the experiment right after each action, before its answer is made."""

    def append(self, *args: Any) -> list[Entry]:
        entries = super().append(*args)
        if entries and entries[-1].kind == "ramp":
            super().append(act("stop", entries[-1].time))
        return entries


async def test_an_action_answers_with_its_own_state(file_url: str) -> None:
    async with replica(IsOvertaken(file_url)) as admin:
        answer = await admin.act("prune20", "ramp", traffic=0.5, actor="boss")
        assert (answer.status, answer.traffic) == ("running", 0.5)
        assert [action.kind for action in answer.history] == ["start", "ramp"]
        assert kinds(admin) == ["start", "ramp", "stop"]


class LosesAnAnswer(Store):
    """The database records a roll-back, and the connection breaks before it says so."""

    def append(self, *args: Any) -> list[Entry]:
        entries = super().append(*args)
        if entries and entries[-1].kind == "rollback":
            raise DatabaseUnavailable
        return entries


async def test_an_action_whose_recording_got_no_answer_counts_once(
    file_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It was in the log and in the list of unrecorded ones: a standing that no other replica knows."""
    live = live_of(LosesAnAnswer(file_url))
    live.apply(CONFIGS, "v")
    live.ledger.roll_back(act("rollback", time.time(), arm="pruned", reason="p99"))
    for _ in range(3):
        live.ledger.refresh()
    assert [entry.kind for entry in live.ledger.store.log()] == ["config", "rollback"]
    assert live.ledger.experiments["prune20"] == in_log(live.ledger.store)
    assert caplog.text.count("arm pruned rolled back") == 1
    await live.close(1)


class Slow:
    """The analysis of the experiment `b`, which takes until `go_on`. analyses: how many began."""

    def __init__(self) -> None:
        self.analyses = 0
        self.defect: Exception | None = None
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def analyse(self, store: Store, experiment: Experiment, *args: Any, **more: Any) -> Report:
        if experiment.config.name == "b":
            self.analyses += 1
            self.asked.set()
            assert self.go_on.wait(60)
            if self.defect is not None:
                raise self.defect
        return analyse(store, experiment, *args, **more)

    async def begin(self, admin: ExperimentAdmin) -> asyncio.Task[Any]:
        """Ask for the slow report. Return the call once its analysis has begun."""
        call = asyncio.create_task(admin.show("b"))
        assert await asyncio.to_thread(self.asked.wait, 60)
        await asyncio.sleep(0)
        return call


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    made = Slow()
    monkeypatch.setattr("headroom.service.experiments.report_cache.analyse", made.analyse)
    return made


async def test_a_slow_report_holds_up_no_other_experiment(file_store: Store, slow: Slow) -> None:
    async with replica(file_store, BOTH) as admin:
        calls = [await slow.begin(admin) for _ in range(5)]
        async with asyncio.timeout(60):
            assert (await admin.show("prune20")).report is not None
            await admin.act("prune20", "ramp", traffic=0.5, actor="boss")
        assert not any(call.done() for call in calls)
        slow.go_on.set()
        await asyncio.gather(*calls)


async def test_a_report_that_takes_longer_than_its_callers_wait_is_made_once_and_kept(
    file_store: Store, slow: Slow
) -> None:
    """Each call began an analysis beside those of the calls before, and none was ever answered."""
    seconds = 0.0
    async with replica(file_store, BOTH, monotonic=lambda: seconds) as admin:
        for _ in range(3):
            call = await slow.begin(admin)
            call.cancel()
            await asyncio.wait([call])
        last = await slow.begin(admin)
        seconds = 100.0  # the time that the analysis took
        slow.go_on.set()
        report = (await last).report
        assert report is not None
        assert slow.analyses == 1
        seconds = 199.0  # people ask again a while after they gave up
        assert (await admin.show("b")).report is report
        seconds = 200.0
        assert (await admin.show("b")).report is not report
        assert slow.analyses == 2


async def test_a_report_of_an_older_log_is_not_the_answer_to_a_later_call(
    file_store: Store, slow: Slow
) -> None:
    async with replica(file_store, BOTH) as admin:
        before = await slow.begin(admin)
        await admin.act("b", "ramp", traffic=0.5, actor="boss")
        after = await slow.begin(admin)
        assert slow.analyses == 1, "two analyses of one experiment at once"
        slow.go_on.set()
        await before
        report = (await after).report
        assert report is not None
        assert slow.analyses == 2
        assert (await admin.show("b")).report is report


async def test_an_analysis_that_fails_after_its_callers_gave_up_is_in_the_log(
    file_store: Store, slow: Slow, caplog: pytest.LogCaptureFixture
) -> None:
    slow.defect = RuntimeError("a defect")
    async with replica(file_store, BOTH) as admin:
        call = await slow.begin(admin)
        call.cancel()
        slow.go_on.set()
        with pytest.raises(RuntimeError, match="a defect"):  # the same analysis, or the next
            await admin.show("b")
    assert "an experiment could not be analysed" in caplog.text
    assert "RuntimeError: a defect" in caplog.text


async def test_who_waits_for_a_report_when_the_service_ends_is_told_so(file_store: Store, slow: Slow) -> None:
    async with replica(file_store, BOTH) as admin:
        call = await slow.begin(admin)
        admin.close()
        with pytest.raises(Draining):
            await call
        slow.go_on.set()
