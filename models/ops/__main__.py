"""Compiles our kernels, as `make install` does, and says which of them compute on this processor.

The exit status is 1 if a level could not be compiled; torch then computes what its kernels would have.
"""

import logging
import sys

from headroom.models.ops.kernel_build import BUILT, build_all, levels_of_machine
from headroom.models.ops.kernel_library import choice, how_to_compile


def main() -> int:
    """Compile the kernels of every level. Returns the exit status."""
    failures = build_all(levels_of_machine())
    for name, failure in failures.items():
        print(f"kernels for {name}: {f'not compiled: {failure}' if failure else 'compiled'}")
    failed = any(failures.values())
    if failed:
        print(f"the kernels make a CPU up to 1.8 times as fast: {how_to_compile()}")
    kernels = choice().kernels
    used = f"those for {kernels.name}" if kernels else "none, torch computes"
    print(f"kernels used on this processor: {used} ({BUILT})")
    return int(failed)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sys.exit(main())
