"""headroom.service.ray.actor: what Serve's calls do to a replica, without Serve."""

import asyncio
import contextlib
import gc
import os
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headroom.service.config.settings import InvalidConfig, LiveConfig, Settings
from tests.service.metering import samples


class Replica:
    """Takes every config but those with a mask called `wrong`."""

    def __init__(self) -> None:
        self.config = LiveConfig()
        self.failure: str | None = None

    def check(self, config: LiveConfig) -> None:
        if "wrong" in config.masks:
            raise InvalidConfig("masks.wrong: no")

    def apply(self, config: LiveConfig, *, may_start: bool) -> None:  # noqa: ARG002
        self.check(config)
        self.config = config


@pytest.fixture
def replica() -> Any:
    """The class that Serve makes replicas of, with a fake under it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray's own, at import
        from headroom.service.ray.actor import Relevance
    deployment: Any = Relevance
    ours = deployment.func_or_class.__mro__[1]
    # Serve awaits `__del__`; the garbage collector cannot.
    replica = type("Replica", (ours,), {"__del__": lambda _: None})({})
    replica._replica = Replica()
    return replica


GOOD = {"variants": [{"name": "full"}, {"name": "half", "head_mask": "random:0.5@1"}]}


def refused(replica: Any) -> float:
    return samples(replica._metrics.render())["headroom_config_refused"]


@pytest.mark.parametrize("wrong", [{"masks": {"wrong": "none"}}, {"variants": []}, {"nonsense": 1}])
async def test_a_wrong_live_config_never_takes_a_serving_replica_down(wrong: Any, replica: Any) -> None:
    await replica.reconfigure(GOOD)
    assert await replica.refusal(wrong)
    assert refused(replica) == 0
    await replica.reconfigure(wrong)
    assert [variant.name for variant in replica._replica.config.variants] == ["full", "half"]
    await replica.check_health()
    assert refused(replica) == 1
    await replica.reconfigure(GOOD)
    assert refused(replica) == 0


def test_keys_given_to_build_reach_the_replicas(replica: Any) -> None:
    """What `serve deploy` and `headroom serve` call; the settings travel in the application."""
    from headroom.service.ray import build

    bound = build({"max_pairs": 7, "api_keys": "s3cr3t,boss;role=admin"})._bound_deployment
    travelling = bound.init_args[0]
    assert "s3cr3t" not in str(travelling)
    settings = type(replica)(travelling)._settings
    assert settings.max_pairs == 7
    assert settings.api_keys == Settings(api_keys="s3cr3t,boss;role=admin").api_keys
    assert build({})._bound_deployment.init_args[0] == {}


async def test_a_replica_whose_device_failed_asks_to_be_replaced(replica: Any) -> None:
    await replica.check_health()
    replica._replica.failure = "the device failed"
    with pytest.raises(RuntimeError, match="the device failed"):
        await replica.check_health()


async def test_a_replica_that_is_starting_is_healthy_and_takes_no_questions(replica: Any) -> None:
    replica._replica = None
    await replica.check_health()
    assert await replica.refusal(GOOD) == "the replica is starting"


@pytest.mark.parametrize("said", [None, "true"])
async def test_the_first_config_leaves_the_cores_to_the_model(
    said: str | None, replica: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few searches for cycles, no threads of the tokenizers' unless the operator wants them."""
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", said or "")
    if said is None:
        monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    async with started(replica, tiny_checkpoint, tmp_path):
        assert gc.get_threshold()[0] == 50_000
        assert os.environ["TOKENIZERS_PARALLELISM"] == (said or "false")
        assert replica._app.state.backend.ready() is None


@contextlib.asynccontextmanager
async def started(replica: Any, checkpoint: Path, directory: Path) -> AsyncIterator[None]:
    """Load a model by the first config; at the end drain, and restore what changed in Python."""
    replica._replica = None
    replica._app = SimpleNamespace(state=SimpleNamespace(backend=None))
    database = f"sqlite:///{directory}/experiments.db"
    replica._settings = Settings(model=str(checkpoint), device="cpu", database_url=database)
    thresholds = gc.get_threshold()
    try:
        await replica.reconfigure({"variants": [{"name": "full"}]})
        yield
        await asyncio.wait_for(replica.drain(), 30)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
