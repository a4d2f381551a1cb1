"""Calls our own kernels: attention over packs, layer normalisation, quantization, affine maps (`native/`).

torch's operators do not suit short sequences and narrow rows: attention needs copies into padded batches, and
a dozen operators to make them. The compiled library is called through ctypes, which releases the
interpreter's lock. `headroom.models.ops.kernel_library` loads and tries it when a checkpoint is loaded.
"""

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.ops.causal import Causal
from headroom.models.ops.positions import PLAIN_POSITIONS, Positions
from headroom.models.ops.relative import kernel_tables

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
"""The number formats that the kernels compute in, as their names end."""

SIZE_MULTIPLE = 16
"""Heads and rows have a multiple of this many numbers."""

BLOCK = 32
"""Outputs that a map's kernel reads together; other numbers of outputs are filled up with zeros."""

STEP = 64
"""Bytes of the inputs that a map's kernel reads together; other numbers are filled up with zeros."""

FINISHES = ("none", "gelu", "gelu_tanh", "silu", "add", "multiply", "quantized_gelu", "quantized_gelu_tanh")
"""What a map's kernel does with its sums; the order is that of `Finish` in native/affine.h."""

DECLARATIONS = """
int attend_T(T* projected, long tokens, int* offsets, long sequences, long heads, long size, float* weights,
    long weight_rows, int first_only, float* rotation, long positions, long window, void* relative, T* out,
    int threads)
int causal_T(T* projected, long tokens, int* offsets, int* prefixes, long sequences, int* borders,
    long groups, long size, float* weights, long weight_rows, int last_only, float* rotation, long positions,
    float* query_norm, float* key_norm, float epsilon, T* out, int threads)
void normalise_T(T* x, long rows, long width, T* weight, T* bias, float epsilon, T* out, int threads)
void root_normalise_T(T* x, long rows, long width, float* weight, float epsilon, T* out, int threads)
long quantize_T(T* x, long rows, long width, float* multiplier, float* shift, float middle, float largest,
    byte* out, byte* broken, int threads)
void quantize_gelu(float* x, long count, int by_tanh, float multiplier, float shift, float largest, byte* out,
    int threads)
int map_bfloat16(T* x, long rows, long inputs, T* weights, float* bias, long outputs, int finish, T* other,
    T* norm_weight, T* norm_bias, float epsilon, T* out, int threads)
int map_int8(void* x, int quantized, long rows, long inputs, float* source_multiplier, float* source_shift,
    float middle, byte* weights, int* start, float* scale, float* bias, long outputs, int finish, T* other,
    float multiplier, float shift, T* norm_weight, T* norm_bias, float epsilon, void* out, int threads)
"""
"""The functions of native/kernels.cpp, whose names begin with `headroom_`; T is each of DTYPES."""

NormWeights = tuple[Tensor, Tensor | None, float]
"""Weight, bias and ε of a layer normalisation of a map's result; the tensors: (outputs,) bfloat16."""


class Kernels:
    """The kernels of a compiled library. Threads may share it.

    name: the level that the library was compiled for. multiplies: whether it has affine maps.
    """

    def __init__(self, name: str, library: Path) -> None:
        """Load a library. Raises OSError if it cannot be loaded, RuntimeError if it may not be used."""
        self.name = name
        loaded = ctypes.CDLL(str(library))
        self._functions = _functions(loaded)
        self.multiplies = "map_bfloat16" in self._functions
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
        """Return concat(head_1 … head_h) of an encoder; heads have a multiple of SIZE_MULTIPLE numbers.

        projected: (T, 3·h·d) float32 or bfloat16. offsets: (B + 1,) int32, where sequences begin and end.
        first_only: only each sequence's first token attends. positions: as far as the longest sequence.
        Returns projected's dtype. A sequence's result has the same bits in any pack and for any thread count.
        Raises MemoryError if there is not enough for the longest sequence, ValueError for tensors of another
        form.
        """
        tokens, columns = projected.shape
        dtype = projected.dtype
        sequences = len(offsets) - 1
        size = columns // (3 * heads)
        rotation = positions.rotation
        rotated = 0 if rotation is None else len(rotation)
        relative = positions.relative
        weights = None if head_weights is None else head_weights.float().contiguous()
        weight_rows = 0 if weights is None else len(weights)
        out = projected.new_empty(sequences if first_only else tokens, heads * size)
        problem = self._functions[f"attend_{DTYPES[dtype]}"](
            _address(projected, dtype, tokens * 3 * heads * size),
            tokens,
            _address(offsets, torch.int32, sequences + 1),
            sequences,
            heads,
            size,
            _address(weights, torch.float32, weight_rows * heads),
            weight_rows,
            first_only,
            _address(rotation, torch.float32, rotated * size),
            rotated,
            -1 if positions.window is None else positions.window,
            None if relative is None else kernel_tables(relative, size, dtype, tiles=self.multiplies),
            out.data_ptr(),
            torch.get_num_threads(),
        )
        _check(problem, tokens)
        return out

    def causal(
        self,
        projected: Tensor,
        offsets: Tensor,
        spec: Causal,
        head_weights: Tensor | None = None,
        *,
        prefixes: Tensor | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Return concat(head_1 … head_h) of a decoder; the arguments are those of `attention`, but for these.

        spec: of these heads, with a row of the rotation for each position. prefixes: (sequences,) int32, as
            in `PackedBatch`. last_only: only each sequence's last token attends.
        """
        tokens = len(projected)
        dtype = projected.dtype
        sequences = len(offsets) - 1
        positions, size = spec.rotation.shape
        heads = spec.borders[-1]
        borders = torch.tensor(spec.borders, dtype=torch.int32)
        weights = None if head_weights is None else head_weights.float().contiguous()
        weight_rows = 0 if weights is None else len(weights)
        out = projected.new_empty(sequences if last_only else tokens, heads * size)
        problem = self._functions[f"causal_{DTYPES[dtype]}"](
            _address(projected, dtype, tokens * (heads + 2 * spec.groups) * size),
            tokens,
            _address(offsets, torch.int32, sequences + 1),
            _address(prefixes, torch.int32, sequences),
            sequences,
            borders.data_ptr(),
            spec.groups,
            size,
            _address(weights, torch.float32, weight_rows * heads),
            weight_rows,
            last_only,
            _address(spec.rotation, torch.float32, positions * size),
            positions,
            _address(spec.query_norm, torch.float32, size),
            _address(spec.key_norm, torch.float32, size),
            spec.eps,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        _check(problem, tokens)
        return out

    def normalise(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Return (x − mean) / √(variance + ε)·weight + bias of each row, computed in float32; without a bias,
        x / √(mean(x²) + ε)·weight.

        x: (T, D) float32 or bfloat16; weight, bias: (D,) of x's dtype; a weight without a bias is float32.
        The result is like x. Raises ValueError for tensors of another form.
        """
        x = x.contiguous()
        dtype = x.dtype
        rows, width = x.shape
        out = torch.empty_like(x)
        address = _address(x, dtype, rows * (width - width % SIZE_MULTIPLE))
        if bias is None:
            name = f"root_normalise_{DTYPES[dtype]}"
            factors = [_address(weight, torch.float32, width)]
        else:
            name = f"normalise_{DTYPES[dtype]}"
            factors = [_address(weight, dtype, width), _address(bias, dtype, width)]
        self._functions[name](address, rows, width, *factors, eps, out.data_ptr(), torch.get_num_threads())
        return out

    def quantize(
        self, x: Tensor, multiplier: Tensor | None, shift: Tensor | None, middle: float, largest: int = 255
    ) -> tuple[Tensor, Tensor | None]:
        """Return x·multiplier + shift (or x + middle without them), clamped to 0 … largest and truncated.

        x: (T, D) float32 or bfloat16; multiplier, shift: (D,) float32, both or neither.
        Returns (T, D) uint8, and which rows hold NaN or an infinity, (T,) bool; None if no row does.
        Raises ValueError for tensors of another form.
        """
        x = x.contiguous()
        rows, width = x.shape
        out = torch.empty(x.shape, dtype=torch.uint8)
        broken = torch.empty(rows, dtype=torch.bool)
        count = self._functions[f"quantize_{DTYPES[x.dtype]}"](
            _address(x, x.dtype, rows * (width - width % SIZE_MULTIPLE)),
            rows,
            width,
            _address(multiplier, torch.float32, width),
            _address(shift, torch.float32, width),
            middle,
            largest,
            out.data_ptr(),
            broken.data_ptr(),
            torch.get_num_threads(),
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
        x = x.contiguous()
        count = x.numel()
        out = torch.empty(x.shape, dtype=torch.uint8)
        address = _address(x, torch.float32, count)
        threads = torch.get_num_threads()
        self._functions["quantize_gelu"](
            address, count, by_tanh, multiplier, shift, largest, out.data_ptr(), threads
        )
        return out

    def map_bfloat16(
        self,
        x: Tensor,
        tiles: Tensor,
        bias: Tensor,
        outputs: int,
        finish: str,
        other: Tensor | None = None,
        norm: NormWeights | None = None,
    ) -> Tensor:
        """Return x·Wᵀ + b, after `finish`: GELU (within 6e-5 before it is rounded), SiLU, or `other` added or
        multiplied; and normalised.

        x: (T, in) bfloat16; tiles: W, bfloat16, as `to_tiles` lays it out; bias: float32, `filled`; other:
        (T, outputs) bfloat16. finish: one of FINISHES without the quantized ones. norm: of the result.
        Returns (T, outputs) bfloat16. A row has the same bits in any batch and thread count.
        Raises MemoryError if there is not enough memory, ValueError for tensors of another form.
        """
        x = x.contiguous()
        rows, inputs = x.shape
        arguments = [
            _address(x, torch.bfloat16, rows * inputs),
            rows,
            inputs,
            _address(tiles, torch.bfloat16, _tiled_numbers(outputs, inputs, tiles.itemsize)),
            _address(bias, torch.float32, _up(outputs, BLOCK)),
        ]
        out = torch.empty(rows, outputs, dtype=torch.bfloat16)
        return self._map("map_bfloat16", arguments, out, finish, other, norm)

    def map_int8(
        self,
        x: Tensor,
        tiles: Tensor,
        factors: Sequence[Tensor],
        outputs: int,
        finish: str,
        other: Tensor | None = None,
        norm: NormWeights | None = None,
        *,
        source: tuple[Tensor | None, Tensor | None, float] = (None, None, 0.0),
        target: tuple[float, float] = (0.0, 0.0),
    ) -> Tensor:
        """Return (start + x·Wᵀ)·scale + b, after `finish` (of FINISHES): GELU, SiLU, `other` added
        or multiplied, normalised; or GELU and `quantize_gelu`.

        x: (T, in) uint8, or bfloat16 that is quantized first; tiles: W, int8, as `to_tiles` lays it out;
            factors: start, int32, scale and b, float32, all `filled`.
        source: multiplier, shift and middle of `quantize`, for an x of bfloat16. Its width is then a multiple
            of SIZE_MULTIPLE, and its rows that hold NaN or an infinity become NaN, unless the result is
            quantized.
        target: multiplier and shift of `quantize_gelu`, for the quantized finishes.
        Returns (T, outputs) bfloat16, or uint8 for the quantized finishes.
        Raises MemoryError if there is not enough memory, ValueError for tensors of another form.
        """
        x = x.contiguous()
        rows, inputs = x.shape
        is_quantized = x.dtype is torch.uint8
        start, scale, bias = factors
        padded = _up(outputs, BLOCK)
        multiplier, shift, middle = (None, None, 0.0) if is_quantized else source
        arguments = [
            _address(x, torch.uint8 if is_quantized else torch.bfloat16, rows * inputs),
            is_quantized,
            rows,
            inputs,
            _address(multiplier, torch.float32, inputs),
            _address(shift, torch.float32, inputs),
            middle,
            _address(tiles, torch.int8, _tiled_numbers(outputs, inputs, tiles.itemsize)),
            _address(start, torch.int32, padded),
            _address(scale, torch.float32, padded),
            _address(bias, torch.float32, padded),
        ]
        dtype = torch.uint8 if finish.startswith("quantized") else torch.bfloat16
        out = torch.empty(rows, outputs, dtype=dtype)
        return self._map("map_int8", arguments, out, finish, other, norm, target)

    def _map(
        self,
        name: str,
        arguments: Sequence[int | float | None],
        out: Tensor,
        finish: str,
        other: Tensor | None,
        norm: NormWeights | None,
        target: tuple[float, ...] = (),
    ) -> Tensor:
        """Let a map's kernel write `out`, and return it.

        arguments: those that the sums are computed from. finish: one of FINISHES. other: what it adds or
        multiplies. norm: of the result. target: multiplier and shift of `quantize_gelu`.
        """
        outputs = out.shape[1]
        other = None if other is None else other.contiguous()
        norm_weight, norm_bias, eps = norm or (None, None, 0.0)
        out_of_memory = self._functions[name](
            *arguments,
            outputs,
            FINISHES.index(finish),
            _address(other, torch.bfloat16, out.numel()),
            *target,
            _address(norm_weight, torch.bfloat16, outputs),
            _address(norm_bias, torch.bfloat16, outputs),
            eps,
            out.data_ptr(),
            torch.get_num_threads(),
        )
        if out_of_memory:
            raise MemoryError("not enough memory for an affine map")
        return out


def _functions(library: ctypes.CDLL) -> dict[str, Any]:
    """Return those of DECLARATIONS that a library has, by name."""
    types = {"int": ctypes.c_int, "long": ctypes.c_long, "float": ctypes.c_float, "void": None}
    functions = {}
    for result, declared, arguments in re.findall(r"(\w+) (\w+)\(([^)]*)\)", DECLARATIONS):
        kinds = [argument.split()[0] for argument in arguments.split(",")]
        for dtype in DTYPES.values():
            name = re.sub("T$", dtype, declared)
            function = getattr(library, f"headroom_{name}", None)
            if function is not None:
                function.restype = types[result]
                function.argtypes = [ctypes.c_void_p if kind[-1] == "*" else types[kind] for kind in kinds]
                functions[name] = function
    return functions


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


def _up(number: int, multiple: int) -> int:
    """Return a number rounded up to a multiple."""
    return -(-number // multiple) * multiple


def _tiled_numbers(outputs: int, inputs: int, itemsize: int) -> int:
    """Return how many numbers `to_tiles` makes of a weight, zeros among them."""
    return _up(outputs, BLOCK) * _up(inputs, STEP // itemsize)


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
