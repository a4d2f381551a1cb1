"""How much of the project one `POST /v1/score` passes through: a newcomer should read it in one sitting."""

from pathlib import Path

from tests.calls import counted
from tests.service.in_process import QUERY, TITLES, serve


async def test_a_request_passes_few_files_and_no_vendors_class(tiny_checkpoint: Path) -> None:
    with counted() as calls:
        async with serve(tiny_checkpoint, {"variants": [{"name": "full"}]}) as service:
            ways = []
            for counting in (False, False, True, True, True):
                calls.by_file.clear()
                calls.counting = counting
                await service.post("/v1/score", query=QUERY, titles=TITLES)
                calls.counting = False
                ways.append(calls.by_file.copy())
    # The shortest one: while another request was answered, the gauges of the queue may have been updated.
    calls.by_file = min(ways[2:], key=lambda way: sum(map(len, way.values())))
    files, functions = calls.of("service/")
    assert files <= 22, calls.by_file
    assert functions <= 80, calls.by_file
    assert calls.of("service/api/clients/") == (0, 0)
