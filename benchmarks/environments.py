"""Makes the peers' virtual environments when they are first needed, with pinned packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    interpreter, mark = directory / "bin" / "python", directory / "pins"
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


def environ(threads: int = 2) -> dict[str, str]:
    """Return variables for a measured process: the number of threads for all libraries, and no network."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(names, str(threads)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": str(ROOT),
    }
