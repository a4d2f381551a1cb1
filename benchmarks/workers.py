"""Runs engines in separate processes, of which only one runs at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import environments
from benchmarks.environments import Unavailable


class Worker:
    """An adapter of benchmarks.peers.engines in its environment; it is stopped (SIGSTOP) between calls.

    engines, versions: those of the adapter. Raises Unavailable if it cannot start.
    """

    def __init__(self, adapter: str, environment: str, model: Path, workload: Path) -> None:
        command = [str(environments.python(environment)), "-m", "benchmarks.peers.engines"]
        self._process = subprocess.Popen(
            [*command, adapter, str(model), str(workload)],
            cwd=environments.ROOT,
            env=environments.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            hello = self._read()
        except Unavailable:
            self.close()
            raise
        self.engines: list[str] = hello["engines"]
        self.versions: dict[str, str] = hello["versions"]
        self._pause()

    def call(self, engine: str, batch: int, calls: int) -> tuple[list[float], np.ndarray]:
        """Return the seconds of each call and the last call's logits (rows, labels). Raises Unavailable."""
        assert self._process.stdin is not None
        os.kill(self._process.pid, signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps({"engine": engine, "batch": batch, "calls": calls}) + "\n")
            self._process.stdin.flush()
            answer = self._read()
        finally:
            self._pause()
        return answer["seconds"], np.array(answer["logits"], np.float32)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()

    def _pause(self) -> None:
        # Thread pools spin for up to 200 ms after a call, which would slow the next engine.
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGSTOP)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Unavailable(f"the process ended with status {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise Unavailable(answer["error"])
        return answer


@contextmanager
def started(
    adapters: Mapping[str, str], model: Path, workload: Path
) -> Iterator[tuple[dict[str, Worker], dict[str, str]]]:
    """Yield workers by adapter, and the reason for each adapter that is not available.

    adapters: environments by adapter.
    """
    workers: dict[str, Worker] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        for adapter, environment in adapters.items():
            try:
                worker = Worker(adapter, environment, model, workload)
            except Unavailable as reason:
                missing[adapter] = str(reason)
            else:
                workers[adapter] = stack.enter_context(closing(worker))
        yield workers, missing
