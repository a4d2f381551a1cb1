"""Calls our own kernels: attention over packs, layer normalisation, quantization, affine maps (`native/`).

torch's operators do not suit short sequences and narrow rows: attention needs copies into padded batches, and
a dozen operators to make them. The compiled library is called through ctypes, which releases the
interpreter's lock. `models.ops.kernel_library` loads and tries it when a checkpoint is loaded.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from models.ops.causal import Causal
from models.ops.relative import laid_out
from models.ops.torch import PLAIN_POSITIONS, SIZE_MULTIPLE, Norm, Positions

DTYPES = (torch.float32, torch.bfloat16)

BLOCK, STEP = 32, 64
"""Outputs, and bytes of the inputs, that a map's kernel reads together; other sizes are filled with zeros."""

FINISHES = ("none", "gelu", "gelu_tanh", "silu", "add", "multiply", "quantized_gelu", "quantized_gelu_tanh")
"""What `affine` does with its sums; the order is that of `Finish` in native/affine.h."""


class Kernels:
    """The kernels of a compiled library. Threads may share it.

    name: the level that the library was compiled for. multiplies: whether it has `affine`.
    """

    def __init__(self, name: str, library: Path) -> None:
        """Load a library. Raises OSError if it cannot be loaded, RuntimeError if it may not be used."""
        self.name = name
        loaded = ctypes.CDLL(str(library))
        self.multiplies = hasattr(loaded, "headroom_map_bfloat16")
        kinds = {dtype: str(dtype).removeprefix("torch.") for dtype in DTYPES}
        self._attend, self._causal, self._normalise, self._root_normalise, self._quantize = (
            {dtype: _function(loaded, f"{name}_{kind}", form) for dtype, kind in kinds.items()}
            for name, form in (
                ("attend", "i:pnpnnnpnipnnppi"),
                ("causal", "i:pnppnpnnpnipnppfpi"),
                ("normalise", " :pnnppfpi"),
                ("root_normalise", " :pnnpfpi"),
                ("quantize", "n:pnnppffppi"),
            )
        )
        self._quantize_gelu = _function(loaded, "quantize_gelu", " :pnifffpi")
        if self.multiplies:
            self._map_bfloat16 = _function(loaded, "map_bfloat16", "i:pnnppnipppfpi")
            self._map_int8 = _function(loaded, "map_int8", "i:pinnppfppppnipffppfpi")
        if loaded.headroom_prepare():
            raise RuntimeError("the operating system does not let this process use the processor's tiles")

    def attention(
        self,
        projected: Tensor,
        offsets: Tensor,
        heads: int,
        head_weights: Tensor | None = None,
        positions: Positions = PLAIN_POSITIONS,
        *,
        first_only: bool = False,
    ) -> Tensor:
        """Attend as `TorchOps.attention` does; heads have a multiple of SIZE_MULTIPLE numbers.

        projected: float32 or bfloat16; offsets: (B + 1,) int32, where sequences begin and end.
        first_only: only each sequence's first token attends. positions: as far as the longest sequence.
        Returns projected's dtype. A sequence's result has the same bits in any pack and for any thread count.
        Raises MemoryError if there is not enough for the longest sequence, ValueError for tensors of another
        form.
        """
        (tokens, columns), sequences = projected.shape, len(offsets) - 1
        size, rotation, window = columns // (3 * heads), positions.rotation, positions.window
        turns, distances = 0 if rotation is None else len(rotation), None
        if positions.relative is not None:
            distances = laid_out(positions.relative, size, projected.dtype, tiles=self.multiplies)
        weights, rows = _rows(head_weights)
        out = projected.new_empty(sequences if first_only else tokens, heads * size)
        problem = self._attend[projected.dtype](
            *(_address(projected, projected.dtype, tokens * 3 * heads * size), tokens),
            *(_address(offsets, torch.int32, sequences + 1), sequences, heads, size),
            *(_address(weights, torch.float32, rows * heads), rows, first_only),
            *(_address(rotation, torch.float32, turns * size), turns, -1 if window is None else window),
            *(distances, out.data_ptr(), torch.get_num_threads()),
        )
        _check(problem, tokens)
        return out

    def causal(
        self,
        projected: Tensor,
        offsets: Tensor,
        how: Causal,
        head_weights: Tensor | None = None,
        *,
        prefixes: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Attend as `TorchOps.causal` does; the arguments are those of `attention`, but for these.

        how: of these heads, with a row of the rotation for each position. prefixes: (sequences,) int32, as in
            `PackedBatch`. last_only: only each sequence's last token attends.
        """
        tokens, sequences, (positions, size) = len(projected), len(offsets) - 1, how.rotation.shape
        heads, borders = how.borders[-1], torch.tensor(how.borders, dtype=torch.int32)
        weights, rows = _rows(head_weights)
        out = projected.new_empty(sequences if last_only else tokens, heads * size)
        problem = self._causal[projected.dtype](
            *(_address(projected, projected.dtype, tokens * (heads + 2 * how.groups) * size), tokens),
            *(_address(offsets, torch.int32, sequences + 1), _address(prefixes, torch.int32, sequences)),
            *(sequences, borders.data_ptr(), how.groups, size),
            *(_address(weights, torch.float32, rows * heads), rows, last_only),
            *(_address(how.rotation, torch.float32, positions * size), positions),
            *(_address(norm, torch.float32, size) for norm in (how.query_norm, how.key_norm)),
            *(how.eps, out.data_ptr(), torch.get_num_threads()),
        )
        _check(problem, tokens)
        return out

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Return (x − mean) / √(variance + ε)·weight + bias of each row, computed in float32; without a bias,
        x / √(mean(x²) + ε)·weight.

        x: (T, D) float32 or bfloat16; weight, bias: (D,) of x's dtype; a weight without a bias is float32.
        The result is like x. Raises ValueError for tensors of another form.
        """
        x, dtype, (rows, width) = x.contiguous(), x.dtype, x.shape
        given = _address(x, dtype, rows * (width - width % SIZE_MULTIPLE)), rows, width
        out = torch.empty_like(x)
        writing = eps, out.data_ptr(), torch.get_num_threads()
        if bias is None:
            self._root_normalise[dtype](*given, _address(weight, torch.float32, width), *writing)
        else:
            factors = _address(weight, dtype, width), _address(bias, dtype, width)
            self._normalise[dtype](*given, *factors, *writing)
        return out

    def quantize(
        self, x: Tensor, multiplier: Tensor | None, shift: Tensor | None, middle: float, largest: int = 255
    ) -> tuple[Tensor, Tensor | None]:
        """Return x·multiplier + shift (or x + middle without them), clamped to 0 … largest and truncated.

        x: (T, D) float32 or bfloat16; multiplier, shift: (D,) float32, both or neither.
        Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool; None if no row does.
        Raises ValueError for tensors of another form.
        """
        x, dtype, (rows, width) = x.contiguous(), x.dtype, x.shape
        out, broken = torch.empty(x.shape, dtype=torch.uint8), torch.empty(rows, dtype=torch.bool)
        count = self._quantize[dtype](
            *(_address(x, dtype, rows * (width - width % SIZE_MULTIPLE)), rows, width),
            *(_address(multiplier, torch.float32, width), _address(shift, torch.float32, width)),
            *(middle, largest, out.data_ptr(), broken.data_ptr(), torch.get_num_threads()),
        )
        return out, broken if count else None

    def quantize_gelu(
        self, x: Tensor, multiplier: float, shift: float, largest: int, *, by_tanh: bool
    ) -> Tensor:
        """Return GELU(x)·multiplier + shift, clamped to 0 … largest and truncated.

        GELU is within 6e-5, above 18 within 3.3e-6·x.
        x: float32 of any shape. by_tanh: which GELU. Returns uint8 of the same shape; NaN becomes 0.
        Raises ValueError for another dtype.
        """
        x, count = x.contiguous(), x.numel()
        out = torch.empty(x.shape, dtype=torch.uint8)
        self._quantize_gelu(
            *(_address(x, torch.float32, count), count, by_tanh, multiplier, shift, largest),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        return out

    def affine(
        self,
        x: Tensor,
        tiles: Tensor,
        factors: Sequence[Tensor],
        outputs: int,
        finish: str,
        other: Tensor | None = None,
        target: tuple[float, float] = (0.0, 0.0),
        *,
        source: tuple[Tensor | None, Tensor | None, float] = (None, None, 0.0),
        norm: Norm | None = None,
    ) -> Tensor:
        """Return x·Wᵀ + b; or, for a W of int8, (start + x·Wᵀ)·scale + b. Then comes what `finish` says: GELU
        (within 6e-5 before it is rounded), SiLU, `other` added or multiplied, or GELU and `quantize_gelu`.

        x: (T, in) bfloat16, or uint8 for a W of int8; tiles: W, bfloat16 or int8, as `to_tiles` lays it out;
            factors: b, float32; or start, int32, scale and b; filled up with zeros as W is;
            other: (T, outputs) bfloat16.
        target: multiplier and shift of `quantize_gelu`, for the quantized finishes.
        source: multiplier, shift and middle of `quantize`, for an x of bfloat16 and a W of int8. The width of
            x is then a multiple of SIZE_MULTIPLE, and its rows that hold NaN or an infinity become NaN,
            unless the result is quantized.
        norm: of the result.
        Returns (T, outputs) bfloat16, or uint8. A row has the same bits in any batch and thread count.
        Raises MemoryError if there is not enough memory, ValueError for tensors of another form.
        """
        x, other = x.contiguous(), None if other is None else other.contiguous()
        (rows, inputs), bf16, fp32, step = x.shape, torch.bfloat16, torch.float32, STEP // tiles.itemsize
        size, width = -(-outputs // BLOCK) * BLOCK, -(-inputs // step) * step
        weight, bias, eps = None, None, 0.0
        if norm is not None and norm.kernels is not None:
            weight, bias, eps, norm = norm.weight, norm.bias, norm.eps, None
        out = torch.empty(rows, outputs, dtype=torch.uint8 if finish.startswith("quantized") else bf16)
        finishing = outputs, FINISHES.index(finish), _address(other, bf16, rows * outputs)
        writing = (
            *(_address(weight, bf16, outputs), _address(bias, bf16, outputs), eps),
            *(out.data_ptr(), torch.get_num_threads()),
        )
        if tiles.dtype is torch.int8:
            is_quantized = x.dtype is torch.uint8
            multiplier, shift, middle = (None, None, 0.0) if is_quantized else source
            out_of_memory = self._map_int8(
                *(_address(x, x.dtype if is_quantized else bf16, rows * inputs), is_quantized, rows, inputs),
                *(_address(multiplier, fp32, inputs), _address(shift, fp32, inputs), middle),
                *(_address(tiles, torch.int8, size * width), _address(factors[0], torch.int32, size)),
                *(_address(factors[1], fp32, size), _address(factors[2], fp32, size)),
                *(*finishing, *target, *writing),
            )
        else:
            out_of_memory = self._map_bfloat16(
                *(_address(x, bf16, rows * inputs), rows, inputs),
                *(_address(tiles, bf16, size * width), _address(factors[0], fp32, size)),
                *(*finishing, *writing),
            )
        if out_of_memory:
            raise MemoryError("not enough memory for an affine map")
        return out if norm is None else norm(out)


def _function(library: ctypes.CDLL, name: str, form: str) -> Any:
    """Return a function of the library. form: its result and arguments: pointer, long (n), int or float."""
    types = {"p": ctypes.c_void_p, "n": ctypes.c_long, "i": ctypes.c_int, "f": ctypes.c_float, " ": None}
    function = getattr(library, f"headroom_{name}")
    result, arguments = form.split(":")
    function.restype, function.argtypes = types[result], [types[letter] for letter in arguments]
    return function


def _rows(head_weights: Tensor | None) -> tuple[Tensor | None, int]:
    """Return the weights as the attention kernels read them, and how many rows they have."""
    return (None, 0) if head_weights is None else (head_weights.float().contiguous(), len(head_weights))


def _check(problem: int, tokens: int) -> None:
    """Raise the error that an attention kernel's answer stands for; 0 stands for none."""
    if problem == 1:
        raise MemoryError("not enough memory for the attention of the longest sequence")
    if problem:
        raise ValueError(
            f"offsets must ascend from 0 to at most {tokens} tokens, with a row of head_weights for each "
            "sequence, a row of the rotation for each position and one of `order` for each distance; a "
            "prefix must be a sequence without one"
        )


def _address(tensor: Tensor | None, dtype: torch.dtype, count: int) -> int | None:
    """Return the address of a tensor's numbers; None for None.

    Raises ValueError if it has another form than the kernel reads: that would be other memory.
    """
    if tensor is None:
        return None
    if tensor.dtype is not dtype or tensor.numel() != count or not tensor.is_contiguous():
        layout = "" if tensor.is_contiguous() else " (not contiguous)"
        raise ValueError(
            f"{tuple(tensor.shape)} {tensor.dtype}{layout}; needed: {count} numbers of {dtype}, contiguous"
        )
    return tensor.data_ptr()


def filled(numbers: Tensor) -> Tensor:
    """Return one number for each output, filled up to whole blocks with zeros."""
    return F.pad(numbers, (0, -len(numbers) % BLOCK))


def to_tiles(weight: Tensor) -> Tensor:
    """Return a weight, (out, in) bfloat16 or int8, as the kernel reads it: (out/32, bytes/64, 2, 16, n).

    Per 32 outputs and 64 bytes of inputs, both rounded up, these are two tiles of 16 outputs; a tile's row
    is n numbers, four bytes of each output.
    """
    outputs, inputs = weight.shape
    units = F.pad(weight, (0, -inputs % (STEP // weight.itemsize), 0, -outputs % BLOCK)).view(torch.int32)
    tiles = units.reshape(len(units) // BLOCK, 2, 16, -1, 16).permute(0, 3, 1, 4, 2)
    return tiles.contiguous().view(weight.dtype)


def from_tiles(tiles: Tensor) -> Tensor:
    """Return the weight that `to_tiles` laid out, with the zeros that fill it up."""
    units = tiles.view(torch.int32).permute(0, 2, 4, 1, 3)
    return units.reshape(len(tiles) * BLOCK, -1).view(tiles.dtype)
