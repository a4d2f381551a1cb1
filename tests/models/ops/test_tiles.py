"""Affine maps on AMX's tiles against double precision, at every level of this processor that has them."""

import unittest.mock
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from headroom.models.cores import cpu_flags
from headroom.models.ops import kernel_library
from headroom.models.ops.cpu import CpuOps, PrepackedLinear, TileLinear
from headroom.models.ops.int8 import Int8Linear
from headroom.models.ops.int8_products import ChannelScale, QuantizedMap, TensorScale
from headroom.models.ops.kernel_build import levels_of_machine
from headroom.models.ops.kernels import Kernels
from headroom.models.ops.torch import FUNCTIONS, Norm

needs_tiles = pytest.mark.skipif(
    not any(level.name == "amx" and cpu_flags().issuperset(level.features) for level in levels_of_machine()),
    reason="this processor has no AMX",
)

SIZES = [(192, 768), (768, 192), (800, 33), (3072, 40), (7, 5)]
"""Inputs and outputs: whole blocks; more inputs than are read at a time; sizes that fill no block."""


@pytest.fixture(scope="module")
def ours() -> Kernels:
    return kernel_library.load(levels_of_machine()[0])


def a_map(inputs: int, outputs: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a weight, a bias, an input, and another tensor of the output's shape; bfloat16."""
    generator = torch.Generator().manual_seed(inputs + outputs + rows)
    weight, bias, x, other = (
        torch.randn(*shape, generator=generator)
        for shape in ((outputs, inputs), (outputs,), (rows, inputs), (rows, outputs))
    )
    weight /= inputs**0.5
    return weight.bfloat16(), bias.bfloat16(), x.bfloat16(), other.bfloat16()


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """Compare with float64; nothing is rounded but the result (8 bits), after sums in float32."""
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2e-4)


@needs_tiles
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("rows", [0, 1, 16, 17, 32, 33, 300])
def test_maps_are_rounded_once(ours: Kernels, inputs: int, outputs: int, rows: int) -> None:
    weight, bias, x, other = a_map(inputs, outputs, rows)
    exact = x.double() @ weight.double().T + bias.double()
    for activation in ("none", "gelu", "gelu_tanh"):
        linear = TileLinear(weight, bias, activation, ours)
        assert_rounded(linear(x), FUNCTIONS[activation](exact))
    plain, gelu = (TileLinear(weight, bias, name, ours) for name in ("none", "gelu"))
    assert_rounded(plain.add_norm(x, other, None), exact + other.double())
    assert_rounded(plain.times(gelu, x), exact * gelu(x).double())


@needs_tiles
def test_a_rows_bits_depend_on_nothing_else(ours: Kernels) -> None:
    weight, bias, x, other = a_map(800, 100, 200)
    linear = TileLinear(weight, bias, "none", ours)
    before, whole = torch.get_num_threads(), linear.add_norm(x, other, None)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            assert torch.equal(linear.add_norm(x, other, None), whole)
            for begin, end in ((0, 1), (5, 38), (137, 200)):
                assert torch.equal(linear.add_norm(x[begin:end], other[begin:end], None), whole[begin:end])
    finally:
        torch.set_num_threads(before)


def a_norm(ours: Kernels, width: int) -> Norm:
    weight, bias = torch.randn(2, width, generator=torch.Generator().manual_seed(1)).bfloat16().unbind()
    return Norm(weight, bias, 1e-12, ours)


@pytest.fixture(params=[1, 2, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """The number of torch's threads: with enough rows each has its own, else they share columns."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@needs_tiles
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 192), (3072, 48), (96, 16), (768, 768)])
@pytest.mark.parametrize("rows", [0, 1, 31, 127, 128, 129, 256, 500])
@pytest.mark.usefixtures("threads")
def test_a_maps_norm_has_the_bits_of_a_norm_after_it(
    ours: Kernels, inputs: int, outputs: int, rows: int
) -> None:
    weight, bias, x, other = a_map(inputs, outputs, rows)
    linear, norm = TileLinear(weight, bias, "none", ours), a_norm(ours, outputs)
    if rows:
        x[-1, 3] = torch.nan
    expected = norm(linear.add_norm(x, other, None))
    with unittest.mock.patch.object(Kernels, "normalise", side_effect=ZeroDivisionError):
        found = linear.add_norm(x, other, norm)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@needs_tiles
def test_rows_and_columns_of_a_map(ours: Kernels) -> None:
    weight, bias, x, _ = a_map(48, 40, 10)
    linear, some = TileLinear(weight, bias, "gelu", ours), torch.tensor([3, 17, 39])
    assert torch.equal(linear.weight, weight)
    assert torch.equal(linear.rows(some)(x), linear(x)[:, some])
    exact = x[:, some].double() @ weight[:, some].double().T + bias.double()
    assert_rounded(linear.columns(some)(x[:, some]), FUNCTIONS["gelu"](exact))


def an_integer_map(inputs: int, outputs: int) -> QuantizedMap:
    weight = torch.randint(-127, 128, (outputs, inputs)).to(torch.int8)
    weight[0] = 127
    return QuantizedMap(weight, torch.rand(outputs) / 2000 / inputs**0.5, torch.randn(outputs))


@needs_tiles
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
@pytest.mark.parametrize("rows", [0, 1, 33, 300])
@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh"])
def test_integer_maps_are_exact_until_they_are_rounded(
    ours: Kernels, inputs: int, outputs: int, rows: int, activation: str
) -> None:
    integers, source = an_integer_map(inputs, outputs), TensorScale(0.5, 100)
    x = torch.randint(0, 256, (rows, inputs)).to(torch.uint8)
    x[:1] = 255
    residual = torch.randn(rows, outputs).bfloat16()
    steps = (x.double() - 100) @ integers.weight.double().T
    exact = FUNCTIONS[activation](steps * 0.5 * integers.weight_scale.double() + integers.bias.double())

    to_floats = Int8Linear(integers, activation, dtype=torch.bfloat16, source=source, kernels=ours)
    assert_rounded(to_floats(x), exact)
    if activation == "none":
        assert_rounded(to_floats.add_norm(x, residual, None), exact + residual.double())
        return
    target = TensorScale(0.02, 9)
    to_integers = Int8Linear(
        integers, activation, dtype=torch.bfloat16, source=source, target=target, kernels=ours
    )
    steps = exact / 0.02 + 9
    found = to_integers(x)
    assert found.dtype == torch.uint8
    differences = found.double() - steps.round().clamp(0, 255)
    beside_middle = (steps - steps.floor() - 0.5).abs() < 2e-5 / 0.02  # GELU's error
    assert (differences.abs() <= beside_middle).all()


@needs_tiles
@pytest.mark.parametrize(("inputs", "outputs"), [(192, 192), (96, 48), (1584, 40), (1024, 1008)])
@pytest.mark.parametrize("rows", [0, 1, 33, 128, 129, 256, 500])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.usefixtures("threads")
def test_a_map_of_floats_has_the_bits_of_a_map_of_what_they_are_quantized_to(
    ours: Kernels, inputs: int, outputs: int, rows: int, scaled: bool
) -> None:
    integers = an_integer_map(inputs, outputs)
    source = ChannelScale(torch.rand(inputs) + 0.5, torch.randn(inputs)) if scaled else None
    x, residual = (torch.randn(rows, inputs) * 30).bfloat16(), torch.randn(rows, outputs).bfloat16()
    norm = a_norm(ours, outputs) if outputs % 16 == 0 else None
    broken = {0, 32, rows - 1} & set(range(rows))
    for row in broken:
        x[row, row % inputs] = torch.nan if row else -torch.inf

    def linears(source: ChannelScale | TensorScale | None) -> list[Int8Linear]:
        return [
            Int8Linear(integers, activation, dtype=torch.bfloat16, source=source, target=target, kernels=ours)
            for activation, target in (("none", None), ("gelu", None), ("gelu", TensorScale(0.02, 9)))
        ]

    def compare(found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)

    plain, gelu, between = linears(source)
    quantized, _ = plain.quantize(x)
    plain_of_8_bits, gelu_of_8_bits, between_of_8_bits = linears(TensorScale(1.0, 128))
    sums, activated, steps = (
        plain_of_8_bits.add_norm(quantized, residual, None),
        gelu_of_8_bits(quantized),
        between_of_8_bits(quantized),
    )
    for row in broken:
        sums[row], activated[row] = torch.nan, torch.nan
    with unittest.mock.patch.object(Kernels, "quantize", side_effect=ZeroDivisionError):
        compare(plain.add_norm(x, residual, None), sums)
        compare(gelu(x), activated)
        compare(between(x), steps)
        if norm is not None:
            compare(plain.add_norm(x, residual, norm), norm(sums))
    assert set(sums.isnan().any(1).nonzero().flatten().tolist()) == broken


@needs_tiles
def test_integer_maps_are_computed_on_tiles_and_can_be_cut(ours: Kernels) -> None:
    integers, source = an_integer_map(96, 80), TensorScale(0.5, 100)
    linear = Int8Linear(integers, dtype=torch.bfloat16, source=source, kernels=ours)
    x = torch.randint(0, 256, (40, 96)).to(torch.uint8)
    with (
        unittest.mock.patch.object(Kernels, "map_int8", side_effect=ZeroDivisionError),
        pytest.raises(ZeroDivisionError),
    ):
        linear(x)
    some = torch.tensor([3, 17, 79])
    assert torch.equal(linear.rows(some)(x), linear(x)[:, some])
    chosen = Int8Linear(
        integers._replace(weight=integers.weight[:, some]), dtype=torch.bfloat16, source=source, kernels=ours
    )
    assert torch.equal(linear.columns(some)(x[:, some]), chosen(x[:, some]))
    torch.testing.assert_close(linear.weight, integers.weight * (integers.weight_scale * 0.5)[:, None])


@needs_tiles
def test_a_network_in_bfloat16_uses_tiles_where_they_compute_its_activation() -> None:
    weight, bias, _, _ = a_map(64, 64, 1)
    ops = CpuOps(torch.bfloat16, kernel_library.choice().kernels)
    assert isinstance(ops.linear(weight, bias, "gelu"), TileLinear)
    assert isinstance(ops.linear(weight, bias, "silu"), TileLinear)
    assert isinstance(ops.linear(weight, bias, "relu"), PrepackedLinear)
    assert isinstance(ops.linear(weight.float(), bias.float()), PrepackedLinear)
