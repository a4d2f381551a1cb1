"""Chooses the library of our own kernels for this processor, loads it and compares it with torch.

`make install` compiles the libraries (`headroom.models.ops.kernel_build`). The best one that this processor
has is tried once per process. Without one, torch's operators give the same answers, slower
(docs/decisions/006-kernels.md).
"""

import functools
import itertools
import logging
import sys
from typing import NamedTuple

from headroom.models.cores import cpu_flags
from headroom.models.device import one_thread
from headroom.models.ops.cpu import CpuOps
from headroom.models.ops.kernel_build import Level, levels_of_machine, library_of
from headroom.models.ops.kernels import DTYPES, SIZE_MULTIPLE, Kernels
from headroom.models.ops.trial import disagreement

TRIED_SIZES = (2 * SIZE_MULTIPLE, 3 * SIZE_MULTIPLE)
"""Sizes of the heads that are tried: half a head of the larger one is no whole vectors."""

logger = logging.getLogger(__name__)


class Choice(NamedTuple):
    """The kernels that this process uses.

    kernels: None if torch computes. skipped: the better levels, and why they are not used.
    notice: the same for people, with what to do; None if nothing is skipped.
    """

    kernels: Kernels | None
    skipped: tuple[str, ...] = ()
    notice: str | None = None


@functools.cache
def choice() -> Choice:
    """Try this processor's levels from the best one down, and log why one is skipped."""
    kernels = None
    skipped = []
    remedy = ""
    features = cpu_flags()
    levels = levels_of_machine()
    for level, below in itertools.zip_longest(levels, levels[1:]):
        lacking = [feature for feature in level.features if feature not in features]
        if below is not None and features.isdisjoint({*level.features} - {*below.features}):
            continue  # an older kind of processor: nothing is hidden
        if lacking:
            skipped.append(f"{level.name}: this processor does not show {', '.join(lacking)}")
            continue
        try:
            kernels = load(level)
            break
        except (OSError, RuntimeError) as error:
            skipped.append(f"{level.name}: {error}")
            remedy = f"; {how_to_compile()}" if isinstance(error, FileNotFoundError) else remedy
    if not skipped:
        return Choice(kernels)
    instead = "torch computes" if kernels is None else f"those for {kernels.name} are used"
    notice = f"the fastest kernels are not used, {instead} instead: {'; '.join(skipped)}{remedy}"
    logger.warning(notice)
    return Choice(kernels, tuple(skipped), notice)


def how_to_compile() -> str:
    """Return what a person runs to get the libraries."""
    program = f"{sys.executable} -m headroom.models.ops"
    return f"to compile them, with a C++ compiler (apt-get install g++), run: {program}"


def load(level: Level) -> Kernels:
    """Return the kernels of a level, compared with torch.

    Raises OSError if there is no library that may be loaded, RuntimeError if it does not work.
    """
    kernels = Kernels(level.name, library_of(level))
    with one_thread():  # tiny products: several threads would wait for each other longer than they compute
        for dtype in DTYPES:
            for size in TRIED_SIZES:
                problem = disagreement(CpuOps(dtype, kernels), size)
                if problem is not None:
                    raise RuntimeError(problem)
    return kernels
