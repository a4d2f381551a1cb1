"""A config with cascades, what its stages must answer, and one service with it for most of the tests."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest_asyncio

from headroom import Classifier, HeadMask, Scores
from tests.checkpoints import WORDS
from tests.service.in_process import QUERY, Service, serve

TITLES = [" ".join(WORDS[i : i + 4]) for i in range(20)]


VARIANTS: list[dict[str, Any]] = [
    {"name": "cascade", "cascade": [{"variant": "cheap", "keep": 5}, {"variant": "full"}]},
    {"name": "cheap", "head_mask": "0-1.*"},
    {"name": "full"},
    {"name": "middle", "head_mask": "1.*"},
    {
        "name": "three",
        "cascade": [{"variant": "cheap", "keep": 0.5}, {"variant": "middle", "keep": 3}, {"variant": "full"}],
    },
]


CONFIG = {"variants": VARIANTS, "default": "full"}


def own_scores(clf: Classifier, spec: str, titles: list[str] = TITLES, query: str = QUERY) -> Scores:
    mask = HeadMask.parse(spec, layers=clf.num_layers, heads=clf.num_heads)
    return clf.score([(query, title) for title in titles], mask)


def best(scores: np.ndarray, pairs: list[int], count: int) -> list[int]:
    return sorted(sorted(pairs, key=lambda pair: -scores[pair])[:count])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tiny_checkpoint: Path) -> AsyncIterator[Service]:
    async with serve(tiny_checkpoint, CONFIG, threads=2) as running:
        yield running
