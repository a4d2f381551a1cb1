"""A real `headroom serve` with two replicas."""

import asyncio
import itertools
import re
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from ray._private.services import JEMALLOC_SO

from tests.checkpoints import write_checkpoint
from tests.service.client import Answer, metric, request, score, send_raw
from tests.service.experimenting import config, write_broken_checkpoint
from tests.service.running import LIVE, Server

pytestmark = pytest.mark.more

SCORED = 'headroom_requests_total{route="/v1/score",status="200"}'
"""Counts the answered scores of the node."""


async def everywhere(server: Server, data: bytes, times: int = 40) -> list[Answer]:
    """Send the same request on many connections, so that both replicas get some; return the answers."""
    return [await send_raw(server.port, data) for _ in range(times)]


def grade_of(answer: Answer) -> float:
    """Return the first pair's grade without its last bits, which depend on the pairs beside it."""
    return round(answer.json["results"][0]["expected_grade"], 4)


async def test_both_answer_alike_and_any_scrape_counts_both(two: Server) -> None:
    before = await metric(two.port, SCORED)
    answers = await everywhere(two, score(3))
    assert len(two.replicas()) == 2
    assert {answer.status for answer in answers} == {200}
    assert len({str(answer.json["results"]) for answer in answers}) == 1
    assert {await metric(two.port, SCORED) for _ in range(10)} == {before + 40}


@pytest.mark.skipif(JEMALLOC_SO is None, reason="ray brings no jemalloc for this system")
def test_all_allocate_by_jemalloc_and_keep_little(two: Server) -> None:
    for replica in two.replicas():
        assert any(part.path.endswith("/libjemalloc.so") for part in replica.memory_maps())
        variables = replica.environ()
        assert variables["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == "512"
        assert variables["LRU_CACHE_CAPACITY"] == "64"
        assert variables["MALLOC_CONF"] == "dirty_decay_ms:-1,narenas:1,lg_extent_max_active_fit:64"
    of_others = {}
    for process in two.family():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile
            of_others[" ".join(process.cmdline()[:1])] = process.environ()
    for program in ("gcs_server", "raylet", "ray::ServeController"):
        found = next(own for command, own in of_others.items() if program in command)
        assert found["MALLOC_CONF"].endswith(",tcache:false"), program


async def versions(server: Server) -> set[str]:
    """Return the versions of the config that the replicas answer with."""
    return {answer.headers["x-config-version"] for answer in await everywhere(server, score(1))}


async def test_an_edit_that_one_of_them_refuses_reaches_neither(
    two: Server, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    before = await versions(two)
    for file in tiny_checkpoint.iterdir():
        # The weights are there for one process and for no other.
        only = f"/proc/self/task/{two.replicas()[0].pid}/root" if file.suffix == ".safetensors" else ""
        (tmp_path / file.name).symlink_to(f"{only}{file}")
    new = {"name": "new", "checkpoint": str(tmp_path)}
    two.write_config({**LIVE, "variants": [*LIVE["variants"], new]})
    line = two.wait_for_line("1 of 2 replicas refused it")
    assert "config refused, the last good one stays" in line
    assert "holds neither model.safetensors nor pytorch_model.bin" in line
    assert await versions(two) == before


async def test_an_arm_that_fails_a_little_on_each_is_rolled_back_once_for_both(
    two: Server, tmp_path: Path
) -> None:
    """Neither has the 100 requests that it takes, and there is an edit of something else in between."""
    broken = {"name": "broken", "checkpoint": str(write_broken_checkpoint(tmp_path / "broken"))}
    live = config([*LIVE["variants"], broken], name="summed", guardrails={"min_requests": 100})
    await asyncio.to_thread(two.edit, {**live, "masks": LIVE["masks"]})

    ports = await two.own_ports()
    assert len(ports) == 2

    async def ask(units: range, arm: str) -> None:
        for unit in units:
            answer = await send_raw(ports[unit % 2], score(1, unit=f"{arm}-{unit}", arm=arm))
            assignment = answer.json["assignment"]  # None once the arm is rolled back
            assert assignment is None or assignment["fallback"] == (arm == "pruned")

    async def statuses() -> set[str]:
        answers = await everywhere(two, request("GET", "/v1/experiments"), times=10)
        return {answer.json["experiments"][0]["status"] for answer in answers}

    while await statuses() != {"running"}:  # pytest's timeout is the limit
        await asyncio.sleep(0.1)
    await ask(range(30), "control")
    await ask(range(70), "pruned")
    await asyncio.to_thread(two.edit, {**live, "masks": {**LIVE["masks"], "unrelated": "0.0"}})
    assert await statuses() == {"running"}
    await ask(range(70, 115), "pruned")
    line = two.wait_for_line("experiment summed: arm pruned rolled back (error_rate): ")
    judged = re.search(r"(\d+) of \1 requests on 2 replicas failed; the limit is 0.02 over", line)
    assert judged, line
    assert int(judged[1]) >= 100
    with closing(sqlite3.connect(two.config.parent / "state/headroom/experiments.db")) as db:
        actions = db.execute("SELECT actor FROM log WHERE experiment = 'summed' AND kind = 'rollback'")
        assert [row[0] for row in actions] == ["guardrail"]
    while await statuses() != {"rolled_back"}:
        await asyncio.sleep(0.1)
    assert two.stderr.count("arm pruned rolled back") in (1, 2)  # as many as decided it
    counted = 'headroom_experiment_rollbacks_total{experiment="summed",guardrail="error_rate"}'
    assert await metric(two.port, counted) == 1
    await asyncio.to_thread(two.edit, LIVE)


@pytest.mark.slow
async def test_the_kill_of_one_leaves_the_other_serving(two: Server) -> None:
    answers: list[tuple[float, Answer]] = []
    stop, numbers = asyncio.Event(), itertools.count()

    async def client() -> None:
        while not stop.is_set():
            data = score(20, query=f"bracket {next(numbers)}")  # new: the cache answers the others
            answer = await send_raw(two.port, data, timeout_s=20)
            answers.append((time.monotonic(), answer))

    clients = [asyncio.create_task(client()) for _ in range(4)]
    await asyncio.sleep(1)
    victim = two.replicas()[0]
    directory = Path(victim.environ()["PROMETHEUS_MULTIPROC_DIR"])
    before = await metric(two.port, SCORED)
    victim.kill()
    killed = time.monotonic()
    await asyncio.sleep(3)
    while {answer.status for _, answer in answers[-2 * len(clients) :]} != {200}:  # until all are answered
        await asyncio.sleep(0.1)
    stop.set()
    await asyncio.gather(*clients)
    line = two.wait_for_line("crashed")
    assert line.startswith("headroom: Ray Serve: ")
    assert "Another one is started" in line

    after = [(at, answer) for at, answer in answers if at > killed]
    fine = [answer for _, answer in after if answer.status == 200]
    assert await metric(two.port, SCORED) >= before + len(fine) - len(clients)
    assert not list(directory.glob(f"gauge_live*_{victim.pid}.db"))
    assert {answer.status for _, answer in after} <= {0, 200, 503}
    # A client loses what the dead one had in hand, and is refused until the front, which checks every second,
    # has noticed; on a slow machine, whose cores the next replica's start takes, that is later.
    assert all(answer.status == 200 for at, answer in after if at > killed + 5)
    assert len(after) - len(fine) <= len(clients) + 0.05 * len(after)
    assert max(answer.seconds for answer in fine) < 5
    while len(two.replicas()) != 2 or victim in two.replicas():  # pytest's timeout is the limit
        await asyncio.sleep(0.1)


async def test_weights_that_are_replaced_are_served_by_no_replica_that_starts_again(two: Server) -> None:
    """Else two models would answer under one version. One replica stays away, so the test ends them."""
    await asyncio.to_thread(two.edit, {**LIVE, "masks": {"lower": "2.*", "settled": "0.0"}})
    before = {grade_of(answer) for answer in await everywhere(two, score(1))}
    model = two.config.parent / "model"
    write_checkpoint(model, seed=7)
    two.replicas()[0].kill()
    line = two.wait_for_line("a replica cannot start: the files in")
    assert f"the files in {model} have changed since the service began to serve them" in line
    answers = [answer for answer in await everywhere(two, score(1)) if answer.status == 200]
    assert {grade_of(answer) for answer in answers} == before
    assert await asyncio.to_thread(two.stop) == 0
