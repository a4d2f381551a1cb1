"""The tensors of our networks: their names, which are BERT's own with a few more, and their shapes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.checkpoint.tensor_names import GATES, LAYERS, PROJECTIONS

Shapes = Iterator[tuple[str, tuple[int, ...]]]

POSITIONS = "bert.embeddings.position_embeddings.weight"
DISTANCES = "bert.encoder.rel_embeddings.weight"
"""Our name of DeBERTa's table with two rows for each bucket of `ModelConfig.distances`."""

DISTANCES_NORM = "bert.encoder.LayerNorm"
PRE_NORMS = ("attention.LayerNorm", "intermediate.LayerNorm")
POST_NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
"""The norms in a layer: of what enters its halves, or of what leaves them."""


def layer_prefix(layer: int | str) -> str:
    """Return our prefix of a layer's tensor names. layer: its number."""
    return f"{LAYERS}{layer}."


def expected_shapes(config: ModelConfig) -> Shapes:
    """Return every float tensor of a network with its shape; narrower layers where they are pruned."""
    hidden = config.hidden_size
    embedded = config.embedding_size
    decoder = config.decoder
    yield "bert.embeddings.word_embeddings.weight", (config.vocab_size, embedded)
    if config.absolute_positions:
        yield POSITIONS, (config.max_positions, embedded)
    if config.type_vocab_size:
        yield "bert.embeddings.token_type_embeddings.weight", (config.type_vocab_size, embedded)
    if config.distances is not None:
        yield DISTANCES, (2 * config.distances[0], hidden)
        yield from _both(DISTANCES_NORM, hidden)
    if decoder is None:
        yield from _both("bert.embeddings.LayerNorm", embedded if config.distances is None else hidden)
    if embedded != hidden:
        yield from _both("bert.embeddings_project", hidden, embedded)
    for number in range(config.num_layers):
        prefix = layer_prefix(number)
        yield from _maps(config, number)
        norms = PRE_NORMS if config.pre_norm else POST_NORMS
        is_normed = number == 0 and config.pre_norm and decoder is None  # what enters the first layer
        for name in norms[1:] if is_normed else norms:
            yield from _norm(config, f"{prefix}{name}")
        for name in ("query_norm", "key_norm") if decoder is not None and decoder.head_norms else ():
            yield f"{prefix}attention.self.{name}.weight", (config.head_size,)
    if config.pre_norm:
        yield from _norm(config, "bert.final_norm")
    if decoder is not None:
        yield "classifier.weight", (len(config.labels), hidden)
        return
    yield from _both("bert.pooler.dense", hidden, hidden)
    if config.pre_norm:
        yield from _norm(config, "bert.pooler.LayerNorm")
    yield from _both("classifier", len(config.labels), hidden)


def stored_shapes(config: ModelConfig) -> Shapes:
    """Return those of `expected_shapes` that a checkpoint holds; the others are zeros."""
    return ((name, shape) for name, shape in expected_shapes(config) if config.is_stored(name))


def int8_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    """Return the tensors, with shape and dtype, in which an int8 checkpoint differs from a float one.

    Each product of a layer means y = s·(q − z)·W'ᵀ + b' for its input x, quantized to q from 0 to 255.
        weight W' (out, in) int8; weight_scale s (out,) float32, the value of one unit of the row's sum;
        bias b' (out,), which includes the effect of the input's offset
        query, key and value, which share attention.self's input, and intermediate.dense, which gate.dense
            reads too: x ≈ input_scale·(q − 128) + input_offset, z = 128, each (in,) float32 (the scales are
            folded into W', the offsets into b'); so does output.dense of a gated network
        attention.output.dense: x ≈ q − 128, z = 128; its scales are folded into the rows of value, because
            softmax and head weights do not change them
        output.dense: x ≈ input_scale·(q − z), and y is multiplied by input_scale () float32;
            z = input_zero_point () uint8
    """
    for number in range(config.num_layers):
        prefix = layer_prefix(number)
        for name, shape in _maps(config, number):
            if name.endswith(".weight"):
                yield name, (shape, "int8")
                yield f"{name}_scale", (shape[:1], "float32")
        inputs = {"attention.self": config.hidden_size, "intermediate.dense": config.hidden_size}
        if config.gated:
            inputs["output.dense"] = config.widths[number]
        for name, columns in inputs.items():
            yield f"{prefix}{name}.input_scale", ((columns,), "float32")
            yield f"{prefix}{name}.input_offset", ((columns,), "float32")
        if not config.gated:
            yield f"{prefix}output.dense.input_scale", ((), "float32")
            yield f"{prefix}output.dense.input_zero_point", ((), "uint8")


def _maps(config: ModelConfig, number: int) -> Shapes:
    """Return weight and bias of each affine map of a layer."""
    prefix = layer_prefix(number)
    hidden = config.hidden_size
    inner = config.widths[number]
    widths = config.projected(number)
    for name, width in zip(PROJECTIONS, widths, strict=True):
        yield from _both(f"{prefix}{name}", width, hidden)
    yield from _both(f"{prefix}attention.output.dense", hidden, widths[0])
    for name in GATES if config.gated else GATES[:1]:
        yield from _both(f"{prefix}{name}", inner, hidden)
    yield from _both(f"{prefix}output.dense", hidden, inner)


def _norm(config: ModelConfig, name: str) -> Shapes:
    """Return the parts of a normalisation; decoders' have no bias."""
    parts = _both(name, config.hidden_size)
    return parts if config.decoder is None else islice(parts, 1)


def _both(name: str, *shape: int) -> Shapes:
    """Return the weight and the bias of a map, (rows, columns), or of a norm, (size,)."""
    yield f"{name}.weight", shape
    yield f"{name}.bias", shape[:1]
