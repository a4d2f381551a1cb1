"""Makes the peers' virtual environments when they are first needed, with pinned packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "runs"
ENVIRONMENTS = RUNS / "bench-envs"

ENGINES = ("openvino==2026.4.1", "ctranslate2==4.8.5", "tokenizers==0.23.3", "numpy==2.4.6")
PINS: dict[str, tuple[str, ...]] = {
    "ours": (),
    "engines": (
        "torch==2.13.0",
        "transformers==5.23.0",
        "sentence-transformers==6.2.0",
        "onnxruntime==1.31.1",
        "onnx==1.23.2",
        "onnxscript==0.7.2",
        "openvino==2026.4.1",
        "ctranslate2==4.8.5",
    ),
    "mosec": ("mosec==0.9.8", "msgspec==0.22.0", *ENGINES),
    "litserve": ("litserve==0.2.19", "fastapi==0.165.0", "uvicorn==0.54.0", *ENGINES),
    "bentoml": ("bentoml==1.4.39", "uvicorn==0.54.0", *ENGINES),
    "infinity": (
        "infinity-emb[torch,optimum,server]==0.0.78",
        "torch==2.13.0",
        "transformers==4.57.6",
        "sentence-transformers==3.4.1",
        "optimum==2.1.0",
        "numpy==1.26.4",
    ),
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
        _checked([sys.executable, "-m", "venv", str(directory)])
        _checked([str(interpreter), "-m", "pip", "install", "--quiet", "--prefer-binary", *PINS[name]])
        mark.write_text(pins, encoding="utf-8")
    return interpreter


def run(name: str, arguments: list[str]) -> None:
    """Run its Python in the repository's root. Raises Unavailable with the last line if that fails."""
    _checked([str(python(name)), *arguments])


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


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, env=environ(), capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Unavailable(
            f"{Path(command[0]).name} {' '.join(command[1:4])}: {lines[-1] if lines else 'failed'}"
        )
