"""Chooses the library of our own kernels for this processor, loads it and compares it with torch.

`make install` compiles the libraries (`models.ops.kernel_build`). The best one that this processor has is
tried once per process. Without one, torch's operators give the same answers, slower
(docs/decisions/006-kernels.md).
"""

import functools
import itertools
import logging
import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F

from models.device import cpu_flags
from models.ops.cpu import CpuOps
from models.ops.kernel_build import Level, levels_of_machine, library_of
from models.ops.kernels import DTYPES, SIZE_MULTIPLE, Kernels, filled, to_tiles
from models.ops.torch import activate
from models.ops.trial import disagreement

logger = logging.getLogger(__name__)


class Choice(NamedTuple):
    """The kernels that this process uses.

    kernels: None if torch computes. skipped: the better levels, and why they are not used.
    notice: the same for people, with what to do; None if nothing is skipped.
    """

    kernels: Kernels | None
    skipped: tuple[str, ...] = ()
    notice: str | None = None


def best() -> Kernels | None:
    """Return the kernels of the best level that works here; None if none does."""
    return choice().kernels


@functools.cache
def choice() -> Choice:
    """Try this processor's levels from the best one down, and log why one is skipped."""
    kernels, skipped, remedy = None, [], ""
    features, levels = cpu_flags(), levels_of_machine()
    for level, below in itertools.zip_longest(levels, levels[1:]):
        lacking = level.lacking(features)
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
    return f"to compile them, with a C++ compiler (apt-get install g++), run: {sys.executable} -m models.ops"


def load(level: Level) -> Kernels:
    """Return the kernels of a level, compared with torch.

    Raises OSError if there is no library that may be loaded, RuntimeError if it does not work.
    """
    kernels = Kernels(level.name, library_of(level))
    for dtype in DTYPES:
        for size in (2 * SIZE_MULTIPLE, 3 * SIZE_MULTIPLE):  # half a head of the latter is no whole vectors
            problem = disagreement(CpuOps(dtype, kernels), size)
            if problem is not None:
                raise RuntimeError(problem)
    _check_integers(kernels)
    return kernels


def _check_integers(kernels: Kernels) -> None:
    """Raise RuntimeError unless values are quantized, and 8-bit integers multiplied, as torch would."""
    generator = torch.Generator().manual_seed(0)
    x, scale = torch.randn(70, 784, generator=generator), torch.rand(2, 784, generator=generator) * 50 + 1
    quantized, _ = kernels.quantize(x, scale[0], scale[1], 0.5, 200)
    gelu = kernels.quantize_gelu(x, 25.0, 9.5, 127, by_tanh=False)
    pairs = [
        (quantized, (x * scale[0] + scale[1]).clamp(0, 200)),
        (gelu, (F.gelu(x) * 25 + 9.5).clamp(0, 127)),
    ]
    agree = all((ours.float() - exact.floor()).abs().max() <= 1 for ours, exact in pairs)
    if agree and kernels.multiplies:
        weight = torch.randint(-127, 128, (48, 784), dtype=torch.int8, generator=generator)
        start, one, bias = torch.arange(48, dtype=torch.int32), torch.full((48,), 1e-5), torch.ones(48)
        factors = filled(start), filled(one), filled(bias)
        found = kernels.affine_int8(quantized, to_tiles(weight), factors, 48, "silu")
        sums = F.linear(quantized.double(), weight.double(), start.double())
        agree = torch.allclose(found.double(), activate(sums * 1e-5 + 1, "silu"), rtol=1e-2, atol=1e-2)
    if not agree:
        raise RuntimeError("8-bit integers are not what plain torch computes")
