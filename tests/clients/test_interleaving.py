"""A shop's own client shows the list that was drawn, and knows its impression."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from headroom.service.config.settings import LiveConfig
from tests.checkpoints import WORDS
from tests.clients import environments
from tests.service.experimenting import config
from tests.service.page.seeding import served

pytestmark = pytest.mark.more

DOCUMENTS = [" ".join(WORDS[start : start + 4]) for start in range(12)]


@pytest.mark.slow
def test_coheres_clients_show_the_drawn_order_and_read_the_impression(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"query": "angle bracket", "unit": "user-1"}
    ids = [f"product-{number}" for number in range(len(DOCUMENTS))]
    live = LiveConfig.model_validate(config(kind="interleave"))
    database = f"sqlite:///{tmp_path / 'experiments.db'}"
    with served(tiny_checkpoint, live, deterministic=True, database_url=database) as url:
        ours = httpx.post(f"{url}/v1/score", json={**asked, "titles": DOCUMENTS}).json()
        theirs = environments.run("sdk", "interleaved.py", url=url, documents=DOCUMENTS, ids=ids, **asked)
    assert ours["assignment"]["arm"] == "interleaved"
    by_rank = sorted(ours["results"], key=lambda result: result["rank"])
    order = [result["index"] for result in by_rank]
    assert order != [result["index"] for result in sorted(by_rank, key=lambda result: result["index"])]
    impressions = {ours["assignment"]["impression"]}
    for name, answer in theirs.items():
        results = answer["results"]
        assert [index for index, _ in results] == order[: 3 if name == "v2_top" else None]
        assert sorted(results, key=lambda result: -result[1]) == results
        assert len({score for _, score in results}) == len(results)
        impressions.add(answer["id"])
    assert len(impressions) == 4
    assert {len(impression) for impression in impressions} == {32}
