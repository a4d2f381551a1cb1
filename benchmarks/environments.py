"""Makes the peers' virtual environments when they are first needed, and runs one engine at a time in them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PYTHONPATH = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
"""The path of a measured process: this tree's code, whichever is installed, and its benchmarks."""

RUNS = ROOT / "runs"
ENVIRONMENTS = RUNS / "bench-envs"

EXPORT = ("torch==2.13.0", "transformers==5.23.0", "onnx==1.23.2", "onnxscript==0.7.2", "onnxruntime==1.31.1")
ENGINES = ("openvino==2026.4.1", "ctranslate2==4.8.5", "tokenizers==0.23.3", "numpy==2.4.6")
PINS: dict[str, tuple[str, ...]] = {
    "ours": (),
    "engines": (*EXPORT, *ENGINES),
    "mosec": ("mosec==0.9.8", "msgspec==0.22.0", *ENGINES),
}
"""Packages by environment; `ours` is the environment that this program runs in."""


class Unavailable(Exception):
    """An environment or server is not available here; the message says why."""


def python(name: str) -> Path:
    """Return an environment's interpreter; make or update the environment first. Raises Unavailable."""
    if name == "ours":
        return Path(sys.executable)
    directory = ENVIRONMENTS / name
    interpreter = directory / "bin" / "python"
    mark = directory / "pins"
    pins = "\n".join(PINS[name])
    if not mark.exists() or mark.read_text(encoding="utf-8") != pins:
        print(f"making {directory}", file=sys.stderr, flush=True)
        run(sys.executable, "-m", "venv", str(directory))
        run(interpreter, "-m", "pip", "install", "--quiet", "--prefer-binary", *PINS[name])
        mark.write_text(pins, encoding="utf-8")
    return interpreter


def run(interpreter: Path | str, *arguments: str) -> None:
    """Run a Python in the repository's root. Raises Unavailable with the last line if that fails."""
    command = [str(interpreter), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(f"python {' '.join(arguments[:3])}: {lines[-1] if lines else 'failed'}")


def environ() -> dict[str, str]:
    """Return variables for a measured process: two threads for every library, and no network."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(names, "2"),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": PYTHONPATH,
    }


class Worker:
    """An adapter of benchmarks.peers.engines in its environment; it is stopped (SIGSTOP) between calls.

    variables: of its process, beside those of `environ`. engines, versions: those of the adapter. Raises
    Unavailable if it cannot start.
    """

    def __init__(
        self,
        adapter: str,
        environment: str,
        model: Path,
        workload: Path,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        command = [str(python(environment)), "-m", "benchmarks.peers.engines"]
        self._process = subprocess.Popen(
            [*command, adapter, str(model), str(workload)],
            cwd=ROOT,
            env=environ() | dict(variables or {}),
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
