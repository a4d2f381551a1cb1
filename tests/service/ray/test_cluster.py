"""headroom.service.ray.cluster: an edit is in force on each replica or on none. The test plays Serve."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from headroom.service.config.edits import Unsettled
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.ray import autoscaling, cluster, rollout
from tests.service.ray.conftest import FakeReplica, shipped, without_serve

BEFORE: dict[str, Any] = {"variants": [{"name": "full"}]}
EDITED: dict[str, Any] = {"variants": [{"name": "full"}, {"name": "half", "head_mask": "random:0.5@1"}]}


class Replica(FakeReplica):
    """applies: called before it applies another config."""

    def __init__(self, applies: Callable[[], None] | None) -> None:
        super().__init__()
        self._applies = applies

    def apply(self, config: LiveConfig, *, may_start: bool) -> None:
        if self._applies is not None and config.version != self.config.version:
            self._applies()
        super().apply(config, may_start=may_start)


def replica(applies: Callable[[], None] | None = None) -> Any:
    return without_serve(Replica(applies))


class Serve:
    """Ray Serve for one application: reconfigures a replica each time somebody looks how far it is."""

    def __init__(self, replicas: Sequence[Any]) -> None:
        self.replicas = replicas
        self._waiting: list[Any] = []
        self._user_config: Any = None
        self.deployed = 0
        self.starting: list[Any] = []  # replicas that nobody can ask yet
        self.unheard: list[Any] = []  # replicas that serve, and that the handle hears of after one more ask
        self.failures = 0  # calls that find the controller dead
        self.unanswered = 0  # waits that end before the replicas answer
        self.asked: list[tuple[str, Any]] = []

    def deploy_apps(self, schema: Any) -> None:
        self._user_config = schema.applications[0].deployments[0].user_config
        self._waiting = list(self.replicas)
        self.deployed += 1

    def status(self) -> Any:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("the controller died")
        if self._waiting:
            asyncio.run(self._waiting.pop(0).reconfigure(self._user_config))
        starting = len(self.replicas) - len(self._listed())
        states = {"RUNNING": len(self.replicas) - starting, "STARTING": starting}
        deployment = SimpleNamespace(replica_states=states)
        status = "DEPLOYING" if self._waiting or starting else "RUNNING"
        application = SimpleNamespace(status=status, deployments={"Relevance": deployment})
        return SimpleNamespace(applications={"headroom": application})

    def _listed(self) -> list[Any]:
        return [replica for replica in self.replicas if replica not in self.starting]

    def shutdown(self) -> None:
        pass

    def get_app_handle(self, _name: str) -> Self:
        return self

    def broadcast(self, method: str, *arguments: Any) -> Any:
        self.asked.append((method, arguments))

        def results(timeout_s: float) -> list[Any]:
            assert timeout_s > 0
            if self.unanswered:
                self.unanswered -= 1
                raise TimeoutError
            asked = [replica for replica in self._listed() if replica not in self.unheard]
            self.unheard.clear()
            return [asyncio.run(getattr(replica, method)(*arguments)) for replica in asked]

        return SimpleNamespace(results=results)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Any, Serve]]:
    def start(*replicas: Any) -> tuple[Any, Serve]:
        serve = Serve(replicas)
        monkeypatch.setattr(cluster, "serve", serve)
        monkeypatch.setattr(cluster, "POLL_S", 0.0)
        monkeypatch.setattr(rollout, "POLL_S", 0.0)
        found = cluster.Cluster(tmp_path, lambda: False, ray_timeout_s=60)
        found._client = found._handle = serve
        found.deploy(shipped(tmp_path, BEFORE))
        while serve._waiting:
            serve.status()
        return found, serve

    return start


def refuse(reason: str) -> Callable[[], None]:
    def raise_it() -> None:
        raise InvalidConfig(reason)

    return raise_it


def versions(serve: Serve) -> set[str]:
    return {replica._replica.config_version for replica in serve.replicas}


def test_if_one_replica_cannot_apply_an_edit_the_others_go_back(running: Any, tmp_path: Path) -> None:
    found, serve = running(replica(), replica(applies=refuse("no memory is left")), replica())
    before = versions(serve)
    assert rollout.apply(found, shipped(tmp_path, EDITED)) == "1 of 3 replicas refused it: no memory is left"
    assert versions(serve) == before
    # It is asked again the next time, not remembered.
    serve.replicas[1]._replica._applies = None
    edited = shipped(tmp_path, EDITED)
    assert rollout.apply(found, edited) is None
    assert versions(serve) == {edited.live.version}


def test_a_replica_that_never_applies_an_edit_does_not_block_for_ever(
    running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, serve = running(replica(), replica())
    before = versions(serve)
    monkeypatch.setattr(rollout, "APPLY_TIMEOUT_S", 0.05)
    stuck = serve.replicas[1]

    async def hang(_user_config: Any) -> None:
        pass

    monkeypatch.setattr(stuck, "reconfigure", hang)
    reason = rollout.apply(found, shipped(tmp_path, EDITED))
    assert reason == "1 of 2 replicas have applied it, and no other has in the last 0.05 s"
    assert versions(serve) == before


def test_a_stop_waits_for_a_replica_of_which_the_handle_hears_late(running: Any) -> None:
    found, serve = running(replica(), replica())
    serve.unheard = [serve.replicas[1]]
    found.drain(5)
    assert all(each._replica.is_drained for each in serve.replicas)


def test_a_stop_waits_for_the_others_if_an_ask_meets_a_dead_replica(running: Any) -> None:
    found, serve = running(replica(), replica())
    dead = replica()
    dead.drain = refuse("the actor died")
    serve.replicas = [dead, *serve.replicas]
    threading.Timer(0.2, serve.replicas.remove, [dead]).start()
    found.drain(5)
    assert all(each._replica.is_drained for each in serve.replicas)


EXPERIMENT: dict[str, Any] = {
    "name": "halves",
    "salt": "s",
    "arms": [{"name": "control", "variant": "full"}, {"name": "half", "variant": "half"}],
}


def test_an_edit_that_is_refused_has_not_started_its_experiment(
    running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start stays in the log: a corrected edit with other arms would be `changed` for good."""
    found, serve = running(replica(), replica())
    before = versions(serve)
    monkeypatch.setattr(rollout, "APPLY_TIMEOUT_S", 0.05)
    edited = shipped(tmp_path, EDITED | {"experiments": [EXPERIMENT]})
    first, second = serve.replicas
    status = serve.status

    def kill_the_second() -> Any:
        found = status()
        if first._replica.config_version == edited.live.version:
            serve.starting = [second]  # its successor
        return found

    monkeypatch.setattr(serve, "status", kill_the_second)
    with suppress(Unsettled):
        assert rollout.apply(found, edited) == (
            "1 of 2 replicas have applied it, and no other has in the last 0.05 s"
        )
    assert {each._replica.started.version for each in serve.replicas} == before
    monkeypatch.setattr(serve, "status", status)
    serve.starting = []
    assert rollout.apply(found, edited) is None
    assert first._replica.started.version == edited.live.version


@pytest.mark.parametrize("silences", [1, 2])
def test_an_edit_that_serve_may_apply_late_is_not_called_undone(
    silences: int, running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Serve answers to the next call, it has done this one and that, in their order."""
    found, serve = running(replica())
    before = versions(serve)
    found._ray_timeout_s = 0.1
    go_on = threading.Event()
    deploy_apps = serve.deploy_apps
    late: list[Any] = []

    def deploy(schema: Any) -> None:
        if len(late) < silences:
            late.append(schema)
            go_on.wait()
        deploy_apps(schema)

    monkeypatch.setattr(serve, "deploy_apps", deploy)
    try:
        if silences == 1:
            assert rollout.apply(found, shipped(tmp_path, EDITED)) == (
                "Ray has not answered in 0.1 s (ray_timeout_s)"
            )
            assert versions(serve) == before
        else:
            with pytest.raises(Unsettled, match=r"not answered in 0\.1 s .*; back to the config before: Ray"):
                rollout.apply(found, shipped(tmp_path, EDITED))
    finally:
        go_on.set()


@pytest.mark.parametrize("trouble", [{"failures": 3}, {"unanswered": 5}], ids=str)
def test_an_edit_outlives_a_dead_controller_and_a_long_check(
    trouble: dict[str, int], running: Any, tmp_path: Path
) -> None:
    """Otherwise an edit that is in force would be called refused."""
    found, serve = running(replica(), replica())
    vars(serve).update(trouble)
    edited = shipped(tmp_path, EDITED)
    assert rollout.apply(found, edited) is None
    assert versions(serve) == {edited.live.version}


def test_what_a_replica_loads_for_too_long_is_kept_for_the_next_attempt(
    running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica forgets what it has loaded if it is asked about another config."""
    found, serve = running(replica())
    monkeypatch.setattr(cluster, "CHECK_TIMEOUT_S", -1.0)
    serve.unanswered = 1
    edited = shipped(tmp_path, EDITED)
    assert "save it again to wait longer" in rollout.apply(found, edited)
    assert serve.asked == [("refusal", (edited.live.model_dump(mode="json"),))]
    assert rollout.apply(found, edited) is None


def test_a_stop_ends_a_check(running: Any, tmp_path: Path) -> None:
    found, serve = running(replica())
    serve.unanswered = 1_000_000
    found.is_stopping = lambda: True
    assert rollout.apply(found, shipped(tmp_path, EDITED)) == (
        "the service stops before every replica has checked it"
    )
    assert serve.deployed == 1


@pytest.mark.parametrize(
    ("fields", "cpus"),
    [
        ({}, 1),
        ({"ray_actor_options": None, "num_replicas": 4}, 0.5),
        ({"num_replicas": 1, "ray_actor_options": {"num_cpus": 2}}, 2),
        ({"num_replicas": "auto"}, 0.02),  # Serve takes up to 100
        ({"num_replicas": "auto", "autoscaling_config": {"max_replicas": 5}}, 0.4),
    ],
)
def test_all_replicas_find_a_place_on_two_cores(
    fields: dict[str, Any], cpus: float, running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the start would wait for ever, or autoscaling for its last replicas."""
    found, _ = running(replica())
    monkeypatch.setattr(cluster, "cores", lambda: 2)
    document = found._on_this_machine(shipped(tmp_path, BEFORE, **fields))
    deployment = document["applications"][0]["deployments"][0]
    assert deployment["ray_actor_options"]["num_cpus"] == cpus


@pytest.mark.parametrize(
    ("in_the_file", "drain", "seconds"), [(40, "120", 130), (None, "30", 40), (40, "5", 40)]
)
def test_serve_kills_no_replica_before_its_drain_timeout(
    in_the_file: float | None,
    drain: str,
    seconds: float,
    running: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = running(replica())
    monkeypatch.setenv("HEADROOM_DRAIN_TIMEOUT_S", drain)
    document = found._on_this_machine(shipped(tmp_path, BEFORE, graceful_shutdown_timeout_s=in_the_file))
    assert document["applications"][0]["deployments"][0]["graceful_shutdown_timeout_s"] == seconds


@pytest.mark.parametrize("call", ["deploy_apps", "status", "broadcast"])
def test_an_edit_is_refused_if_ray_never_answers(
    call: str, running: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call into a dead Ray blocks for ever; the service would take no other edit and no stop."""
    found, serve = running(replica())
    ended = threading.Event()
    found._ray_timeout_s = 0.05
    monkeypatch.setattr(rollout, "APPLY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(serve, call, lambda *_: ended.wait())
    try:
        with suppress(Unsettled):
            assert rollout.apply(found, shipped(tmp_path, EDITED))
    finally:
        ended.set()


def test_a_drain_ends_also_if_no_replica_answers(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, serve = running(replica())
    monkeypatch.setattr(cluster, "WRITE_S", 0.01)
    monkeypatch.setattr(cluster, "CLOSE_S", 0.01)
    serve.unanswered = 1_000_000
    found.drain(0.05)
    assert set(serve.asked) == {("drain", ())}


@pytest.mark.parametrize(
    ("cores", "gpus", "replicas"),
    [
        (1, 0, 1),
        (8, 0, 8),
        (64, 0, autoscaling.MAX_REPLICAS),
        (16, 4, 4),
        (16, 0.5, 1),
    ],
)
def test_a_replica_for_each_gpu_or_core(cores: int, gpus: float, replicas: int) -> None:
    assert autoscaling.replicas(cores, gpus) == replicas


@pytest.mark.parametrize(
    ("replicas", "gpus", "share"),
    [
        (4, 1, 0.25),
        (3, 2, 0.5),
        (5, 2, 1 / 3),
        (1, 0.5, 0.5),
        (2, 0.5, 0.25),
    ],
)
def test_replicas_share_gpus_in_parts_that_find_a_place(replicas: int, gpus: float, share: float) -> None:
    assert autoscaling.gpu_share(replicas, gpus) == pytest.approx(share)
    of_each_gpu = int(min(gpus, 1) / share + 1e-9)
    assert of_each_gpu * max(1, int(gpus)) >= replicas


@pytest.mark.parametrize(
    ("cores", "replicas", "threads"),
    [(1, 1, 1), (1, 4, 1), (2, 1, 2), (2, 2, 2), (4, 4, 2), (16, 8, 2), (64, 8, 8), (16, 1, 16)],
)
def test_cores_are_divided_and_two_are_never_left_to_one_thread(
    cores: int, replicas: int, threads: int
) -> None:
    assert autoscaling.threads(cores, replicas) == threads
