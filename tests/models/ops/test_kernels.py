"""The compiled kernels at every level of this processor against torch."""

import platform
import resource
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.batch import pack
from headroom.models.checkpoint.texts import ID_BYTES
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.cores import cpu_flags
from headroom.models.ops import kernel_library, kernels
from headroom.models.ops.causal import Causal
from headroom.models.ops.cpu import CpuOps
from headroom.models.ops.kernel_build import Level, levels_of_machine
from headroom.models.ops.kernels import Kernels
from headroom.models.ops.positions import PLAIN_POSITIONS, Positions, rotated, rotations
from headroom.models.ops.relative import Relative, alibi_slopes, log_buckets
from headroom.models.ops.torch import TorchOps, attention_probabilities
from tests.checkpoints import random_model
from tests.models.reference import CPU, network_of

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the kernels were tried on x86-64 alone"
)

LENGTHS = [*range(1, 40), 47, 48, 49, 63, 64, 65, 127, 128, 129, 300, 512]
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


HERE = [level for level in levels_of_machine() if cpu_flags().issuperset(level.features)]


@pytest.fixture(scope="module", params=HERE, ids=lambda level: level.name)
def ours(request: pytest.FixtureRequest) -> Kernels:
    level: Level = request.param
    return kernel_library.load(level)


def packed(lengths: list[int], heads: int, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """A random projection of sequences of these lengths, with some tokens after them, and their offsets."""
    generator = torch.Generator().manual_seed(0)
    offsets = F.pad(torch.tensor(lengths).cumsum(0), (1, 0)).int()
    projected = torch.randn(sum(lengths) + 5, 3 * heads * size, generator=generator)
    return (1.5 * projected).to(dtype), offsets


def attended(projected: Tensor, offsets: Tensor, heads: int) -> Tensor:
    """Return the attention by torch, sequence by sequence, in float64: (tokens, heads, size)."""
    size = projected.shape[1] // (3 * heads)
    out = torch.zeros(projected.shape[0], heads, size, dtype=torch.float64)
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        if begin < end:
            query, key, value = projected[begin:end].double().view(-1, 3, heads, size).permute(1, 2, 0, 3)
            out[begin:end] = F.scaled_dot_product_attention(query, key, value).transpose(0, 1)
    return out


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("size", [16, 48, 128])
def test_decoders_attend_to_what_is_before_a_token_and_to_a_prefix(
    ours: Kernels, size: int, dtype: torch.dtype
) -> None:
    """Uneven groups of heads; some sequences go on from another one. Sharing it changes no bit."""
    lengths = [1, 5, 33, 64, 90, 130]
    pairs = [EncodedPair(bytes(length * ID_BYTES), 1, 0, False) for length in lengths]
    prefixes = np.array([-1, 4, -1, 2, -1, 2], np.int32)
    batch = replace(pack(pairs, device=CPU, fill=False), prefixes=prefixes)
    projected, offsets = packed(lengths, 4, size, dtype)  # (6 + 2·3) heads
    norms, weights = torch.rand(2, size) + 0.5, torch.rand(len(lengths), 6)
    how = Causal((0, 3, 4, 6), rotations(1e4, 260, size, CPU), 1e-6, norms[0], norms[1])
    for view in (batch, replace(batch, read="last")):
        found = CpuOps(dtype, ours).causal(projected, view, how, weights)
        plain = TorchOps(CPU, torch.float64).causal(projected.double(), view, how, weights)
        assert (found - plain).abs().max() < ROUNDING[dtype] * plain.abs().max()

    whole = torch.cat([projected[offsets[4] : offsets[5]], projected[offsets[1] : offsets[2]]])
    alone = ours.causal(whole, torch.tensor([0, len(whole)]).int(), how, weights[1:2])
    shared = CpuOps(dtype, ours).causal(projected, batch, how, weights)
    torch.testing.assert_close(alone[lengths[4] :], shared[offsets[1] : offsets[2]], rtol=0, atol=0)


def test_the_kernels_work_on_this_machine() -> None:
    """The processor has AVX2 and there is a compiler; else `make test` would try only torch's way."""
    assert HERE, "no AVX2: run the tests on another processor"
    kernels, skipped, _ = kernel_library.choice()
    assert kernels is not None, skipped
    assert kernels.name == HERE[0].name, skipped


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(12, 16), (3, 32), (2, 48), (12, 64), (1, 80), (1, 128)])
def test_attention_equals_torchs(ours: Kernels, dtype: torch.dtype, heads: int, size: int) -> None:
    projected, offsets = packed(LENGTHS, heads, size, dtype)
    weights = torch.rand(len(LENGTHS), heads, generator=torch.Generator().manual_seed(1))

    whole = ours.attention(projected, offsets, heads, weights)
    first = ours.attention(projected, offsets, heads, weights, first_only=True)
    shared = ours.attention(projected, offsets, heads, weights[:1])
    alone = ours.attention(projected, offsets, heads)

    assert whole.dtype == dtype
    assert not whole[offsets[-1] :].any()  # tokens of no sequence
    assert torch.equal(first, whole[offsets[:-1].long()])
    plain = attended(projected, offsets, heads)
    for found, factor in ((whole, weights), (shared, weights[:1]), (alone, torch.ones(1, heads))):
        of_tokens = factor.expand(len(LENGTHS), heads).repeat_interleave(offsets.diff(), 0)
        exact = (plain * F.pad(of_tokens, (0, 0, 0, len(plain) - len(of_tokens)))[..., None]).flatten(1)
        assert (found - exact).abs().max() <= ROUNDING[dtype] * exact.abs().max()


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(2, 48), (2, 64)])
@pytest.mark.parametrize("window", [None, 0, 33, 64])
def test_attention_of_rotated_neighbours_is_torchs(
    ours: Kernels, dtype: torch.dtype, heads: int, size: int, window: int | None
) -> None:
    projected, offsets = packed(LENGTHS, heads, size, dtype)
    rotation = rotations(100.0, max(LENGTHS), size, torch.device("cpu"))
    before = projected.clone()

    turned = projected.clone().view(-1, 3, heads, size)
    exact = torch.zeros(len(projected), heads * size, dtype=torch.float64)
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        turned[begin:end] = rotated(turned[begin:end], rotation[: end - begin])
        query, key, value = turned[begin:end].double().permute(1, 2, 0, 3)
        place = torch.arange(end - begin)
        near = (place[:, None] - place).abs() <= (end if window is None else window)
        found = F.scaled_dot_product_attention(query, key, value, near)
        exact[begin:end] = found.transpose(0, 1).reshape(end - begin, -1)

    positions = Positions(rotation, window)
    whole = ours.attention(projected, offsets, heads, None, positions)
    first = ours.attention(projected, offsets, heads, None, positions, first_only=True)

    assert torch.equal(projected, before)
    assert (whole - exact).abs().max() <= ROUNDING[dtype] * exact.abs().max()
    assert torch.equal(first, whole[offsets[:-1].long()])


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize(("heads", "size"), [(3, 16), (2, 48), (2, 64)])
@pytest.mark.parametrize("kind", ["tables", "slopes"])
def test_attention_to_distances_is_torchs(
    ours: Kernels, dtype: torch.dtype, heads: int, size: int, kind: str
) -> None:
    projected, offsets = packed(LENGTHS, heads, size, dtype)
    span, reach = 20, max(LENGTHS) - 1
    tables = torch.randn(2, heads, 2 * span, size, generator=torch.Generator().manual_seed(2)).to(dtype)
    relative = Relative(slopes=torch.tensor(alibi_slopes(heads)))
    if kind == "tables":
        relative = Relative((tables[0], tables[1], log_buckets(span, 300, reach)), span // 2)
    positions = Positions(relative=relative)
    exact = torch.zeros(len(projected), heads * size)
    for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
        query, key, value = projected[begin:end].float().view(-1, 3, heads, size).permute(1, 2, 0, 3)
        bias, scale = positions.bias(query, key), positions.scale(size)
        found = attention_probabilities(query, key, bias, scale) @ value
        exact[begin:end] = found.transpose(0, 1).reshape(end - begin, -1)

    whole = ours.attention(projected, offsets, heads, None, positions)
    first = ours.attention(projected, offsets, heads, None, positions, first_only=True)

    assert (whole - exact).abs().max() <= 2 * ROUNDING[dtype] * exact.abs().max()
    assert torch.equal(first, whole[offsets[:-1].long()])
    begin, end = offsets[-3:-1].tolist()
    alone = ours.attention(projected[begin:end], torch.tensor([0, end - begin]).int(), heads, None, positions)
    assert torch.equal(alone, whole[begin:end])
    if kind == "tables" and ours.multiplies:  # the copies that the kernel reads are memory, too
        keys, queries, *_ = relative._for_kernel[True][1]
        assert relative.nbytes == tables.nbytes + keys.nbytes + queries.nbytes


@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_attention_does_not_depend_on_neighbours_or_threads(ours: Kernels, dtype: torch.dtype) -> None:
    projected, offsets = packed(LENGTHS, 2, 16, dtype)
    rotation = rotations(100.0, max(LENGTHS), 16, torch.device("cpu"))
    before = torch.get_num_threads()
    for how in (PLAIN_POSITIONS, Positions(rotation, 20)):
        whole = ours.attention(projected, offsets, 2, None, how)
        try:
            for threads in (1, 2, 3):
                torch.set_num_threads(threads)
                assert torch.equal(ours.attention(projected, offsets, 2, None, how), whole)
                first = ours.attention(projected, offsets, 2, None, how, first_only=True)
                assert torch.equal(first, whole[offsets[:-1].long()])
        finally:
            torch.set_num_threads(before)
        for begin, end in zip(offsets.tolist(), offsets[1:].tolist(), strict=False):
            sequence = projected[begin:end].clone()
            alone = ours.attention(sequence, torch.tensor([0, end - begin]).int(), 2, None, how)
            assert torch.equal(alone, whole[begin:end])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize(
    "how",
    [PLAIN_POSITIONS, Positions(rotations(100.0, 512, 16, torch.device("cpu")))],
    ids=["plain", "rotated"],
)
def test_what_is_not_finite_stays_in_its_sequence(
    ours: Kernels, dtype: torch.dtype, value: float, how: Positions
) -> None:
    projected, offsets = packed(LENGTHS, 2, 16, dtype)
    clean = ours.attention(projected, offsets, 2, None, how)
    spoilt = projected.clone()
    begin, end = int(offsets[20]), int(offsets[21])
    spoilt[begin:end] = value

    found = ours.attention(spoilt, offsets, 2, None, how)

    assert not found[begin:end].isfinite().any()
    assert torch.equal(found[:begin], clean[:begin])
    assert torch.equal(found[end:], clean[end:])


@pytest.mark.parametrize("size", [16, 48])
@pytest.mark.parametrize("how", [None, 100.0], ids=["plain", "rotated"])
def test_what_is_not_finite_stays_in_its_head(ours: Kernels, size: int, how: float | None) -> None:
    """Tiles are 32 numbers wide: those of such heads' queries held numbers of the next head or token."""
    positions = PLAIN_POSITIONS
    if how is not None:
        positions = Positions(rotations(how, 512, size, torch.device("cpu")))
    projected, offsets = packed([40], 3, size, torch.bfloat16)
    clean = ours.attention(projected, offsets, 3, None, positions)
    spoilt = projected.clone()
    spoilt[7, size : 2 * size] = torch.nan  # the second head's query of one token

    found = ours.attention(spoilt, offsets, 3, None, positions)

    second = slice(size, 2 * size)
    assert found[7, second].isnan().all()
    found[7, second] = clean[7, second]
    assert torch.equal(found, clean)


def test_too_little_memory_is_an_error_and_the_next_call_works(ours: Kernels) -> None:
    projected, offsets = packed([40], 1, 16, torch.float32)
    expected = ours.attention(projected, offsets, 1)
    beyond = torch.tensor([0, 2_000_000_000]).int()  # read by nobody: their memory comes first
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (100 << 30, limits[1]))  # however much the system promises
    try:
        with pytest.raises(MemoryError, match="longest sequence"):
            ours.attention(projected, beyond, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert torch.equal(ours.attention(projected, offsets, 1), expected)


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 192), (4, 768), (61, 48), (128, 1024)])
def test_layer_norm_equals_torchs(ours: Kernels, dtype: torch.dtype, rows: int, width: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    x = (torch.randn(rows, width, generator=generator) * 3 + 20).to(dtype)  # a mean far from 0
    weight, bias = torch.randn(2, width, generator=generator).to(dtype)

    exact = F.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-12)

    found = ours.normalise(x, weight, bias, 1e-12)
    assert found.dtype == dtype
    assert (found - exact).abs().max() <= ROUNDING[dtype] * exact.abs().max()


@pytest.mark.parametrize("dtype", kernels.DTYPES)
def test_quantized_values_equal_torchs(ours: Kernels, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.randn(37, 48, generator=generator) * 90).to(dtype)
    multiplier, shift = torch.rand(2, 48, generator=generator)
    shift += 100

    scaled, broken = ours.quantize(x, multiplier, shift, 128.5)
    plain, _ = ours.quantize(x, None, None, 128.5)

    exact = x.double() * multiplier.double() + shift.double()
    expected = exact.clamp(0, 255).floor()
    near = (exact - exact.round()).abs() < 1e-3  # float32 may round these to the other side
    assert torch.equal(scaled[~near].double(), expected[~near])
    assert torch.equal(plain, (x.float() + 128.5).clamp(0, 255).to(torch.uint8))
    assert plain.min() == 0
    assert plain.max() == 255
    assert broken is None


@pytest.mark.parametrize("by_tanh", [False, True])
def test_quantized_gelu_is_torchs(ours: Kernels, by_tanh: bool) -> None:
    x = torch.linspace(-50, 50, 9_999)  # no whole vector at the end
    exact = F.gelu(x.double(), approximate="tanh" if by_tanh else "none")
    for multiplier, largest in ((100.0, 127), (5.0, 255)):
        found = ours.quantize_gelu(x, multiplier, 20.5, largest, by_tanh=by_tanh)
        expected = (exact * multiplier + 20).clamp(0, largest)
        assert (found.double() - expected).abs().max() <= 0.5 + 6e-5 * multiplier
        assert (found[0], found[-1]) == (20, largest)


@pytest.mark.parametrize("dtype", kernels.DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rows_with_nan_or_infinity_are_reported(ours: Kernels, dtype: torch.dtype, value: float) -> None:
    x = torch.full((37, 48), 3e38).to(dtype)  # large, but finite
    x[5, 0] = x[36, 47] = value
    for factors in ((torch.ones(48), torch.zeros(48)), (None, None)):
        _, broken = ours.quantize(x, *factors, 128.5)
        assert broken is not None
        assert broken.nonzero().flatten().tolist() == [5, 36]


def test_gradients_are_computed_by_torch() -> None:
    network = network_of(random_model(0, num_attention_heads=4, hidden_size=64))
    assert network.ops.kernels is not None
    assert network.in_plain_torch().ops.kernels is None
