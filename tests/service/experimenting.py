"""A service with an experiment in it, for the tests."""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sqlalchemy import select

from headroom.service.experiments.store import Store
from headroom.service.experiments.tables import exposures
from tests.checkpoints import random_model, write_vocabulary
from tests.service.in_process import QUERY, TITLES, Service
from tests.service.metering import samples
from tests.service.running import PATIENCE_S

SALT = "2026-11"
KEYS = "plain,boss;role=admin"
BOSS = {"authorization": "Bearer boss"}
USER = {"authorization": "Bearer plain"}


def config(variants: list[dict[str, Any]] | None = None, **experiment: Any) -> dict[str, Any]:
    """A live config with one experiment between the first and the last variant."""
    variants = variants or [{"name": "full"}, {"name": "cut", "head_mask": "0.*", "sliced": True}]
    arms = [
        {"name": "control", "variant": variants[0]["name"]},
        {"name": "pruned", "variant": variants[-1]["name"]},
    ]
    return {
        "variants": variants,
        "experiments": [{"name": "prune20", "salt": SALT, "arms": arms, **experiment}],
    }


def draw_by_the_contract(
    unit: str, control: ArrayLike, treatment: ArrayLike, query: str = QUERY
) -> tuple[list[int], str]:
    """The order and the teams by section 6a of the contract, read slowly."""
    control_order = [int(index) for index in np.argsort(-np.asarray(control), kind="stable")]
    treatment_order = [int(index) for index in np.argsort(-np.asarray(treatment), kind="stable")]
    order: list[int] = []
    teams = ""
    rounds = 0
    while len(order) < len(control_order):
        first = next(index for index in control_order if index not in order)
        second = next(index for index in treatment_order if index not in order)
        if first == second:
            order.append(first)
            teams += "s"
            continue
        coin = sha256(f"{SALT}:{unit}:{query}:{rounds}".encode()).digest()[0] % 2
        rounds += 1
        order += [second, first] if coin else [first, second]
        teams += "tc" if coin else "ct"
    return order, teams


def write_broken_checkpoint(directory: Path) -> Path:
    """A checkpoint that loads, and gives no pair a finite score."""
    model = random_model(seed=3)
    with torch.no_grad():
        model.classifier.weight.fill_(3e38)
    model.save_pretrained(directory)
    write_vocabulary(directory)
    return directory


async def eventually(holds: Callable[[], Any], timeout_s: float = PATIENCE_S) -> None:
    """Wait until a condition holds, and fail if it does not in time. Blocking calls run in a thread."""
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


def exposed(url: str) -> dict[str, str]:
    """Return the arm of each exposed unit from the database."""
    with closing(Store(url)) as store, store.read() as db:
        return {row.unit: row.arm for row in db.execute(select(exposures))}


def exposing_requests(service: Service) -> float:
    """Return how many requests exposed their unit to any experiment."""
    found = samples(service.metrics.render())
    return sum(found[name] for name in found if name.startswith("headroom_experiment_requests_total{"))


async def shadow_of(service: Service, requests: int = 1) -> dict[str, Any]:
    """Return what the only arm's shadow report says once so many requests were scored for it."""
    scored = 'headroom_shadow_requests_total{experiment="prune20",result="scored"}'
    await eventually(lambda: service.metric(scored) == requests)
    await asyncio.to_thread(service.replica.live.writer.flush, 60)
    (arm,) = (await service.http.get("/v1/experiments/prune20")).json()["report"]["arms"]
    shadow: dict[str, Any] = arm["shadow"]
    return shadow


async def score(service: Service, unit: str | None = None, **more: Any) -> dict[str, Any]:
    return await service.post(
        "/v1/score", query=QUERY, titles=TITLES, **({"unit": unit} if unit else {}), **more
    )


async def arms(service: Service, units: Iterable[str]) -> list[str | None]:
    """Return the arm of each of the units, None for those without one."""
    answers = [await score(service, unit) for unit in units]
    return [answer["assignment"] and answer["assignment"]["arm"] for answer in answers]
