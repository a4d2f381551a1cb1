"""8-bit products: the integers mean what the checkpoint says, on every processor."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from headroom.models.cores import cpu_flags
from headroom.models.ops import int8_products, kernel_library
from headroom.models.ops.int8 import Int8Linear
from headroom.models.ops.int8_products import ChannelScale, QuantizedMap, TensorScale, input_bits
from headroom.models.ops.torch import FUNCTIONS


@pytest.fixture(params=["8 bits", "7 bits", "plain torch"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    input_bits.cache_clear()
    if request.param == "plain torch":
        monkeypatch.setattr(int8_products, "CHECKED_TORCH", "1.0.")
    elif not input_bits():
        pytest.skip("this torch is not the checked one, or this processor has no integer products")
    elif request.param == "7 bits":
        monkeypatch.setattr(int8_products, "input_bits", lambda: 7)
    elif input_bits() == 7:
        pytest.skip("this processor has no VNNI")
    yield
    input_bits.cache_clear()


def merged() -> int:
    """How many of a checkpoint's 8-bit values the products see as one."""
    return 2 if int8_products.input_bits() == 7 else 1


def random_map(out: int, width: int) -> QuantizedMap:
    weight = torch.randint(-127, 128, (out, width)).to(torch.int8)
    return QuantizedMap(weight, torch.rand(out) / 500 + 1e-3, torch.randn(out))


def as_floats(product: QuantizedMap, steps: torch.Tensor, zero: int, scale: float = 1.0) -> torch.Tensor:
    sums = (steps.double() - round(zero / merged())) @ product.weight.double().T
    return sums * product.weight_scale.double() * scale * merged() + product.bias.double()


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_floats_in_and_floats_out_with_and_without_residual(dtype: torch.dtype, rows: int) -> None:
    product = random_map(24, 40)
    scale, offset = torch.rand(40) / 20 + 0.01, torch.randn(40)
    x, residual = torch.randn(rows, 40).to(dtype), torch.randn(rows, 24).to(dtype)
    ours = Int8Linear(product, dtype=dtype, source=ChannelScale(scale, offset))

    steps, _ = ours.quantize(x)
    exact = as_floats(product, steps, 128)

    assert steps.dtype == torch.uint8
    expected_steps = (((x.double() - offset) / scale + 128) / merged()).clamp(0, 255 // merged())
    assert (steps.double() - expected_steps).abs().max() <= 0.5 + 1e-3
    tolerance = 1e-4 if dtype == torch.float32 else 3e-2
    torch.testing.assert_close(ours(x).double(), exact, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(
        ours.add_norm(x, residual.clone(), None).double(),
        exact + residual.double(),
        atol=tolerance,
        rtol=tolerance,
    )


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh", "relu", "tanh"])
def test_quantized_values_pass_from_one_product_to_the_next(activation: str, compiled: bool) -> None:
    between = TensorScale(0.02, 9)
    first, second = random_map(48, 40), random_map(24, 48)
    x = torch.randn(17, 40)
    source = ChannelScale(torch.full((40,), 0.02), torch.zeros(40))
    ours = kernel_library.choice().kernels if compiled else None
    up = Int8Linear(first, activation, dtype=torch.float32, source=source, target=between, kernels=ours)
    down = Int8Linear(second, dtype=torch.float32, source=between)

    inner = up(x)

    zero = round(9 / merged())
    exact = FUNCTIONS[activation](as_floats(first, up.quantize(x)[0], 128)) / 0.02 / merged() + zero
    assert inner.dtype == torch.uint8
    assert (inner.double() - exact.clamp(0, 255 // merged())).abs().max() <= 0.5 + 4e-3
    torch.testing.assert_close(down(inner).double(), as_floats(second, inner, 9, 0.02), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("_way")
def test_rows_and_columns_cut_out_are_those_of_the_whole() -> None:
    product = random_map(24, 40)
    source = ChannelScale(torch.full((40,), 0.03), torch.randn(40))
    whole = Int8Linear(product, dtype=torch.float32, source=source)
    x, index = torch.randn(9, 40), torch.tensor([1, 7, 20])

    torch.testing.assert_close(whole.rows(index)(x), whole(x)[:, index])

    output = Int8Linear(product, dtype=torch.float32, source=None)
    kept = torch.tensor([0, 3, 39])
    only = torch.zeros(9, 40)
    only[:, kept] = heads = torch.randn(9, 3) * 50
    torch.testing.assert_close(output.columns(kept)(heads), output(only), atol=1e-4, rtol=1e-5)

    between = TensorScale(0.02, 9)
    up = Int8Linear(product, "gelu", dtype=torch.float32, source=source, target=between)
    down = Int8Linear(random_map(5, 24), dtype=torch.float32, source=between)
    units = torch.tensor([0, 2, 3, 11, 23])
    inner = torch.full((9, 24), round(9 / merged()), dtype=torch.uint8)  # the others are 0
    inner[:, units] = few = up.rows(units)(x)
    assert torch.equal(few, up(x)[:, units])
    torch.testing.assert_close(down.columns(units)(few), down(inner), atol=1e-4, rtol=1e-5)

    assert source.midpoint is not None
    near = source.midpoint[kept] + torch.randn(9, 3)  # half a step of each input is lost
    expected = near @ whole.weight[:, kept].T + whole.bias
    lost = 0.015 * merged() * whole.weight[:, kept].abs().sum(1) + 1e-3
    assert ((whole.columns(kept)(near) - expected).abs() <= lost).all()


@pytest.mark.parametrize(
    ("features", "exact", "bits"),
    [
        ({"avx2", "avx512_vnni"}, True, 8),
        ({"avx2", "avx_vnni"}, True, 8),
        ({"avx2", "avx_vnni"}, False, 7),
        ({"avx2"}, True, 7),
    ],
    ids=["AVX-512 VNNI", "AVX-VNNI", "products that overflow all the same", "AVX2 alone"],
)
def test_inputs_have_eight_bits_only_with_vnni_and_if_sums_are_exact(
    features: set[str], exact: bool, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8_products, "CHECKED_TORCH", torch.__version__)
    monkeypatch.setattr(int8_products, "cpu_flags", lambda: features)
    monkeypatch.setattr(int8_products, "is_exact", lambda bits: exact or bits == 7)
    input_bits.cache_clear()
    assert input_bits() == bits
    input_bits.cache_clear()


BITS = """
import torch
from headroom.models.ops.int8 import Int8Linear
from headroom.models.ops.int8_products import ChannelScale, QuantizedMap, input_bits
from headroom.models.ops.kernel_library import choice
from headroom.models.cores import processor_features

product = QuantizedMap(torch.full((48, 160), 127, dtype=torch.int8), torch.ones(48), torch.zeros(48))
ones = torch.ones(160)
source = ChannelScale(ones, 0 * ones)
largest = Int8Linear(product, dtype=torch.float32, source=source)(1e9 * torch.ones(70, 160))
print(input_bits(), processor_features(), choice().kernels.name, largest.unique().tolist())
"""


@pytest.mark.skipif(not torch.cpu._is_avx2_supported(), reason="the limits are those of x86 processors")
@pytest.mark.parametrize(
    ("level", "bits", "largest"), [("AVX2", 7, (127 - 64) * 2), ("AVX2_VNNI", 8, 255 - 128)]
)
def test_the_largest_sums_do_not_overflow_with_or_without_vnni(level: str, bits: int, largest: int) -> None:
    # oneDNN limited to AVX2 adds in 16 bits, on any processor: with 8 bits, this sum would be wrong by half.
    if level == "AVX2_VNNI" and "avx_vnni" not in cpu_flags():
        pytest.skip("this processor has no AVX-VNNI")
    limits = {"ONEDNN_MAX_CPU_ISA": level, "ATEN_CPU_CAPABILITY": "avx2"}
    done = subprocess.run(
        [sys.executable, "-c", BITS], env=os.environ | limits, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{bits} ['avx2'] avx2 [{largest * 127 * 160.0}]\n"
