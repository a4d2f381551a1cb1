"""headroom.service.ray.actor: what Serve's calls do to a replica, without Serve."""

import asyncio
import contextlib
import gc
import os
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from headroom.service.config.settings import InvalidConfig, LiveConfig, Settings
from headroom.service.ray import build
from headroom.service.ray.actor import ServingNodes, is_promised_gpu
from tests.service.metering import samples
from tests.service.ray.conftest import FakeReplica, without_serve


@pytest.fixture
def replica() -> Any:
    """The class that Serve makes replicas of, with a fake under it."""
    return without_serve(FakeReplica())


LIVE = {"variants": [{"name": "full"}]}
GOOD = {"variants": [{"name": "full"}, {"name": "half", "head_mask": "random:0.5@1"}]}


def refused(replica: Any) -> float:
    return samples(replica._metrics.render())["headroom_config_refused"]


@pytest.mark.parametrize(
    ("gpus", "visible", "promised"),
    [
        (None, None, False),
        (0.0, "void", False),
        (None, "none", False),
        (0.25, None, True),  # `num_gpus`
        (None, "all", True),  # a container of NVIDIA's runtime
        (None, "GPU-8a5b7d33", True),  # of Kubernetes' device plugin
    ],
)
def test_who_was_promised_a_gpu(
    gpus: float | None, visible: str | None, promised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVIDIA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    assert is_promised_gpu(gpus) == promised


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


@pytest.mark.parametrize("wrong", [{"masks": {"gone": "9.*"}}, {"nonsense": 1}])
async def test_a_replica_whose_first_config_is_wrong_takes_the_one_that_another_has_in_force(
    wrong: Any, replica: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a refused edit would take the service down, one dead replica after the other."""
    good = LiveConfig.model_validate(GOOD)
    monkeypatch.setattr(replica, "_config_of_others", lambda: good)
    handled = list[BaseException | None]()
    load = replica._load

    async def load_and_note(*arguments: Any) -> Any:
        handled.append(sys.exc_info()[1])
        return await load(*arguments)

    monkeypatch.setattr(replica, "_load", load_and_note)
    async with started(replica, tiny_checkpoint, tmp_path, wrong):
        assert replica._replica.config_version == good.version
        assert refused(replica) == 1
        assert replica._replica.ready() is None
        assert "config is refused" in replica._replica.problem
        assert await replica.config_in_force({}) == good.model_dump(mode="json")
        assert await replica.config_in_force({"max_pairs": 7}) is None, "of other arguments"
    assert set(handled) == {None}, "an error that is being handled keeps the models of the wrong config"


async def test_without_another_replica_a_wrong_first_config_does_not_start(
    replica: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_config_of_others", lambda: None)
    with pytest.raises(InvalidConfig, match=r"masks\.gone"):
        async with started(replica, tiny_checkpoint, tmp_path, {"masks": {"gone": "9.*"}}):
            pass


def test_no_secret_of_the_environment_travels_in_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray keeps it in the store of its head, and later replicas would get the old one after a rotation."""
    for name, field in Settings.model_fields.items():
        if not field.repr:  # a secret
            scheme = "redis" if name == "score_cache" else "postgresql"
            monkeypatch.setenv(f"HEADROOM_{name.upper()}", f"{scheme}://me:pa55word@host/{name}")
    monkeypatch.setenv("HEADROOM_API_KEYS", "pa55word")
    monkeypatch.setenv("HEADROOM_MAX_PAIRS", "7")
    monkeypatch.setenv("HEADROOM_SERVICE_NAME", "production")
    travelling = build({})._bound_deployment.init_args[0]
    assert "pa55word" not in str(travelling)
    assert travelling.keys() == {"max_pairs", "api_keys", "service_name"}, "keys are digests"
    given = {"database_url": "postgresql://me@host/name", "max_pairs": 8}
    assert build(given)._bound_deployment.init_args[0].items() >= given.items()
    keys = build({"api_keys": "s3cr3t;role=admin"})._bound_deployment.init_args[0]["api_keys"]
    assert "s3cr3t" not in str(keys)
    assert Settings(api_keys=keys).api_keys == Settings(api_keys="s3cr3t;role=admin").api_keys


def test_nodes_are_counted_by_one_question_however_often_somebody_asks_a_silent_ray(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray is silent while its head is away; each question would keep a thread until it is back."""
    node = {"Alive": True, "Resources": {"CPU": 4.0}}
    head = {"Alive": True, "Resources": {}}
    lost = {"Alive": False, "Resources": {"CPU": 4.0}}
    is_back = threading.Event()
    asked: list[bool] = []

    def nodes() -> list[dict[str, Any]]:
        asked.append(True)
        is_back.wait()
        return [node, head, lost, node]

    monkeypatch.setattr(ray, "nodes", nodes)
    count = ServingNodes(timeout_s=0.05)
    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"in 0\.05 s how many nodes serve"):
            count()
    is_back.set()
    assert ServingNodes(timeout_s=60)() == 2
    assert len(asked) == 2


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
async def started(
    replica: Any, checkpoint: Path, directory: Path, config: dict[str, Any] = LIVE
) -> AsyncIterator[None]:
    """Load a model by the first config; at the end drain, and restore what changed in Python."""
    replica._replica = None
    replica._app = SimpleNamespace(state=SimpleNamespace(backend=None, keys=None))
    database = f"sqlite:///{directory}/experiments.db"
    replica._settings = Settings(model=str(checkpoint), device="cpu", database_url=database)
    thresholds = gc.get_threshold()
    try:
        await replica.reconfigure(config)
        yield
        await asyncio.wait_for(replica.drain(), 30)
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
