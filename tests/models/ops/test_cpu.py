"""Prepacked products give what plain ones give, and are left alone where they do not."""

from collections.abc import Iterator

import pytest
import torch

from headroom.models.ops import cpu, kernel_library
from headroom.models.ops.cpu import CpuOps, TileLinear, can_prepack
from headroom.models.ops.torch import FUNCTIONS


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    can_prepack.cache_clear()
    yield
    can_prepack.cache_clear()


@pytest.mark.parametrize("activation", ["none", "gelu", "gelu_tanh", "relu", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 3, 64])
def test_every_activation_and_an_added_residual(activation: str, dtype: torch.dtype, rows: int) -> None:
    weight, bias = torch.randn(24, 40), torch.randn(24)
    x, residual = torch.randn(rows, 40).to(dtype), torch.randn(rows, 24).to(dtype)
    ours = CpuOps(dtype, kernel_library.choice().kernels).linear(weight.to(dtype), bias.to(dtype), activation)

    exact = FUNCTIONS[activation](x.double() @ weight.to(dtype).double().T + bias.to(dtype).double())

    tolerance = 1e-4 if dtype == torch.float32 else 6e-2
    torch.testing.assert_close(ours(x).double(), exact, atol=tolerance, rtol=tolerance)
    if activation == "none":
        added = ours.add_norm(x, residual, None).double()
        torch.testing.assert_close(added, exact + residual.double(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(ours.weight, weight.to(dtype))
    filled = 32 * 64 * 2 + 24 * 2 + 32 * 4  # with zeros, and the bias in both formats
    assert ours.nbytes == (filled if isinstance(ours, TileLinear) else (24 * 40 + 24) * dtype.itemsize)


@pytest.mark.usefixtures("fresh_probe")
def test_another_torch_release_falls_back_to_plain_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "CHECKED_TORCH", "1.0.")
    weight, bias, x = torch.randn(8, 8), torch.randn(8), torch.randn(5, 8)

    assert not can_prepack(torch.float32)
    ours = CpuOps(torch.float32, None).linear(weight, bias, "gelu")
    torch.testing.assert_close(ours(x), torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias)))


@pytest.mark.usefixtures("fresh_probe")
def test_operators_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def __call__(self, x: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
            return x.new_zeros(x.shape[0], weight.shape[0])

        def binary(self, _: torch.Tensor, residual: torch.Tensor, *__: object) -> torch.Tensor:
            return residual

    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", Wrong())
    assert not can_prepack(torch.float32)
