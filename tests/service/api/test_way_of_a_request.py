"""How much of the project one `POST /v1/score` passes through: a newcomer should read it in one sitting.

`python -m tests.service.api.test_way_of_a_request` prints every file and function on the way.
"""

import asyncio
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from models.checkpoint.hub import DEFAULT
from tests.service.in_process import QUERY, TITLES, serve

ROOT = Path(__file__).parents[3]
MOST_FILES, MOST_FUNCTIONS = 22, 80
"""Of `service/`."""


class Calls:
    """The functions that were called, by file, without comprehensions and lambdas."""

    def __init__(self) -> None:
        self.by_file: defaultdict[str, set[str]] = defaultdict(set)
        self.counting = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if self.counting and event == "call" and not name.endswith(">"):
            for package in ("service", "models"):
                if file.startswith(f"{ROOT / package}/"):
                    self.by_file[file.removeprefix(f"{ROOT}/")].add(name)

    def of(self, package: str) -> tuple[int, int]:
        """The number of files and of functions of one package."""
        files = [names for file, names in self.by_file.items() if file.startswith(package)]
        return len(files), sum(map(len, files))


@contextmanager
def profiled(calls: Calls) -> Iterator[None]:
    """Call `calls` for every function of this thread and of those that start meanwhile."""
    before = sys.getprofile()
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        yield
    finally:
        sys.setprofile(before)
        threading.setprofile(None)  # type: ignore[arg-type]


async def way_of_a_request(model: Path) -> Calls:
    """Count the functions of one request to a replica that is warm."""
    calls = Calls()
    with profiled(calls):
        async with serve(model, {"variants": [{"name": "full"}]}) as service:
            ways = []
            for counting in (False, False, True, True, True):
                calls.by_file.clear()
                calls.counting = counting
                await service.post("/v1/score", query=QUERY, titles=TITLES)
                calls.counting = False
                ways.append(calls.by_file.copy())
    # The shortest one: while another request was answered, the gauges of the queue may have been updated.
    calls.by_file = min(ways[2:], key=lambda way: sum(map(len, way.values())))
    return calls


async def test_a_request_passes_few_files_and_no_vendors_class(tiny_checkpoint: Path) -> None:
    calls = await way_of_a_request(tiny_checkpoint)
    files, functions = calls.of("service/")
    assert files <= MOST_FILES
    assert functions <= MOST_FUNCTIONS
    assert calls.of("service/api/clients/") == (0, 0)


if __name__ == "__main__":
    way = asyncio.run(way_of_a_request(DEFAULT))
    for file, names in sorted(way.by_file.items()):
        print(file, *sorted(names))
    for package in ("service/", "models/", "service/api/", "service/schemas/"):
        print("{}: {} files, {} functions".format(package, *way.of(package)))
