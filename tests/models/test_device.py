"""Which device and number format computes, and what an error of the device means."""

import os
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from headroom.models import cores as module
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.tensors import read_tensors
from headroom.models.cores import cores, cpu_limit
from headroom.models.device import (
    is_device_failure,
    is_out_of_memory,
    limit_memory,
    resolve_device,
    resolve_dtype,
)
from headroom.models.errors import ModelError
from headroom.models.network import Network
from headroom.models.networks import build
from headroom.models.ops.torch import TorchOps
from headroom.service.engine import threads as engine
from tests.checkpoints import write_int8
from tests.models.reference import CPU

H200, T4, PASCAL = (9, 0), (7, 5), (6, 1)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine on which torch sees two GPUs, the second one current; nothing can be computed on them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: H200)
    return monkeypatch


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "device"), [("auto", "cuda:1"), ("cuda", "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu")]
)
def test_a_gpu_has_its_number(name: str, device: str) -> None:
    assert str(resolve_device(name)) == device


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(ModelError, match=r"cuda:2.*torch sees cuda:0 to cuda:1"):
        resolve_device("cuda:2")


@pytest.mark.parametrize(
    ("capability", "dtype"), [(H200, torch.bfloat16), (T4, torch.float16), (PASCAL, torch.float32)]
)
def test_each_gpu_gets_its_fastest_number_format(
    two_gpus: pytest.MonkeyPatch, capability: tuple[int, int], dtype: torch.dtype
) -> None:
    two_gpus.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert resolve_dtype("auto", torch.device("cuda", 0), deterministic=False) == dtype
    assert resolve_dtype("fp16", torch.device("cuda", 0), deterministic=False) == torch.float16


@pytest.mark.parametrize("name", ["auto", "float32"])
def test_deterministic_scores_on_a_gpu_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match="deterministic scores need device cpu"):
        resolve_dtype(name, torch.device("cuda", 0), deterministic=True)


@pytest.mark.parametrize(
    ("error", "is_full", "is_dead"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True, False),
        (torch.AcceleratorError("CUDA error: out of memory"), True, False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), True, False),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"),
            True,
            False,
        ),
        (MemoryError(), True, False),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), False, True),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasGemmEx`"),
            False,
            True,
        ),
        (RuntimeError("shapes cannot be multiplied"), False, False),
    ],
)
def test_a_full_memory_is_no_dead_device_nor_is_one_that_computes_on(
    error: Exception, is_full: bool, is_dead: bool
) -> None:
    dead = torch.device("meta")  # as a GPU after an error that sticks, it gives no values
    assert (is_out_of_memory(error), is_device_failure(error, dead)) == (is_full, is_dead)
    assert not is_device_failure(error, CPU)


def test_a_replica_that_shares_a_gpu_keeps_to_its_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *limit: limits.append(limit))
    gpu = torch.device("cuda", 1)
    for device, share in ((gpu, 0.25), (gpu, 1.0), (gpu, 2.0), (CPU, 0.25)):
        limit_memory(device, share)
    assert limits == [(0.25, gpu)]


def test_an_int8_checkpoint_on_a_gpu_is_half_precision_and_says_so(
    tiny_checkpoint: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    meta = torch.device("meta")  # a device that is no CPU
    ops = TorchOps(meta, torch.bfloat16)

    def built(directory: Path) -> Network:
        config = read_config(directory)
        return build(config, read_tensors(directory, config), device=meta, dtype=torch.bfloat16, ops=ops)

    network = built(write_int8(tiny_checkpoint, tmp_path / "int8", pairs=2))
    same = built(tiny_checkpoint)
    assert network.number_format == "bfloat16"
    assert network.nbytes == same.nbytes
    assert network.parameters == same.parameters
    assert "only a CPU computes in int8" in caplog.text


def test_threads_and_waits_are_on_the_networks_own_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    second, calls = torch.device("cuda", 1), []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device
            calls.append(("stream", device))

        def synchronize(self) -> None:
            pytest.fail("this keeps a core busy while the GPU works")

    class Event:
        def __init__(self, *, blocking: bool) -> None:
            assert blocking

        def record(self, stream: Self) -> None:
            self._recorded = stream

        def synchronize(self) -> None:
            calls.append(("wait", self._recorded.device))

    monkeypatch.setattr(torch.cuda, "set_device", lambda device: calls.append(("device", device)))
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    engine.forward_pool(1, torch.get_num_threads(), second).shutdown()
    TorchOps(second, torch.float32).synchronize()
    assert calls == [(name, second) for name in ("device", "stream", "stream", "wait")]


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of control groups that are empty."""
    monkeypatch.setattr(module, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(module, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("0::/\n")
    return tmp_path / "cgroup"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("max 100000\n", None, 8),
        ("150000 100000\n", 1.5, 2),
        ("50000 100000\n", 0.5, 1),
        ("what is this\n", None, 8),
        ("100000 0\n", None, 8),
    ],
)
def test_a_container_of_cgroup_2_has_its_limit_at_the_root_that_it_sees(
    groups: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit: float | None, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    put(groups / "cpu.max", text)
    assert (cpu_limit(), cores()) == (limit, expected)


def test_the_least_limit_of_the_own_group_and_all_above_it_counts(groups: Path, tmp_path: Path) -> None:
    put(tmp_path / "own", "12:cpu:/elsewhere\n0::/system.slice/headroom.service\n")
    put(groups / "system.slice/headroom.service/cpu.max", "max 100000\n")
    put(groups / "system.slice/cpu.max", "300000 100000\n")
    put(groups / "other.slice/cpu.max", "100000 100000\n")
    assert cpu_limit() == 3.0
    put(groups / "system.slice/headroom.service/cpu.max", "250000 100000\n")
    assert cpu_limit() == 2.5


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores"
)
def test_cores_are_those_that_the_process_may_use(groups: Path) -> None:
    put(groups / "cpu.max", "max 100000")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cores() == len(allowed)
