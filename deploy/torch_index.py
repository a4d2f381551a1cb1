"""Prints the package index of PyTorch's CPU wheels, if this machine should take them: see `make install`.

Only Python's standard library is used, since nothing is installed yet. Standard output is the index or empty;
standard error says which torch is taken.
"""

import platform
import shutil
import signal
import sys
import urllib.request
from pathlib import Path

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
SECONDS = 3


def has_nvidia_gpu() -> bool:
    """Return whether a driver of NVIDIA's is here."""
    return Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None


def answers(index: str, seconds: int) -> bool:
    """Return whether an index lists torch within so many seconds."""

    def give_up(*_: object) -> None:
        raise TimeoutError

    # urllib's own timeout is one for each step, and none for the name server.
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        with urllib.request.urlopen(f"{index}/torch/") as answer:
            return bool(answer.status == 200)
    except OSError:  # TimeoutError and URLError are such
        return False
    finally:
        signal.alarm(0)


def main() -> None:
    """Print the index, or nothing where the ordinary index has the right torch."""
    if platform.system() != "Linux" or has_nvidia_gpu():
        return
    if answers(CPU_INDEX, SECONDS):
        print("no NVIDIA GPU: taking PyTorch's CPU wheels, 2 GB in all", file=sys.stderr)
        print(CPU_INDEX)
    else:
        where = f"{CPU_INDEX} does not answer within {SECONDS} s"
        print(f"no NVIDIA GPU, but {where}: taking PyTorch with CUDA, 6 GB in all", file=sys.stderr)


if __name__ == "__main__":
    main()
