"""A real `headroom serve` with two replicas."""

import asyncio
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from ray._private.services import JEMALLOC_SO

from tests.checkpoints import write_checkpoint
from tests.service.client import Answer, metric, score, send_raw
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
