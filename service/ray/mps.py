"""CUDA's Multi-Process Service (MPS), by which the replicas that share a GPU compute at once on it.

Without it the GPU takes turns between processes. Each GPU has a control daemon of its own, which is started
with the service and ends with it. https://docs.nvidia.com/deploy/mps/
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headroom.service.ray.gpus import Gpu

PROGRAM = "nvidia-cuda-mps-control"
DAEMONS = "HEADROOM_MPS_DAEMONS"
"""Variable that tells a replica its daemons: JSON of the variables to set, by the GPU that Ray gave it."""

PIPES = "CUDA_MPS_PIPE_DIRECTORY"
LOGS = "CUDA_MPS_LOG_DIRECTORY"
USUAL_PIPES = Path("/tmp/nvidia-mps")
VISIBLE = "CUDA_VISIBLE_DEVICES"

MIN_CAPABILITY = 7
"""CUDA's major version from which MPS keeps the memory of processes apart (Volta)."""

START_S = 20.0
TRY_S = 90.0
QUIT_S = 3.0

_TRY = "import torch; assert torch.ones(2, device='cuda').sum().item() == 2"


class Unavailable(Exception):
    """MPS cannot be used; the message says why, as a clause."""


class Daemons:
    """Control daemons, one per GPU.

    Args:
        run: the run's directory; pipes and logs go into it, so its path must be short.

    Raises:
        Unavailable: they cannot be started here, or a process does not reach its GPU through them.
    """

    def __init__(self, run: Path, gpus: Sequence[Gpu]) -> None:
        self._program = shutil.which(PROGRAM)
        if self._program is None:
            raise Unavailable(f"{PROGRAM} is not installed")
        if any(gpu.capability < MIN_CAPABILITY for gpu in gpus):
            raise Unavailable(f"it needs compute capability {MIN_CAPABILITY} or newer")
        visible = os.environ.get(VISIBLE)
        names = [str(index) for index in range(len(gpus))] if visible is None else visible.split(",")
        if len(names) != len(gpus):
            raise Unavailable(f"{VISIBLE} names other GPUs than torch sees")
        self._by_gpu: dict[str, dict[str, str]] = {}
        try:
            for name, gpu in zip(names, gpus, strict=True):
                uuid = name if name.startswith(("GPU-", "MIG-")) else gpu.uuid
                self._by_gpu[name] = self._start(run / "mps" / str(len(self._by_gpu)), uuid)
            _try([*self._by_gpu.values()])
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            self.stop()
            raise Unavailable(_reason(error)) from None

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the replicas, for `connect`."""
        return {DAEMONS: json.dumps(self._by_gpu)}

    def stop(self) -> None:
        """End the daemons, and what is left of their clients after a second."""
        _quit([variables[PIPES] for variables in self._by_gpu.values()])
        self._by_gpu = {}

    def _start(self, directory: Path, uuid: str) -> dict[str, str]:
        """Start the daemon of one GPU, and return the variables of its clients."""
        pipes = directory / "pipe"
        logs = directory / "log"
        pipes.mkdir(parents=True)
        logs.mkdir()
        variables = {PIPES: str(pipes), LOGS: str(logs), VISIBLE: uuid}
        assert self._program is not None
        subprocess.run(
            [self._program, "-d"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would stay open in the daemon
            stderr=subprocess.DEVNULL,
            env=os.environ | variables,
            timeout=START_S,
            check=True,
        )
        return variables


def start(run: Path, gpus: Sequence[Gpu]) -> tuple[Daemons | None, str]:
    """Return the daemons for replicas that share GPUs, None without any, and a line that says it."""
    if _runs_already():
        return None, "the replicas of a GPU compute at once, through the CUDA MPS that runs already"
    try:
        return Daemons(run, gpus), "the replicas of a GPU compute at once, through CUDA MPS"
    except Unavailable as error:
        return None, f"the replicas of a GPU share it by time slices; without CUDA MPS, because {error}"


def connect() -> bool:
    """Let this replica reach its GPU through the daemon. Call it before CUDA is first used.

    A UUID names the same GPU with and without the daemon; a number would not.
    Returns whether there is a daemon.
    """
    daemons = json.loads(os.environ.get(DAEMONS, "{}"))
    variables = daemons.get(os.environ.get(VISIBLE, ""), {})
    os.environ.update(variables)
    return bool(variables)


def quit_daemons_of(run: Path) -> None:
    """End the daemons that a run has left behind: they survive the kill of the service."""
    _quit([str(pipes) for pipes in run.glob("mps/*/pipe")])


def _runs_already() -> bool:
    """Return whether the operator's daemon answers. Without the program to ask it, as in a container that got
    its pipes, its socket must do."""
    pipes = Path(os.environ.get(PIPES, USUAL_PIPES))
    if not (pipes / "control").exists():
        return False
    return shutil.which(PROGRAM) is None or _asked(b"get_server_list\n", pipes)


def _quit(pipes: Sequence[str]) -> None:
    """End the daemons that listen in these directories, all at once; each ends its servers after a second."""
    with ThreadPoolExecutor(max(1, len(pipes))) as pool:
        for each in pipes:
            pool.submit(_asked, b"quit -t 1\n", each)


def _asked(command: bytes, pipes: Path | str) -> bool:
    """Give a daemon a command; return whether it took it within QUIT_S."""
    program = shutil.which(PROGRAM)
    if program is None:
        return False
    try:
        done = subprocess.run(
            [program],
            input=command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {PIPES: str(pipes)},
            timeout=QUIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0


def _try(clients: Sequence[Mapping[str, str]]) -> None:
    """Compute a sum on each GPU as its clients do, at once. Raises CalledProcessError or TimeoutExpired."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", _TRY],
            env=os.environ | variables,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for variables in clients
    ]
    try:
        for process in processes:
            if process.wait(TRY_S):
                raise ValueError("a process reaches no GPU through it")
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"{PROGRAM} ended with {error.returncode}"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"{PROGRAM} did not answer in {error.timeout:g} s"
    return str(error)
