"""A network's weights, laid out for one device part by part, and read back under their names."""

import math
from abc import ABC
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from headroom.models.checkpoint.config import ModelConfig, Rope
from headroom.models.checkpoint.shapes import expected_shapes, layer_prefix, stored_shapes
from headroom.models.checkpoint.tensor_names import PROJECTIONS
from headroom.models.checkpoint.tensors import TensorDict
from headroom.models.layer import AttentionHeads, FeedForward, Layer
from headroom.models.masks.head_mask import HeadMask
from headroom.models.ops import int8
from headroom.models.ops.causal import Causal
from headroom.models.ops.positions import PLAIN_POSITIONS, Positions, rotations
from headroom.models.ops.torch import Linear, Norm, Tensors, TorchOps

P = TypeVar("P", Linear, Norm, Tensor)


class Weights(ABC):
    """The weights of a network: `layers`, and parts that are remembered under their names."""

    layers: Sequence[Layer]

    def __init__(self, config: ModelConfig, ops: TorchOps) -> None:
        self.config = config
        self.ops = ops
        self._parts: dict[str, Linear | Norm | Tensor] = {}
        self.rotations = {rope: _rotation(rope, config, ops.device) for rope in set(config.ropes)}

    def part(self, name: str, part: P) -> P:
        """Remember a part outside the attention under its name, for `tensors`."""
        self._parts[name] = part
        return part

    def table(self, tensors: Tensors, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Lay out a tensor. dtype: default: the layers'."""
        return self.part(name, self.ops.get(tensors, name, dtype))

    def norm(self, tensors: Tensors, name: str, dtype: torch.dtype | None = None) -> Norm:
        """Lay out a layer normalisation. dtype: of its input; default: the layers'."""
        weight, bias = (self.ops.get(tensors, f"{name}.{part}", dtype) for part in ("weight", "bias"))
        make = self.ops.norm if dtype in (None, self.ops.dtype) else Norm
        return self.part(name, make(weight, bias, self.config.layer_norm_eps))

    def linear(self, tensors: Tensors, name: str, dtype: torch.dtype | None = None) -> Linear:
        """Lay out an affine map outside the layers. dtype: of its input; default: the layers'."""
        weight, bias = (self.ops.get(tensors, f"{name}.{part}", dtype) for part in ("weight", "bias"))
        return self.part(name, self.ops.linear(weight, bias))

    def map(
        self,
        tensors: Tensors,
        *names: str,
        activation: str = "none",
        reads: str | None = None,
        feeds: str | None = None,
    ) -> Linear:
        """Lay out an affine map of a layer; several maps of one input become one, one below the other.

        reads, feeds: the names under which an int8 checkpoint says how the map's input is quantized (default:
        the map's own name) and how its output is (default: it is not quantized).
        """
        if self.config.int8:
            return int8.read_map(
                tensors,
                names,
                reads=reads or names[0],
                feeds=feeds,
                activation=activation,
                dtype=self.ops.dtype,
                kernels=self.ops.kernels,
            )
        weight, bias = (
            torch.cat([self.ops.get(tensors, f"{name}.{part}") for name in names])
            for part in ("weight", "bias")
        )
        return self.ops.linear(weight, bias, activation)

    def positions(self, number: int, projection: Linear) -> Positions | Causal:  # noqa: ARG002
        """Return how a layer's heads see positions. projection: of its queries, keys and values."""
        config = self.config
        if not config.ropes:
            return PLAIN_POSITIONS
        window = config.windows[number] if config.windows else None
        return Positions(self.rotations[config.ropes[number]], window)

    def heads(self, tensors: Tensors, number: int) -> AttentionHeads | None:
        """Lay out the heads of a layer; None if pruning left none."""
        kept = len(self.config.kept_heads[number])
        if not kept:
            return None
        prefix = layer_prefix(number)
        projections = [f"{prefix}{name}" for name in PROJECTIONS]
        projected = self.map(tensors, *projections, reads=f"{prefix}attention.self")
        output = self.map(tensors, f"{prefix}attention.output.dense")
        positions = self.positions(number, projected)
        return AttentionHeads(kept, self.config.head_size, projected, output, positions)

    def units(self, tensors: Tensors, number: int) -> FeedForward:
        """Lay out the feed-forward units of a layer."""
        up, gate, down = (
            f"{layer_prefix(number)}{part}.dense" for part in ("intermediate", "gate", "output")
        )
        gated = self.config.gated
        activation = self.config.activation
        return FeedForward(
            up=self.part(up, self.map(tensors, up, activation=activation, feeds=None if gated else down)),
            down=self.part(down, self.map(tensors, down)),
            gate=self.part(gate, self.map(tensors, gate, reads=up)) if gated else None,
        )

    def layer(self, tensors: Tensors, number: int) -> Layer:
        """Lay out a layer, whose norms stand before its halves or after them."""
        config = self.config
        prefix = layer_prefix(number)

        def norm(name: str, *, exists: bool) -> Norm | None:
            return self.norm(tensors, f"{prefix}{name}.LayerNorm") if exists else None

        # What enters ModernBERT's first layer is normalised already.
        reads_normed = config.pre_norm and (number > 0 or config.decoder is not None)
        return Layer(
            heads=self.heads(tensors, number),
            attention_bias=self.ops.get(tensors, f"{prefix}attention.output.dense.bias"),
            units=self.units(tensors, number),
            attention_input_norm=norm("attention", exists=reads_normed),
            attention_norm=norm("attention.output", exists=not config.pre_norm),
            feed_forward_input_norm=norm("intermediate", exists=config.pre_norm),
            feed_forward_norm=norm("output", exists=not config.pre_norm),
        )

    def parameters_off(self, mask: HeadMask) -> int:
        """Return how many weights belong to the heads, units and layers that a mask switches off."""
        whole, smaller = (parameters_of(config) for config in (self.config, self.config.under(mask)))
        return whole - smaller

    def tensors(self) -> TensorDict:
        """Return float32 weights under our names; int8 weights as the floats they stand for."""
        parts = dict(self._parts)
        tensors = {name: torch.zeros(shape) for name, shape in expected_shapes(self.config)}  # pruned away
        for number, layer in enumerate(self.layers):
            prefix = layer_prefix(number)
            parts[f"{prefix}attention.output.dense.bias"] = layer.attention_bias
            if layer.heads is not None:
                parts[f"{prefix}attention.output.dense"] = layer.heads.output
                whole = layer.heads.query_key_value
                widths = self.config.projected(number)
                three = whole.weight.split_with_sizes(widths), whole.bias.split_with_sizes(widths)
                for name, weight, bias in zip(PROJECTIONS, *three, strict=True):
                    parts |= {f"{prefix}{name}.weight": weight, f"{prefix}{name}.bias": bias}
        for name, part in parts.items():
            if isinstance(part, Tensor):
                tensors[name] = part.float()
            else:
                assert part.bias is not None  # no encoder has such norms
                tensors |= {f"{name}.weight": part.weight.float(), f"{name}.bias": part.bias.float()}
        return tensors


def parameters_of(config: ModelConfig) -> int:
    """Return the number of weights of a float checkpoint of this shape."""
    return sum(math.prod(shape) for _, shape in stored_shapes(replace(config, int8=False)))


def parameters_of_layers(config: ModelConfig) -> int:
    """Return the number of weights of its layers, to which the time of a token is about in proportion."""
    layers = layer_prefix(0)[:-2]
    return sum(math.prod(shape) for name, shape in stored_shapes(config) if name.startswith(layers))


def _rotation(rope: Rope, config: ModelConfig, device: torch.device) -> Tensor:
    """Return cosines and sines of the angles, (positions, d) float32, of one kind of layers."""
    size = config.head_size
    divisor = torch.tensor(rope.factor)
    if rope.ramp is not None:
        low, high = rope.ramp
        scaled = ((torch.arange(size // 2, dtype=torch.float32) - low) / (high - low)).clamp_(0, 1)
        divisor = 1 / (scaled / rope.factor + 1 - scaled)
    return rotations(rope.theta, config.max_positions, size, device, divisor) * rope.length
