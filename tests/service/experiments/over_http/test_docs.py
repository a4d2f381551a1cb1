"""The walk through an interleaving experiment in docs/experiments.md, as its commands do it."""

import asyncio
import json
import re
from datetime import UTC, datetime
from pathlib import Path

import yaml

from headroom.service.experiments import report_page
from tests.service.experimenting import BOSS, KEYS, USER
from tests.service.in_process import serve

PAGE = (Path(__file__).parents[4] / "docs" / "experiments.md").read_text("utf-8")
SECTION = PAGE[PAGE.index("## Interleave") : PAGE.index("## A/B test")]
CLOCK = "'$(date -u +%FT%T.%3NZ)'"
IMPRESSION = "9f0c…"


async def test_the_walk_of_the_docs_ends_with_a_click_that_counts(
    tiny_checkpoint: Path, file_url: str
) -> None:
    (config,) = re.findall(r"```yaml\n(.*?)```", SECTION, re.DOTALL)
    live = yaml.safe_load(config.replace("@pruned20", "0-1.*"))
    now = datetime.now(UTC).isoformat()
    commands = re.findall(r"curl -d '(\{.*?\})' \\\n.*?localhost:8000(\S+)\n", SECTION.replace(CLOCK, now))
    (score_body, score_path), (click_body, click_path) = commands
    async with serve(tiny_checkpoint, live, database_url=file_url, api_keys=KEYS) as service:
        service.http.headers.update(USER)
        answer = await service.post(score_path, **json.loads(score_body))
        assigned = answer["assignment"]
        assert (assigned["experiment"], assigned["arm"]) == ("prune20-order", "interleaved")
        by_rank = sorted(answer["results"], key=lambda result: result["rank"])
        assert by_rank == sorted(answer["results"], key=lambda result: -result["score"])
        click = json.loads(click_body.replace(IMPRESSION, assigned["impression"]))
        receipt = await service.post(click_path, **click)
        assert (receipt["accepted"], receipt["unknown"]) == (1, 0)
        await asyncio.to_thread(service.replica.live.writer.flush, 60)
        found = (await service.http.get("/v1/experiments/prune20-order")).json()
        assert found["kind"] == "interleave"
        assert [arm["exposures"] for arm in found["arms"]] == [1, 1]
        assert found["preference"]["metric"] == "click"
        assert found["preference"]["impressions"] == 1
        assert found["preference"]["units"] in (0, 1)  # whether the clicked title belongs to an arm
        assert found["sample_ratio_p"] is None
        (metric,) = found["report"]["arms"][0]["metrics"]
        assert metric["preference"] == found["preference"]
        page = (await service.http.get("/v1/experiments/prune20-order/report.html")).text
        assert "planned units have clicked a title of one arm" in page
        (row,) = [line.split() for line in report_page.text(found).splitlines() if line.startswith("click ")]
        assert row[:4] == ["click", "pruned", "–", "–"]
        path = "/v1/experiments/prune20-order/ship"
        shipped = await service.http.post(path, json={"arm": "pruned", "reason": "test"}, headers=BOSS)
        assert shipped.json()["shipped"] == "pruned"
        assert shipped.json()["preference"] is None
