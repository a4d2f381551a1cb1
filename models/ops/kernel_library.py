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
from torch import Tensor

from models.ops.causal import Causal, attend, rms_normed
from models.ops.kernel_build import Level, features_here, levels_of_machine, library_of
from models.ops.kernels import DTYPES, SIZE_MULTIPLE, Kernels, filled, to_tiles
from models.ops.relative import Relative, alibi_slopes, log_buckets
from models.ops.torch import (
    PLAIN_POSITIONS,
    Positions,
    activate,
    attention_probabilities,
    rotated,
    rotations,
)

logger = logging.getLogger(__name__)

LENGTHS, HEADS, WINDOW, SPAN, EPSILON = (1, 37, 16, 70), 3, 9, 16, 1e-12
"""Tokens of the sequences that are tried: less and more than a vector, a tile, and 32 queries."""


class Choice(NamedTuple):
    """The kernels that this process uses.

    kernels: None if torch computes. skipped: the better levels, and why they are not used.
    notice: the same for people, with what to do; None if nothing is skipped.
    """

    kernels: Kernels | None
    skipped: tuple[str, ...] = ()
    notice: str | None = None


def fitting(dtype: torch.dtype, size: int) -> Kernels | None:
    """Return this processor's kernels, if they compute heads (or rows) of `size` numbers of this dtype."""
    return best() if dtype in DTYPES and size % SIZE_MULTIPLE == 0 else None


def best() -> Kernels | None:
    """Return the kernels of the best level that works here; None if none does."""
    return choice().kernels


@functools.cache
def choice() -> Choice:
    """Try this processor's levels from the best one down, and log why one is skipped."""
    kernels, skipped, remedy = None, [], ""
    features, levels = features_here(), levels_of_machine()
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
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        _check(kernels)
    return kernels


def _check(kernels: Kernels) -> None:
    """Raise RuntimeError unless the kernels agree with torch: it finds a library that was compiled wrong."""
    for dtype in DTYPES:
        _check_attention(kernels, dtype)
        _check_causal(kernels, dtype)
        x, (weight, bias) = (torch.randn(rows, 96).to(dtype) for rows in (70, 2))
        normed = kernels.layer_norm(x, weight, bias, EPSILON)
        _compare("layer normalisation", normed, F.layer_norm(x, (96,), weight, bias, EPSILON))
        factor = torch.rand(96)
        _compare("normalisation", kernels.rms_norm(x, factor, EPSILON), rms_normed(x, factor, EPSILON))
        multiplier, shift = torch.rand(2, 96) * 50 + 1
        quantized = kernels.quantize(x, multiplier, shift, 0.5, 200)[0]
        _compare("quantized values", quantized, x.float() * multiplier + shift, 200)
    x = torch.linspace(-9, 9, 10_003)
    gelu = kernels.quantize_gelu(x, 25.0, 9.5, 127, by_tanh=False)
    _compare("quantized GELU", gelu, F.gelu(x) * 25 + 9.5, 127)
    if kernels.multiplies:
        _check_maps(kernels)


def _check_attention(kernels: Kernels, dtype: torch.dtype) -> None:
    """Try whole sequences and first tokens, with head weights and without, and each kind of positions."""
    offsets = F.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)).int()
    weights = torch.rand(len(LENGTHS), HEADS)
    for size in (2 * SIZE_MULTIPLE, 3 * SIZE_MULTIPLE):  # half a head of the latter is no whole vectors
        projected = torch.randn(sum(LENGTHS), 3 * HEADS * size).to(dtype)
        rotation = rotations(100.0, max(LENGTHS), size, torch.device("cpu"))
        tables = torch.randn(2, HEADS, 2 * SPAN, size).to(dtype)
        order, slopes = log_buckets(SPAN, SPAN, 60, max(LENGTHS) - 1), torch.tensor(alibi_slopes(HEADS))
        relative = Relative(tables[0], tables[1], order, SPAN // 2, 3, slopes)
        for head_weights, positions in (
            (None, PLAIN_POSITIONS),
            (weights, Positions(rotation, WINDOW)),
            (None, Positions(relative=relative)),
        ):
            turn, expected = positions.rotation, []
            for row, sequence in enumerate(projected.view(-1, 3, HEADS, size).split_with_sizes(LENGTHS)):
                turned = sequence if turn is None else rotated(sequence, turn[: len(sequence)])
                query, key, value = turned.float().permute(1, 2, 0, 3)  # (h, n, d) each
                bias, factor = positions.bias(query, key), positions.scale(size)
                context = attention_probabilities(query, key, bias, factor) @ value
                scale = 1 if head_weights is None else head_weights[row, :, None, None]
                expected.append((context * scale).transpose(0, 1).flatten(1))
            for first_only in (False, True):
                ours = kernels.attention(
                    projected, offsets, HEADS, head_weights, positions, first_only=first_only
                )
                wanted = torch.stack([one[0] for one in expected]) if first_only else torch.cat(expected)
                _compare(f"attention{' of first tokens' if first_only else ''}", ours, wanted)


def _check_causal(kernels: Kernels, dtype: torch.dtype) -> None:
    """Try heads that share keys, with norms and prefixes and without, all tokens and last ones."""
    size, offsets = 2 * SIZE_MULTIPLE, F.pad(torch.tensor(LENGTHS).cumsum(0), (1, 0)).int()
    angles = rotations(100.0, 2 * max(LENGTHS), size, torch.device("cpu"))
    projected = torch.randn(sum(LENGTHS), (HEADS + 4) * size).to(dtype)
    weights = torch.rand(len(LENGTHS), HEADS)
    for norms, prefixes in (((None, None), (-1,) * len(LENGTHS)), (torch.rand(2, size), (1, -1, -1, 1))):
        how = Causal((0, 1, HEADS), angles, norms[0], norms[1], EPSILON)
        for last_only in (False, True):
            expected = attend(
                *(projected.float(), LENGTHS, how, weights), prefixes=prefixes, last_only=last_only
            )
            before = torch.tensor(prefixes, dtype=torch.int32)
            ours = kernels.causal(*(projected, offsets, how, weights), prefixes=before, last_only=last_only)
            _compare("causal attention", ours, expected)


def _check_maps(kernels: Kernels) -> None:
    """Try maps of bfloat16 and of 8-bit integers, with GELU and with a residual and a norm."""
    inputs, outputs = 784, 48
    x, other, norm = (
        torch.randn(rows, n).bfloat16() for rows, n in ((70, inputs), (70, outputs), (2, outputs))
    )
    weight, bias = (torch.randn(outputs, inputs) / inputs**0.5).bfloat16(), torch.randn(outputs)
    _compare_map(
        "affine map",
        functools.partial(kernels.affine, x, to_tiles(weight), filled(bias), outputs),
        F.linear(x.float(), weight.float(), bias),
        other,
        norm,
    )
    integers = torch.randint(0, 256, (70, inputs), dtype=torch.uint8)
    weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8)
    scale = torch.rand(outputs) / (10_000 * inputs**0.5)
    factors = filled(torch.arange(outputs, dtype=torch.int32)), filled(scale), filled(bias)
    sums = F.linear(integers.double(), weight.double(), torch.arange(outputs).double()) * scale + bias
    _compare_map(
        "affine map of integers",
        functools.partial(kernels.affine_int8, integers, to_tiles(weight), factors, outputs),
        sums.float(),
        other,
        norm,
    )


def _compare_map(
    what: str, compute: functools.partial[Tensor], sums: Tensor, other: Tensor, norm: Tensor
) -> None:
    for activation in ("gelu", "silu"):
        _compare(f"{what}, {activation}", compute(activation), activate(sums, activation))
    expected = F.layer_norm((sums + other).bfloat16(), norm[0].shape, norm[0], norm[1], EPSILON)
    ours = compute("add", other, norm=(norm[0], norm[1], EPSILON))
    _compare(f"{what}, normalised", ours, expected)


def _compare(what: str, ours: Tensor, expected: Tensor, largest: int | None = None) -> None:
    """Raise RuntimeError unless results agree to their rounding. largest: of truncated integers."""
    if largest is not None:
        agree = bool((ours.float() - expected.clamp(0, largest).floor()).abs().max() <= 1)
    else:
        tolerance = 1e-5 if ours.dtype == torch.float32 else 5e-2
        agree = torch.allclose(ours.float(), expected.float(), rtol=tolerance, atol=tolerance)
    if not agree:
        raise RuntimeError(f"{what}: results in {ours.dtype} are not torch's")
