"""Warming the score store, where pairs cannot be scored, the queue is full, or the store is not there yet."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

from headroom.service.errors import Draining, InferenceFailed, QueueFull
from headroom.service.observe.metrics import Metrics
from headroom.service.schemas.requests import ScoreRequest
from headroom.service.scoring import warming
from headroom.service.scoring.catalog import Catalog
from headroom.service.scoring.score import Scorer
from headroom.service.scoring.warming import Warming

TITLES = [f"t{number}" for number in range(64)]


class Asked:
    """Stands for the scorer; it counts the titles that were scored.

    bad: the title that cannot be. refusals: how often the queue is full first.
    """

    def __init__(self, *, bad: str = "", refusals: int = 0, drains: bool = False) -> None:
        self.scored: Counter[str] = Counter()
        self.calls = 0
        self._bad = bad
        self._refusals = refusals
        self._drains = drains

    async def columns(self, request: ScoreRequest, *_: Any, **options: bool) -> None:
        assert options == {"use_kept": True, "background": True}
        self.calls += 1
        if self._drains:
            raise Draining
        if self.calls <= self._refusals:
            raise QueueFull
        titles = [title for _, title in request.texts()]
        if self._bad in titles:
            raise InferenceFailed
        self.scored.update(titles)


class Default:
    """Stands for the catalog."""

    default = None


async def warm(path: Path, asked: Asked, told: list[str], open_after: int = 0) -> None:
    """Warm until nothing happens any more. open_after: looks at the store until it keeps what is scored."""
    path.write_text("query,title\n" + "".join(f"q,{title}\n" for title in TITLES))
    metrics = Metrics()
    metrics.notify_operator = told.append  # type: ignore[method-assign]
    looks = 0

    def keeps_all() -> bool:
        nonlocal looks
        looks += 1
        assert looks > open_after or not asked.calls
        return looks > open_after

    work = Warming(path, cast("Scorer", asked), lambda: cast("Catalog", Default), metrics, keeps_all)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(work.run(), 1)


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "PAUSE_S", 0.01)


async def test_a_pair_that_cannot_be_scored_is_left_out_and_told(tmp_path: Path) -> None:
    """It was asked for again each second for ever, and the pairs after it never."""
    told: list[str] = []
    asked = Asked(bad="t7")
    await warm(tmp_path / "head.csv", asked, told)
    assert asked.scored == Counter(title for title in TITLES if title != "t7")
    assert told == [f"score_store_warm: 1 of 64 pairs of {tmp_path / 'head.csv'} cannot be scored"]


async def test_a_full_queue_and_a_store_that_is_not_open_are_waited_for(tmp_path: Path) -> None:
    told: list[str] = []
    asked = Asked(refusals=3)
    await warm(tmp_path / "head.csv", asked, told, open_after=5)
    assert asked.scored == Counter(TITLES)
    assert told == []


async def test_a_stop_ends_it_in_silence(tmp_path: Path) -> None:
    told: list[str] = []
    asked = Asked(drains=True)
    await warm(tmp_path / "head.csv", asked, told)
    assert asked.calls == 1
    assert told == []
