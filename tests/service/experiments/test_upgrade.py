"""An update and its way back under a running experiment, by processes of the last release and of this one."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from headroom.service.experiments.store import Store
from headroom.version import version
from tests.service.experimenting import exposed
from tests.service.experiments.making import at_once
from tests.service.experiments.postgres import Cluster
from tests.service.experiments.releases import LAST, ROOT, Running, extract, serving
from tests.service.running import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.more]

HERE = ROOT / "src"


@dataclass
class Course:
    """What happened on one database. arms: of the units, by the process that was asked, in order."""

    url: str
    arms: list[tuple[str, dict[str, str | None]]]
    receipts: list[tuple[str, tuple[int, int]]]
    ready: list[tuple[str, tuple[int, str]]]


def run(url: str, old: Path, model: Path) -> Course:
    """Update a serving release to this one, with both at once in between, and go back."""
    course = Course(url, [], [], [])

    def ask(name: str, release: Running, units: range, outcomes: range) -> None:
        course.ready.append((name, release.ready()))
        course.arms.append((name, release.arms(units)))
        course.receipts.append((name, release.send_outcomes(outcomes)))

    with serving(old, model, url) as before:
        ask("old", before, range(30), range(10))
        with serving(HERE, model, url) as new:
            ask("new, beside the old", new, range(40), range(20))
            ask("old, beside the new", before, range(50), range(30))
            with serving(old, model, url) as restarted:
                ask("old, started beside the new", restarted, range(60), range(40))
            ask("new, after all of the old", new, range(70), range(50))
        ask("old, after the new", before, range(70), range(50))
    return course


@pytest.fixture(scope="module")
def courses(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Course]]:
    """The course on SQLite and on PostgreSQL."""
    directory = tmp_path_factory.mktemp("upgrade")
    old = extract(LAST, directory)
    cluster = Cluster()
    try:
        urls = [f"sqlite:///{directory / 'experiments.db'}", cluster.create("upgrade")]
        made: list[Course] = []
        at_once(*(lambda url=url: made.append(run(url, old, tiny_checkpoint)) for url in urls))  # type: ignore[misc]
        yield made
    finally:
        cluster.remove()


def test_no_unit_changes_its_arm_on_the_way_there_and_back(courses: list[Course]) -> None:
    for course in courses:
        first: dict[str, str | None] = {}
        for name, arms in course.arms:
            for unit, arm in arms.items():
                assert arm in ("control", "pruned"), f"{name}: unit {unit} has no arm"
                assert first.setdefault(unit, arm) == arm, f"{name}: unit {unit} changed its arm"
        assert set(first.values()) == {"control", "pruned"}
        assert exposed(course.url) == first


def test_no_outcome_is_refused_lost_or_counted_twice(courses: list[Course]) -> None:
    for course in courses:
        assert [receipt for _, receipt in course.receipts] == [
            (10, 0),
            *[(10, 10), (10, 20), (10, 30), (10, 40)],
            (0, 50),
        ]
        store = Store(course.url)
        try:
            with store.read() as db:
                assert db.exec_driver_sql("SELECT count(*) FROM outcomes").scalar() == 50
                # The releases before it do without this table.
                assert db.exec_driver_sql("SELECT count(DISTINCT replica) FROM guardrail_windows").scalar()
            assert store.unit_counts(["prune20"])["prune20"].total() == 70
        finally:
            store.close()


def test_a_ship_and_its_rollback_reach_the_replicas_of_the_last_release(
    tiny_checkpoint: Path, tmp_path: Path, file_url: str
) -> None:
    """Release 0.2 knew no rollback of a ship, and would have gone on shipping what people took back."""
    old = extract(LAST, tmp_path)

    def variant_becomes(release: Running, variant: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (served := release.default_variant()) != variant:
            assert time.monotonic() < deadline, f"everybody still gets {served}"
            time.sleep(0.1)

    with serving(HERE, tiny_checkpoint, file_url) as new, serving(old, tiny_checkpoint, file_url) as before:
        new.arms(range(5))
        assert set(before.arms(range(40)).values()) == {"control", "pruned"}, "0.2 reads the new start"
        new.act("ship", arm="pruned")
        variant_becomes(before, "cut")
        new.act("rollback", reason="complaints")
        variant_becomes(before, "full")
        history = new.act("ship", arm="pruned")["history"]
        assert [action["kind"] for action in history] == ["start", "ship", "rollback", "ship"]
        assert history[2]["detail"] == "pruned had been shipped"
        variant_becomes(before, "cut")
        new.act("rollback")
        variant_becomes(before, "full")
    with serving(old, tiny_checkpoint, file_url) as restarted:
        assert restarted.default_variant() == "full"


def test_every_process_is_ready_all_the_time(courses: list[Course]) -> None:
    for course in courses:
        assert [ready for _, ready in course.ready] == [(200, "")] * 6


def test_a_database_of_a_newer_release_keeps_a_replica_from_starting_and_none_that_serves_from_scoring(
    tiny_checkpoint: Path, file_url: str
) -> None:
    """A rolling update back to this release stops, with the replicas of the newer one still there.

    One that served became unready, too: with the first replica of the newer release, all of this one went
    out of service at once, before others had taken their place, and nobody got scores.
    """
    store = Store(file_url)
    store.prepare()

    def set_version(number: int) -> None:
        with store._engine.connect().execution_options(headroom_write=True) as db, db.begin():
            db.exec_driver_sql(f"UPDATE schema_version SET version = {number}")

    def wait_until_ready(status: int) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while (ready := release.ready())[0] != status:
            assert time.monotonic() < deadline, ready
            time.sleep(0.1)
        return ready[1]

    def gauge(name: str) -> float:
        (line,) = (line for line in release.http.get("/metrics").text.splitlines() if line.startswith(name))
        return float(line.removeprefix(name))

    def failures() -> float:
        return gauge("headroom_experiment_database_errors_total ")

    set_version(99)
    try:
        with serving(HERE, tiny_checkpoint, file_url) as release:
            reason = wait_until_ready(503)
            assert "is of a newer release of headroom (tables of version 99" in reason
            assert failures() > 0
            scraped = release.http.get("/metrics").text
            assert re.search(
                rf'^headroom_build_info{{.*version="{re.escape(version())}"', scraped, re.MULTILINE
            )
            assert release.arms(range(2)) == {"0": None, "1": None}, "requests are answered all the same"
            set_version(4)
            wait_until_ready(200)
            while release.arms(range(1)) == {"0": None}:  # the next look starts the experiment
                time.sleep(0.1)
            assert set(release.arms(range(40)).values()) == {"control", "pruned"}
            before = failures()
            set_version(99)  # under a replica that serves
            deadline = time.monotonic() + PATIENCE_S
            while (ready := release.ready()) == (200, ""):
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert ready == (200, reason.removeprefix("Not ready: ").removesuffix("."))
            while failures() < before + 3:  # so that the alert fires
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert release.ready() == ready
            assert gauge("headroom_ready ") == 1
            release.arms(range(2))  # scores
    finally:
        store.close()
