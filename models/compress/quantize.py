"""Quantizes a float checkpoint to int8: weights and inputs of the layers' products get 8 bits.

Calibration pairs, with and without head masks, run through the float network. The inputs of each layer set
its scales:

- The inputs of query, key, value and of the feed-forward network come from LayerNorm, where a few channels
  can be many times wider than the others. Each channel gets its own midpoint, which is folded into the bias,
  and its own scale, which is folded into the weights' columns. The scale balances the ranges of channel and
  column (SmoothQuant, Xiao et al. 2022, https://arxiv.org/abs/2211.10438). SmoothQuant folds the scale into
  LayerNorm; here LayerNorm's output is also the residual and must not change.
- The inputs of W^O are weighted sums of V, so their scales can be folded into the rows of W^V exactly.
- The output of the activation has one scale and one zero point; the product before it writes it quantized.
  Often one unit of a layer is ten times as large as all others, on the first token alone, and with its range
  the others' values would be rounded to a few steps. So such a unit gets copies, which each take a part of
  its range: each subtracts one part more than the copy before it, and all have the same weights in the next
  map, which adds them up (after "outlier channel splitting", Zhao et al. 2019,
  https://arxiv.org/abs/1901.09504).
  In a gated network it has scales like the other inputs, because it is a product of two floats.
- The share of the range to cover and the balance are those with the least squared error of the product.

Weights have one scale for each output row. Embeddings, LayerNorm, softmax, residuals, pooler and classifier
stay in floats.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headroom.models.arrays import Floats32
from headroom.models.batch import pack
from headroom.models.checkpoint.config import (
    INT8_FORMAT,
    QUANTIZATION_CONFIG,
    ModelConfig,
    check_holds_floats,
    read_config,
    read_raw,
    read_stored_masks,
)
from headroom.models.checkpoint.fields import read_json
from headroom.models.checkpoint.files import check_empty
from headroom.models.checkpoint.shapes import layer_prefix
from headroom.models.checkpoint.tensors import TensorDict, read_tensors
from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.compress.prune import write_checkpoint
from headroom.models.errors import ModelError
from headroom.models.layer import Layer
from headroom.models.masks.head_mask import HeadMask
from headroom.models.networks import build
from headroom.models.ops.int8_products import ZERO_POINT, QuantizedMap
from headroom.models.ops.kernels import SIZE_MULTIPLE
from headroom.models.ops.torch import FUNCTIONS, Linear, Norm
from headroom.models.selection import Chosen

TOKENS = 8_192
"""Calibration tokens: about 300 query–title pairs."""

SEARCHED = 1_024
"""Tokens that the search for the best scales looks at. Ranges are those of all tokens."""

COVERED = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
"""Shares of the range around the midpoint that the scales may cover; values beyond are clamped."""

SPLIT = (0.3, 0.25, 0.2, 0.16, 0.13, 0.1, 0.08, 0.06)
"""Smaller shares, with which copies of units hold the values beyond."""

COPIES = 48
"""A layer may get one copy of a unit for this many units that it has, rounded up to a multiple of
SIZE_MULTIPLE, because a narrow layer has units that are as large."""

BALANCE = (0.0, 0.25, 0.5, 0.75, 1.0)
"""A channel's scale follows its own range (1), the inverse of its weights' range (0), or a mix: SmoothQuant's
exponents 1 − α and α. One scale for all channels is tried too."""


def quantize(
    source: Path,
    target: Path,
    pairs: Sequence[EncodedPair],
    advance: Callable[[int], None] = lambda _: None,
    config: ModelConfig | None = None,
) -> ModelConfig:
    """Write the int8 form of the checkpoint in `source` to the directory `target`.

    pairs: calibration pairs of that checkpoint's tokenizer, at least one; the first TOKENS tokens are used.
    advance: called with how many more layers are done. config: of the source, if its labels are in another
    order than config.json says. Returns the new configuration.
    Raises ModelError if `target` is not empty or `source` is int8 already.
    """
    config = config or read_config(source)
    check_holds_floats(source, config)
    check_empty(target)
    if not pairs:
        raise ModelError("calibration needs at least one pair")
    tensors = {name: tensor.clone() for name, tensor in read_tensors(source, config).items()}
    quantized = dict(tensors)
    units: list[Tensor] = []
    tokens = np.cumsum([len(pair) for pair in pairs])
    with torch.inference_mode():
        for of_layer, layer_units in calibrate(
            config, tensors, pairs[: int(tokens.searchsorted(TOKENS)) + 1]
        ):
            quantized.update(of_layer)
            units.append(layer_units)
            advance(1)
    masks = read_stored_masks(source, config)
    ours = (read_raw(source).get("headroom") or {}) | {"quantization": {"format": INT8_FORMAT}}
    fields = {"quantization_config": QUANTIZATION_CONFIG, "headroom": ours}
    widths = tuple(map(len, units))
    config = replace(config, intermediate_size=max(widths), widths=widths)
    config = write_checkpoint(source, target, quantized, config, **fields)
    if (source / "masks").is_dir():
        shutil.copytree(source / "masks", target / "masks")
        _widen_masks(target / "masks", masks, units)
    return config


def _widen_masks(directory: Path, masks: Mapping[str, HeadMask], units: Sequence[Tensor]) -> None:
    """Write the masks that switch units off again, for layers with copies of units."""
    for name, mask in masks.items():
        if mask.units_off is not None:
            file = directory / f"{name}.json"
            widened = with_copies(mask, units)
            new = {"mask": widened.to_json(), "spec": widened.spec, "id": widened.id}
            stored = read_json(file) | new
            file.write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")


def with_copies(mask: HeadMask, units: Sequence[Tensor]) -> HeadMask:
    """Return a mask that has units off, and with each one its copies.

    units: of each layer, those of its `ActivationScale`.
    """
    assert mask.units_off is not None
    off = np.zeros((len(units), max(map(len, units))), np.bool_)
    for layer, of_layer in enumerate(units):
        off[layer, : len(of_layer)] = mask.units_off[layer, of_layer.numpy()]
    return HeadMask(mask.matrix, mask.skipped, off)


def calibrate(
    config: ModelConfig, tensors: TensorDict, pairs: Sequence[EncodedPair]
) -> Iterator[tuple[TensorDict, Tensor]]:
    """Yield each layer's int8 tensors, fitted to the inputs that reach the layer in the float network, and
    its units (`ActivationScale.units`)."""
    cpu = torch.device("cpu")
    network = build(config, tensors, device=cpu, dtype=torch.float32)
    batch = pack(pairs, device=cpu, fill=False)
    masks = torch.from_numpy(head_weights(config, batch.rows))
    inputs: TensorDict = {}
    network.layers = [_recording(layer, inputs) for layer in network.layers]
    kept = [list(heads) for heads in config.kept_heads]
    selection = [
        Chosen(layer.heads, layer.units, masks[:, number, kept[number]])
        for number, layer in enumerate(network.layers)
    ]
    hidden_states = network.hidden_states(batch, selection, every_token=True)
    next(hidden_states)  # what enters the first layer
    for number, _ in enumerate(hidden_states):
        prefix = layer_prefix(number)
        if kept[number]:
            shared = config.key_heads(kept[number])
            quantized = _attention(tensors, prefix, inputs["attention"], inputs["output"], shared)
        else:
            quantized = _no_attention(tensors, prefix, config.hidden_size)
        feed_forward, units = _feed_forward(tensors, prefix, inputs["feed-forward"], config)
        yield quantized | feed_forward, units


class _Recording(Linear):
    """A map that puts what it is given into `inputs`."""

    def __init__(self, whole: Linear, inputs: TensorDict, name: str) -> None:
        self._whole = whole
        self._inputs = inputs
        self._name = name

    def __call__(self, x: Tensor) -> Tensor:
        self._inputs[self._name] = x.clone()  # it may be the residual, which is overwritten
        return self._whole(x)

    def add_norm(self, x: Tensor, residual: Tensor, norm: Norm | None) -> Tensor:
        self._inputs[self._name] = x
        return self._whole.add_norm(x, residual, norm)


def _recording(layer: Layer, inputs: TensorDict) -> Layer:
    """Return a layer that records the inputs of attention, output map and feed-forward network."""
    units = replace(layer.units, up=_Recording(layer.units.up, inputs, "feed-forward"))
    heads = layer.heads
    if heads is not None:
        heads = replace(
            heads,
            query_key_value=_Recording(heads.query_key_value, inputs, "attention"),
            output=_Recording(heads.output, inputs, "output"),
        )
    return replace(layer, heads=heads, units=units)


def head_weights(config: ModelConfig, rows: int) -> Floats32:
    """Return the masks of the calibration pairs, (rows, layers, heads).

    Half of the rows keep all heads. The others lose a fifth of the heads, any share of them, or all heads of
    half of the layers, drawn at random. Without such rows the scales would be too small for the values that
    layers receive when heads are off.
    """
    rng = np.random.default_rng(0)
    shape = (config.num_layers, config.num_heads)
    weights = np.ones((rows, *shape), np.float32)
    for row in range(1, rows, 2):
        kind = row // 2 % 3
        if kind == 2:
            weights[row] = rng.random((config.num_layers, 1)) >= 0.5
        else:
            weights[row] = rng.random(shape) >= (0.2 if kind == 0 else rng.random())
    return weights


def _attention(
    tensors: TensorDict, prefix: str, x: Tensor, joined: Tensor, shared: Sequence[int]
) -> TensorDict:
    """Return the tensors of a layer's attention. shared: the head of values that each head reads."""
    source = f"{prefix}attention.self"
    value = f"{source}.value"
    output = f"{prefix}attention.output.dense"
    quantized = _reading(tensors, source, [f"{source}.query", f"{source}.key", value], x)
    weight, bias = _map(tensors, output)
    scale, _ = channel_scales(joined, weight, midpoints=False)
    # Heads that read the same values share the largest of their scales.
    _, value_of_head = torch.unique(torch.tensor(shared), return_inverse=True)
    scale_of_head = scale.view(len(shared), -1)
    scale_of_value = torch.stack(
        [scale_of_head[value_of_head == number].amax(0) for number in range(len(set(shared)))]
    )
    scale = scale_of_value[value_of_head].flatten()
    quantized |= _named(output, quantized_map(weight, bias, scale))
    weight, bias = _map(tensors, value)
    integers = quantized_map(
        weight / scale_of_value.view(-1, 1),
        bias / scale_of_value.flatten(),
        quantized[f"{source}.input_scale"],
        quantized[f"{source}.input_offset"],
    )
    return quantized | _named(value, integers)


def _no_attention(tensors: TensorDict, prefix: str, hidden: int) -> TensorDict:
    """Return the tensors of a layer whose heads are all pruned: empty weights, and the bias of W^O."""
    quantized = {
        f"{prefix}attention.self.input_scale": torch.ones(hidden),
        f"{prefix}attention.self.input_offset": torch.zeros(hidden),
    }
    for name in ("self.query", "self.key", "self.value", "output.dense"):
        weight, bias = _map(tensors, f"{prefix}attention.{name}")
        empty = QuantizedMap(weight.to(torch.int8), torch.ones(len(weight)), bias)
        quantized |= _named(f"{prefix}attention.{name}", empty)
    return quantized


def _feed_forward(
    tensors: TensorDict, prefix: str, x: Tensor, config: ModelConfig
) -> tuple[TensorDict, Tensor]:
    """Return the tensors of a layer's feed-forward network, and its units. x: its inputs,
    (T, D)."""
    up = f"{prefix}intermediate.dense"
    gate = f"{prefix}gate.dense"
    down = f"{prefix}output.dense"
    activation = FUNCTIONS[config.activation]
    sums = F.linear(x, *_map(tensors, up))
    if config.gated:
        gated = activation(sums) * F.linear(x, *_map(tensors, gate))
        quantized = _reading(tensors, up, [up, gate], x) | _reading(tensors, down, [down], gated)
        return quantized, torch.arange(gated.shape[1])
    weight, bias = _map(tensors, down)
    inner = activation_scale(sums, activation, weight)
    up_weight, up_bias = _map(tensors, up)
    widened = {f"{up}.weight": up_weight[inner.units], f"{up}.bias": up_bias[inner.units] - inner.shifts}
    return {
        **_reading(widened, up, [up], x),
        **_named(down, quantized_map(weight[:, inner.units], bias)),
        f"{down}.input_scale": torch.tensor(inner.scale),
        f"{down}.input_zero_point": torch.tensor(inner.zero_point, dtype=torch.uint8),
    }, inner.units


def _reading(tensors: TensorDict, source: str, names: list[str], x: Tensor) -> TensorDict:
    """Return the tensors of maps that read one input, x, whose scales stand under the name `source`."""
    maps = [_map(tensors, name) for name in names]
    scale, offset = channel_scales(x, torch.cat([weight for weight, _ in maps]))
    quantized = {f"{source}.input_scale": scale, f"{source}.input_offset": offset}
    for name, (weight, bias) in zip(names, maps, strict=True):
        quantized |= _named(name, quantized_map(weight, bias, scale, offset))
    return quantized


def _map(tensors: TensorDict, name: str) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a map, float32."""
    return tensors[f"{name}.weight"].float(), tensors[f"{name}.bias"].float()


def _named(name: str, integers: QuantizedMap) -> TensorDict:
    return {f"{name}.{part}": tensor for part, tensor in integers._asdict().items()}


def quantized_map(
    weight: Tensor, bias: Tensor, input_scale: Tensor | None = None, input_offset: Tensor | None = None
) -> QuantizedMap:
    """Return the int8 form of x·weightᵀ + bias for inputs x ≈ input_scale·(q − 128) + input_offset.

    weight: (out, in) float32; bias: (out,); input_scale, input_offset: (in,) float32, None: 1 and 0.
    """
    if input_offset is not None:
        bias = bias + weight @ input_offset
    if input_scale is not None:
        weight = weight * input_scale
    scale = (weight.abs().amax(1) / 127).clamp_(min=1e-12)
    return QuantizedMap(torch.round(weight / scale[:, None]).clamp_(-127, 127).to(torch.int8), scale, bias)


def channel_scales(x: Tensor, weight: Tensor, *, midpoints: bool = True) -> tuple[Tensor, Tensor]:
    """Return the scale and midpoint of each input channel with the least error of x·weightᵀ in 8 bits.

    x: (T, in) float32, weight: (out, in). midpoints: False keeps them at 0. Returns two of (in,) float32.
    """
    high = x.amax(0)
    low = x.amin(0)
    offset = (high + low) / 2 if midpoints else torch.zeros_like(high)
    reach = torch.maximum(high - offset, offset - low).clamp_(min=1e-6)
    columns = weight.abs().amax(0).clamp_(min=1e-6)
    centred = _sample(x) - offset
    exact = centred @ weight.T

    def error(scale: Tensor) -> float:
        quantized = torch.round(centred / scale).clamp_(-ZERO_POINT, ZERO_POINT - 1)
        return _error(quantized, quantized_map(weight, torch.zeros(len(weight)), scale), exact)

    shapes = [torch.ones_like(reach), *(reach**share / columns ** (1 - share) for share in BALANCE)]
    best = min((shape * ((reach / shape).amax() / (ZERO_POINT - 1)) for shape in shapes), key=error)
    return min((best * share for share in COVERED), key=error), offset


class ActivationScale(NamedTuple):
    """How the output of an activation is quantized, and the units that have it.

    scale, zero_point: a number x becomes round(x / scale) + zero_point.
    units: (n,) int64, the unit of the float network that each one is, or is a copy of; copies come last.
    shifts: (n,) float32, what each one subtracts before the activation;
    0 but for copies.
    """

    scale: float
    zero_point: int
    units: Tensor
    shifts: Tensor


def activation_scale(sums: Tensor, activation: Callable[[Tensor], Tensor], weight: Tensor) -> ActivationScale:
    """Return the quantization of activation(sums) with the least error of activation(sums)·weightᵀ in 8 bits.

    sums: (T, units) float32; weight: (out, units).
    """
    inner = activation(sums)
    lowest = min(float(inner.min()), 0.0)
    highest = inner.amax(0).clamp_(min=1e-6)  # of each unit
    sample = _sample(sums)
    exact = activation(sample) @ weight.T
    rounded = quantized_map(weight, torch.zeros(len(weight)))

    def error(choice: ActivationScale) -> float:
        inner = activation(sample[:, choice.units] - choice.shifts)
        quantized = torch.round(inner / choice.scale + choice.zero_point).clamp_(0, 255)
        integers = rounded._replace(weight=rounded.weight[:, choice.units])
        return _error(quantized.sub_(choice.zero_point), integers, exact, choice.scale)

    return min(_choices(lowest, highest), key=error)


def _choices(lowest: float, highest: Tensor) -> Iterator[ActivationScale]:
    """Yield each share of the range without copies and, if they suffice, with copies for the rest.

    lowest: of all values, at most 0. highest: of each unit, (units,).
    """
    units = torch.arange(len(highest))
    shifts = torch.zeros(len(highest))
    copies = math.ceil(len(highest) / COPIES / SIZE_MULTIPLE) * SIZE_MULTIPLE
    for share in (*COVERED, *SPLIT):
        scale = (float(highest.max()) * share - lowest) / 255
        zero_point = round(-lowest / scale)
        yield ActivationScale(scale, zero_point, units, shifts)
        covered = (255 - zero_point) * scale
        if covered == 0:  # no unit is far above 0, so there is nothing to take parts of
            continue
        wanted = (highest / covered).ceil().long() - 1  # copies of each unit
        spare = copies - int(wanted.sum())
        if spare >= 0:
            wanted[highest.argmax()] += spare
            copied = units.repeat_interleave(wanted)
            nth = torch.arange(copies) - (wanted.cumsum(0) - wanted)[copied] + 1
            yield ActivationScale(
                scale, zero_point, torch.cat([units, copied]), torch.cat([shifts, nth * covered])
            )


def _error(quantized: Tensor, rounded: QuantizedMap, exact: Tensor, scale: float = 1.0) -> float:
    """Return the mean squared error of an int8 product.

    quantized: (T, in), the inputs minus their zero point; exact: (T, out), the product in floats.
    """
    product = F.linear(quantized, rounded.weight.float()).mul_(rounded.weight_scale * scale)
    return float(product.sub_(exact).square_().mean())


def _sample(x: Tensor) -> Tensor:
    """Return about SEARCHED of the rows, evenly spread."""
    return x[:: -(-x.shape[0] // SEARCHED)]
