"""A checkpoint whose query is computed once for a request's titles, over HTTP beside others' requests."""

import asyncio
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from headroom.service.engine.request import added_tokens
from headroom.service.engine.threads import PairRow, mark_prefixes
from tests.checkpoints import load
from tests.service.in_process import TITLES, serve


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    directory = tmp_path / "sharing"
    shutil.copytree(tiny_checkpoint, directory)
    fields = json.loads((directory / "config.json").read_text())
    fields["headroom"] = fields.get("headroom", {}) | {"shares_query": True}
    (directory / "config.json").write_text(json.dumps(fields))
    return directory


async def test_requests_at_once_get_the_scores_of_each_pair_alone(checkpoint: Path) -> None:
    """Equal queries under different masks share nothing, and nor do different ones of equal length."""
    alone = load(checkpoint)
    cases = [(query, mask) for query in ("angle bracket", "steel bracket", "usb") for mask in ("none", "1.*")]
    async with serve(checkpoint) as service:
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


def test_a_query_counts_once_in_a_batch(checkpoint: Path) -> None:
    """Rows of another mask count it again."""
    clf = load(checkpoint)
    encoded = clf.tokenizer.encode([(query, title) for query in ("angle bracket", "usb") for title in TITLES])
    lane = Mock(classifier=clf)
    masks = [clf.mask("none"), clf.mask("1.*")]
    rows = [PairRow(len(pair), lane, pair=pair, mask=mask) for mask in masks for pair in encoded]
    mark_prefixes(rows)
    queries = {pair.shared_query.tobytes(): len(pair.shared_query) for pair in encoded}
    own = sum(len(pair) - len(pair.shared_query) for pair in encoded)
    assert sum(added_tokens(rows)) == 2 * (own + sum(queries.values()))
