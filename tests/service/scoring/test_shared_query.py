"""A checkpoint whose query is computed once for a request's titles, over HTTP beside others' requests."""

import asyncio
import json
import shutil
from pathlib import Path

import numpy as np

from headroom import Classifier
from tests.service.in_process import TITLES, serve


async def test_requests_at_once_get_the_scores_of_each_pair_alone(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Equal queries under different masks share nothing, and nor do different ones of equal length."""
    directory = tmp_path / "sharing"
    shutil.copytree(tiny_checkpoint, directory)
    fields = json.loads((directory / "config.json").read_text())
    fields["headroom"] = fields.get("headroom", {}) | {"shares_query": True}
    (directory / "config.json").write_text(json.dumps(fields))
    alone = Classifier.load(directory, "cpu", "float32")
    cases = [(query, mask) for query in ("angle bracket", "steel bracket", "usb") for mask in ("none", "1.*")]
    async with serve(directory) as service:
        answers = await asyncio.gather(
            *(
                service.post("/v1/score", query=query, titles=TITLES, head_mask=mask)
                for query, mask in cases * 3
            )
        )
    for (query, mask), answer in zip(cases * 3, answers, strict=True):
        expected = [alone.score([(query, title)], head_mask=mask).score[0] for title in TITLES]
        found = [row["score"] for row in answer["results"]]
        np.testing.assert_allclose(found, expected, atol=1e-4)
        assert answer["usage"]["tokens"] == sum(row["tokens"] for row in answer["results"])
