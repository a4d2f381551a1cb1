"""Free memory goes back to the system, though jemalloc is told to keep it."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from ray._private.services import JEMALLOC_SO

from headroom.service.engine import free_memory
from headroom.service.ray.environment import COMPUTING
from tests.service.in_process import QUERY, TITLES, serve

BURST = """
from headroom.service.engine.free_memory import release_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20

print(resident())
burst = [bytearray(b"x") * (3 << 20) for _ in range(50)]
del burst
print(resident())
print(release_memory())
print(resident())
"""


@pytest.mark.skipif(JEMALLOC_SO is None, reason="ray brings no jemalloc for this system")
def test_what_a_burst_took_goes_back() -> None:
    own = {"LD_PRELOAD": str(JEMALLOC_SO), "MALLOC_CONF": COMPUTING}
    root = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", BURST], env=own, cwd=root, capture_output=True, text=True, check=True
    )
    before, kept, is_jemalloc, after = ended.stdout.split()
    assert float(kept) - float(before) > 140, "150 MiB were kept"
    assert is_jemalloc == "True"
    assert float(after) - float(before) < 10


async def test_a_replica_gives_it_back_again_and_again(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    monkeypatch.setattr(free_memory, "EVERY_S", 0.01)
    monkeypatch.setattr(free_memory, "release_memory", lambda: threads.append(threading.current_thread()))
    async with serve(tiny_checkpoint) as service:
        while len(threads) < 3:
            await asyncio.sleep(0.01)
        await service.post("/v1/score", query=QUERY, titles=TITLES)
    assert threading.main_thread() not in threads
    given_back = -1
    while len(threads) != given_back:  # the last call may be under way; if others follow, this never ends
        given_back = len(threads)
        await asyncio.sleep(0.1)
