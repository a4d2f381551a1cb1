"""Runs the tests of the compiled kernels with AddressSanitizer and UndefinedBehaviorSanitizer.

`python -m tests.sanitize [OPTION OF pytest …]` (`make sanitize`) compiles the best kernels of this
processor again, into a directory of its own, and ends with pytest's exit status. A read or write outside a
tensor, an overflow or a shift that C++ leaves undefined ends the run with the sanitizer's report. Needs g++
and its sanitizers' libraries.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SANITIZED = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
    "-g1",
    "-O1",
)
TESTS = ("tests/models/ops/test_kernels.py", "tests/models/ops/test_kernel_arguments.py")
LIMITS_ADDRESSES = (
    "tests/models/ops/test_kernels.py::test_too_little_memory_is_an_error_and_the_next_call_works"
)
"""AddressSanitizer reserves 20 TB of addresses for itself, more than the limit that this test sets."""
INSIDE = "HEADROOM_TESTS_SANITIZED"
"""The environment variable of the second process: the directory of the libraries."""
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",  # Python keeps memory until it ends
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "OMP_NUM_THREADS": "2",
}


def library(name: str) -> str:
    """Return the path of a sanitizer's library, which the compiler knows."""
    done = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = done.stdout.strip()
    if not Path(path).is_absolute():
        raise SystemExit(f"g++ has no {name}; install its sanitizers' libraries")
    return path


def start_again(options: list[str]) -> int:
    """Run this program with the sanitizers in the process before Python is. Returns the exit status."""
    libraries = f"{library('libasan.so')} {library('libubsan.so')}"
    with tempfile.TemporaryDirectory(prefix="headroom-sanitized-") as directory:
        environment = os.environ | OPTIONS | {INSIDE: directory, "LD_PRELOAD": libraries}
        return subprocess.run([sys.executable, "-m", "tests.sanitize", *options], env=environment).returncode


def run(directory: Path, options: list[str]) -> int:
    """Compile and test in this process."""
    import pytest

    from headroom.models.cores import cpu_flags
    from headroom.models.ops import kernel_build
    from headroom.models.ops.kernel_build import levels_of_machine

    os.environ.pop("LD_PRELOAD")  # the compiler needs none
    kernel_build.BUILT = directory
    kernel_build.FLAGS = (*kernel_build.FLAGS, *SANITIZED)
    here = [level for level in levels_of_machine() if cpu_flags().issuperset(level.features)]
    kernel_build.LEVELS = (here[0],)
    left_out = ("--deselect", LIMITS_ADDRESSES)
    return int(pytest.main(["-q", "--capture=sys", "-p", "no:cacheprovider", *left_out, *TESTS, *options]))


if __name__ == "__main__":
    inside = os.environ.get(INSIDE)
    sys.exit(run(Path(inside), sys.argv[1:]) if inside else start_again(sys.argv[1:]))
