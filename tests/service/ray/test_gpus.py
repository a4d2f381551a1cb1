"""headroom.service.ray.gpus and mps: replicas share GPUs by default. With stand-ins for the GPUs and MPS."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ray.serve.schema import ServeDeploySchema

from headroom.service.config.file import ConfigFile, Overrides
from headroom.service.ray import actor, cluster, gpus, mps, run_directory
from headroom.service.ray.gpus import Footprint, Gpu
from headroom.service.ray.run_directory import RunDirectory
from tests.service.ray.conftest import shipped, without_serve

GB = 10**9
BERT_BASE = Footprint(440_000_000, 2 * GB)


def gpu(gigabytes: float = 140, number: int = 0) -> Gpu:
    return Gpu("NVIDIA H200", f"GPU-{number}", int(gigabytes * GB), 9)


@pytest.mark.parametrize(
    ("found", "cores", "footprint", "replicas", "share", "reason"),
    [
        ([gpu()], 16, BERT_BASE, 4, 1 / 4, "no more were measured to pay"),
        ([gpu()], 6, BERT_BASE, 3, 1 / 3, "6 cores, 2 for each"),
        ([gpu()], 1, BERT_BASE, 1, 1, "1 cores, 2 for each"),
        ([gpu(), gpu()], 16, BERT_BASE, 8, 1 / 4, "no more were measured to pay"),
        ([gpu(), gpu(5)], 16, BERT_BASE, 4, 1 / 2, "5.0 GB of free memory, about 2.0 GB for each"),
        ([gpu(1)], 16, BERT_BASE, 1, 1, "1.0 GB of free memory, about 2.0 GB for each"),
        # 0.6 and 8 billion weights in bfloat16.
        ([gpu()], 16, Footprint(1_200_000_000, 4 * GB), 2, 1 / 2, "a network of this size needs no more"),
    ],
)
def test_a_gpu_gets_as_many_replicas_as_pay_and_as_cores_and_memory_carry(
    found: list[Gpu], cores: int, footprint: Footprint, replicas: int, share: float, reason: str
) -> None:
    sharing = gpus.share(found, cores, footprint)
    assert sharing == (replicas, pytest.approx(share), reason)


def write_config(
    directory: Path,
    model: Path | None = None,
    device: str = "auto",
    variants: Sequence[dict[str, Any]] = (),
    **fields: Any,
) -> ConfigFile:
    """Return the shipped config with more fields of the deployment; None removes one.

    variants: of the live config, beside `full`.
    """
    overrides = Overrides(device=device, model=None if model is None else str(model))
    return shipped(directory, {"variants": [{"name": "full"}, *variants]}, overrides, **fields)


def test_the_estimate_for_bert_base_is_a_little_more_than_was_measured(tmp_path: Path) -> None:
    """On an H200 each replica took 1.8 GB (docs/decisions/014)."""
    shape = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": 30_522,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "hidden_act": "gelu",
        "id2label": {"0": "LABEL_0"},
    }
    model = tmp_path / "base"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(shape))
    with (model / "model.safetensors").open("wb") as weights:
        weights.truncate(437_958_648)  # without a byte on the disk
    footprint = gpus.footprint(write_config(tmp_path, model))
    assert footprint.network == 437_958_648
    assert 1.8 * GB < footprint.resident < 2.4 * GB
    multiplied = {"name": "multiplied", "head_mask": "0.*"}
    sliced = {"name": "sliced", "head_mask": "1.*", "sliced": True}
    with_graphs = gpus.footprint(write_config(tmp_path, model, variants=[multiplied, sliced]))
    assert with_graphs.resident == footprint.resident + 2 * gpus.GRAPHS_BYTES


@pytest.fixture
def on_machine(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path, tmp_path: Path
) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """What `headroom serve` deploys on a machine with these GPUs and 16 cores, and what it says."""

    def deploy(
        found: list[Gpu], *, promised: int | None = None, **fields: Any
    ) -> tuple[dict[str, Any], list[str]]:
        cores = 16
        config = write_config(tmp_path, tiny_checkpoint, **fields)
        resources = {"CPU": cores, "GPU": len(found) if promised is None else promised}
        monkeypatch.setattr(cluster.ray, "cluster_resources", lambda: resources)
        monkeypatch.setattr(cluster, "cores", lambda: cores)
        monkeypatch.setattr(gpus, "probe", lambda: found)
        started = cluster.Cluster(tmp_path, lambda: False, ray_timeout_s=60)
        said: list[str] = []
        started.share_gpus(config, said.append)
        document = started._on_this_machine(config)
        assert started._on_this_machine(config) == document, "an edit would restart the replicas"
        ServeDeploySchema.model_validate(document)
        return document["applications"][0]["deployments"][0], said

    return deploy


NO_MPS = (
    "the replicas of a GPU share it by time slices; without CUDA MPS, because nvidia-cuda-mps-control is not "
    "installed"
)


def test_one_command_starts_four_replicas_on_a_large_gpu_and_says_why(on_machine: Any) -> None:
    deployment, said = on_machine([gpu(), gpu()])
    assert deployment["num_replicas"] == 8
    assert deployment["ray_actor_options"]["num_gpus"] == 0.25
    assert deployment["ray_actor_options"]["num_cpus"] * 8 <= 16
    assert said == [
        "4 replicas on each of 2 GPUs (NVIDIA H200): no more were measured to pay (--replicas N or "
        "num_replicas overrides it)",
        NO_MPS,
    ]


@pytest.mark.parametrize(
    ("fields", "replicas", "share", "lines"),
    [
        ({"num_replicas": 1}, 1, 1, 0),
        ({"ray_actor_options": {"num_gpus": 0.5}, "num_replicas": 2}, 2, 0.5, 1),
        ({"autoscaling_config": {"min_replicas": 1, "max_replicas": 4}}, None, 1, 0),
    ],
)
def test_what_the_file_says_stays(
    fields: Any, replicas: int | None, share: float, lines: int, on_machine: Any
) -> None:
    deployment, said = on_machine([gpu()], **fields)
    assert deployment.get("num_replicas") == replicas
    assert deployment["ray_actor_options"]["num_gpus"] == share
    assert said == [NO_MPS] * lines


def test_a_gpu_that_torch_does_not_see_starts_what_it_did_before(on_machine: Any) -> None:
    """The replica says that its GPU is missing."""
    deployment, said = on_machine([], promised=1)
    assert (deployment["num_replicas"], deployment["ray_actor_options"]["num_gpus"]) == (1, 1)
    assert said == []


def test_with_device_cpu_no_gpu_is_asked_for(on_machine: Any) -> None:
    deployment, said = on_machine([gpu()], device="cpu")
    assert "num_gpus" not in deployment["ray_actor_options"]
    assert said == []


CONTROL = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $CUDA_MPS_PIPE_DIRECTORY $* $(cat)" >> {log}
exit {status}
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A stand-in for NVIDIA's program, first on the path; it writes how it was called."""

    def install(
        status: int = 0, try_it: str = "import os; assert os.environ['CUDA_MPS_PIPE_DIRECTORY']"
    ) -> Path:
        log = tmp_path / "calls"
        program = tmp_path / "bin" / mps.PROGRAM
        program.parent.mkdir()
        program.write_text(CONTROL.format(log=log, status=status))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
        monkeypatch.setattr(mps, "_TRY", try_it)
        return log

    return install


def test_each_gpu_has_an_mps_of_its_own_that_its_replicas_reach_and_that_ends_with_the_service(
    control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = control()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-9")
    daemons, line = mps.start(tmp_path, [gpu(number=7), gpu(number=9)])
    assert line == "the replicas of a GPU compute at once, through CUDA MPS"
    first, second = (str(tmp_path / "mps" / name / "pipe") for name in ("0", "1"))
    assert [text.split() for text in log.read_text().splitlines()] == [
        ["GPU-7", first, "-d"],
        ["GPU-9", second, "-d"],
    ]
    # Ray gives a replica one of them, by the name that this process has for it.
    assert daemons is not None
    monkeypatch.setenv(mps.DAEMONS, daemons.variables[mps.DAEMONS])
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "")
    for given, uuid, pipes in (("2", "GPU-7", first), ("GPU-9", "GPU-9", second)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
        assert mps.connect()
        assert os.environ["CUDA_VISIBLE_DEVICES"] == uuid
        assert os.environ["CUDA_MPS_PIPE_DIRECTORY"] == pipes
    daemons.stop()
    asked = sorted(text.split()[1:] for text in log.read_text().splitlines()[2:])
    assert asked == [[first, "quit", "-t", "1"], [second, "quit", "-t", "1"]]


def test_the_mps_of_a_killed_service_ends_with_the_next_start(
    control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else could reach it once its directory is gone, and it holds memory of the GPU."""
    log = control()
    monkeypatch.setattr(run_directory, "PARENT", tmp_path)
    killed = RunDirectory()
    pipes = killed.path / "mps" / "0" / "pipe"
    pipes.mkdir(parents=True)
    run_directory.sweep()
    assert not log.exists(), "the service lives"
    killed._lock.close()
    run_directory.sweep()
    assert log.read_text().split()[-4:] == [str(pipes), "quit", "-t", "1"]
    assert not killed.path.exists()


def test_the_replicas_get_the_mps_of_the_run(
    control: Any, on_machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    control()
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    deployment, said = on_machine([gpu()])
    assert said[1:] == ["the replicas of a GPU compute at once, through CUDA MPS"]
    variables = deployment["ray_actor_options"]["runtime_env"]["env_vars"]
    assert json.loads(variables[mps.DAEMONS])["0"]["CUDA_VISIBLE_DEVICES"] == "GPU-0"


@pytest.mark.parametrize(
    ("stand_in", "why"),
    [
        ({"status": 1}, "nvidia-cuda-mps-control ended with 1"),
        ({"try_it": "raise SystemExit(1)"}, "a process reaches no GPU through it"),
    ],
)
def test_an_mps_that_does_not_work_leaves_time_slices(
    stand_in: Any, why: str, control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(**stand_in)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    daemons, line = mps.start(tmp_path, [gpu()])
    assert daemons is None
    assert line == f"the replicas of a GPU share it by time slices; without CUDA MPS, because {why}"


def test_an_mps_that_the_operator_runs_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    daemons, line = mps.start(tmp_path / "run", [gpu()])
    assert daemons is None
    assert line == "the replicas of a GPU compute at once, through the CUDA MPS that runs already"


def test_what_a_daemon_left_behind_is_no_mps(
    control: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control(status=1)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    (tmp_path / "control").touch()
    _, line = mps.start(tmp_path / "run", [gpu()])
    assert line.endswith("because nvidia-cuda-mps-control ended with 1")


def test_a_replica_that_mps_does_not_take_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU it would serve for good, much slower, beside others that have the GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv(mps.DAEMONS, json.dumps({"0": {"CUDA_MPS_PIPE_DIRECTORY": "/none"}}))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "")
    monkeypatch.setattr(actor, "_assigned_gpus", lambda: 0.25)
    with pytest.raises(RuntimeError, match="takes no new process while"):
        without_serve(None)._import()


def test_a_replica_without_mps_keeps_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(mps.DAEMONS, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert not mps.connect()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3"


def test_mps_can_be_switched_off(control: Any, on_machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = control()
    monkeypatch.setenv("HEADROOM_MPS", "false")
    deployment, said = on_machine([gpu()])
    assert said[1:] == ["the replicas of a GPU share it by time slices (mps: false)"]
    assert mps.DAEMONS not in deployment["ray_actor_options"]["runtime_env"]["env_vars"]
    assert not log.exists()
