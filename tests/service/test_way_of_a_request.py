"""How many files and functions of ours a scoring request goes through: what its reader must hold."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.service.in_process import QUERY, serve

ROOT = Path(__file__).parents[2]
ROOMS = tuple(f"{ROOT / room}/" for room in ("service", "models", "src"))
MAX_FILES = 30
MAX_FUNCTIONS = 164
"""Functions, methods and properties. A comprehension belongs to the function that holds it."""

THREADS = ("MainThread", "forward")

REQUESTS = [["red lamp", "blue lamp with new words"], ["oak desk", "glass table"], ["wool hat", "warm glove"]]


class Recorder:
    """A profile function that notes the code objects that begin while it is on: on this thread, and on those
    that run the network."""

    def __init__(self) -> None:
        self.is_on = False
        self.begun: set[Any] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call" and threading.current_thread().name.startswith(THREADS):
            self.begun.add(frame.f_code)


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """A recorder of this thread and of those that begin from now on."""
    recorder = Recorder()
    before = sys.getprofile()
    sys.setprofile(recorder)
    threading.setprofile(recorder)
    yield recorder
    threading.setprofile(None)
    sys.setprofile(before)


async def test_a_scoring_request_goes_through_few_files_and_functions(recorder: Recorder) -> None:
    ways: list[set[tuple[str, str]]] = []
    async with serve(ROOT / "models" / "default", {"variants": [{"name": "full"}]}) as service:
        for task in service.replica._background:  # it would be counted where it runs meanwhile
            task.cancel()
        await service.post("/v1/score", query=QUERY, titles=["first use"])
        for titles in REQUESTS:
            recorder.begun.clear()
            recorder.is_on = True
            await service.post("/v1/score", query=f"new {titles[0]}", titles=titles)
            recorder.is_on = False
            ways.append(
                {
                    (str(Path(code.co_filename).resolve()), code.co_qualname)
                    for code in recorder.begun
                    if not code.co_name.startswith("<")
                }
            )
    functions = {(file, name) for file, name in set.intersection(*ways) if file.startswith(ROOMS)}
    files = {file.removeprefix(f"{ROOT}/") for file, _ in functions}
    assert {"service/api/post.py", "service/engine/scheduler.py", "models/network.py"} <= files
    assert len(files) <= MAX_FILES, sorted(files)
    assert len(functions) <= MAX_FUNCTIONS, sorted(functions)
