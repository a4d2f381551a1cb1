"""The families whose network is BERT's: their config.json and their tensors, in BERT's names and back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import activation, positive_float, positive_int
from models.errors import UnsupportedCheckpoint

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor

Shapes = Iterator[tuple[str, tuple[int, ...]]]

_LAYERS = "bert.encoder.layer."
_POSITIONS = "bert.embeddings.position_embeddings.weight"


@dataclass(frozen=True, kw_only=True)
class LikeBert:
    """A family whose network is BERT's.

    encoder: the prefix of the encoder's tensors. names: our prefixes of tensors outside the layers → theirs.
    layer, in_layer: the same for a layer and for the modules in it.
    fields: BERT's names in config.json → theirs.
    embedding_size: the default width of the embeddings, which a linear map widens; None: the layers' width.
    token_types: the fewest that a checkpoint may have; 0: the family has none.
    skips_pad: positions begin at pad_token_id + 1; the rows of the position table before that are dropped.
    head: the activation of the classifier's dense layer.
    layer_norm_eps: LayerNorm's epsilon if config.json has no say in it.
    """

    encoder: str
    names: Mapping[str, str] = field(default_factory=dict)
    layer: str = "encoder.layer."
    in_layer: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    embedding_size: int | None = None
    skips_pad: bool = False
    token_types: int = 2
    head: str = "tanh"
    layer_norm_eps: float | None = None
    network: str = "bert"

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""

        def size(name: str, default: int | None = None) -> int:
            return positive_int(raw, self.fields.get(name, name), default)

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        if hidden % heads:
            raise UnsupportedCheckpoint(
                f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
            )
        skipped = self._skipped(raw)
        positions = size("max_position_embeddings", 512) - skipped
        if positions < 1:
            raise UnsupportedCheckpoint(
                f"config.json: max_position_embeddings is {positions + skipped}; it must be at least "
                f"{skipped + 1}, because positions begin after pad_token_id"
            )
        return ModelConfig(
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            embedding_size=size("embedding_size", self.embedding_size) if self.embedding_size else hidden,
            num_layers=size("num_hidden_layers"),
            num_heads=heads,
            intermediate_size=size("intermediate_size"),
            max_positions=positions,
            skipped_positions=skipped,
            type_vocab_size=self._token_types(raw),
            layer_norm_eps=self.layer_norm_eps
            or positive_float(raw.get("layer_norm_eps", 1e-12), "layer_norm_eps"),
            activation=activation(raw, self.fields.get("hidden_act", "hidden_act")),
            head_activation=self.head,
        )

    def of_layers(self, config: ModelConfig, layers: Sequence[int]) -> ModelConfig:
        """Return the shape of a network of only these layers."""
        return replace(config, num_layers=len(layers))

    def check_removable(self, layers: Collection[int]) -> None:
        """Any layer may go."""

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say how many layers and units there are."""
        sizes = {"num_hidden_layers": config.num_layers, "intermediate_size": config.intermediate_size}
        return {self.fields.get(name, name): size for name, size in sizes.items()}

    def _token_types(self, raw: Mapping[str, Any]) -> int:
        if not self.token_types:
            return 0
        types = positive_int(raw, "type_vocab_size", 2)
        if types < self.token_types:
            raise UnsupportedCheckpoint(
                "config.json: type_vocab_size is 1; a query-title classifier needs two segments"
            )
        return types

    def _skipped(self, raw: Mapping[str, Any]) -> int:
        if not self.skips_pad:
            return 0
        pad = raw.get("pad_token_id", 1)
        if type(pad) is not int or pad < 0:
            raise UnsupportedCheckpoint(
                f"config.json: pad_token_id is {pad!r}; positions begin after it, so it must be ≥ 0"
            )
        return pad + 1

    def expected(self, config: ModelConfig) -> Shapes:
        """Return every float tensor of the network with its shape."""
        hidden, embedded = config.hidden_size, config.embedding_size
        yield "bert.embeddings.word_embeddings.weight", (config.vocab_size, embedded)
        yield "bert.embeddings.position_embeddings.weight", (config.max_positions, embedded)
        if config.type_vocab_size:
            yield "bert.embeddings.token_type_embeddings.weight", (config.type_vocab_size, embedded)
        yield from _norm("bert.embeddings.LayerNorm", embedded)
        if embedded != hidden:
            yield from _linear("bert.embeddings_project", hidden, embedded)
        for number, (kept, inner) in enumerate(zip(config.kept_heads, config.widths, strict=True)):
            prefix, width = layer_prefix(number), len(kept) * config.head_size
            for name in ("query", "key", "value"):
                yield from _linear(f"{prefix}attention.self.{name}", width, hidden)
            yield from _linear(f"{prefix}attention.output.dense", hidden, width)
            yield from _norm(f"{prefix}attention.output.LayerNorm", hidden)
            yield from _linear(f"{prefix}intermediate.dense", inner, hidden)
            yield from _linear(f"{prefix}output.dense", hidden, inner)
            yield from _norm(f"{prefix}output.LayerNorm", hidden)
        yield from _linear("bert.pooler.dense", hidden, hidden)
        yield from _linear("classifier", len(config.labels), hidden)

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors under BERT's names, without positions that no token has."""
        renamed = {our_name: tensor for name, tensor in tensors.items() if (our_name := self._our_name(name))}
        if _POSITIONS in renamed:
            renamed[_POSITIONS] = renamed[_POSITIONS][config.skipped_positions :]
        return renamed

    def theirs(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return tensors under the family's names, with zeros for positions that no token has."""
        renamed = {self.their_name(name): tensor for name, tensor in tensors.items()}
        table = tensors[_POSITIONS]
        whole = table.new_zeros(config.skipped_positions + len(table), table.shape[1])
        whole[config.skipped_positions :] = table
        return renamed | {self.their_name(_POSITIONS): whole}

    def their_name(self, name: str) -> str:
        """Return the family's name of one of our tensors."""
        if name.startswith(_LAYERS):
            number, inner = name.removeprefix(_LAYERS).split(".", 1)
            return f"{self.encoder}{self.layer}{number}.{_replaced(inner, self.in_layer.items()) or inner}"
        inside = name.removeprefix("bert.")
        return _replaced(name, self.names.items()) or (name if inside == name else self.encoder + inside)

    def _our_name(self, name: str) -> str | None:
        """Return our name of a tensor in a checkpoint; None for buffers and the heads of other tasks."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        if name.startswith(("embeddings.", "pooler.", self.layer)):
            name = self.encoder + name
        if name.endswith((".position_ids", ".token_type_ids")):
            return None
        if head := _replaced(name, ((theirs, ours) for ours, theirs in self.names.items())):
            return head
        layers = self.encoder + self.layer
        if name.startswith(layers):
            number, inner = name.removeprefix(layers).split(".", 1)
            ours = _replaced(inner, ((theirs, ours) for ours, theirs in self.in_layer.items()))
            return f"{_LAYERS}{number}.{ours or inner}"
        if name.startswith(self.encoder):
            name = "bert." + name.removeprefix(self.encoder)
        return None if name.startswith(tuple(self.names)) else name


def layer_prefix(layer: int | str) -> str:
    """Return our prefix of a layer's tensor names. layer: its number."""
    return f"{_LAYERS}{layer}."


def _linear(name: str, rows: int, columns: int) -> Shapes:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _norm(name: str, size: int) -> Shapes:
    yield f"{name}.weight", (size,)
    yield f"{name}.bias", (size,)


def _replaced(name: str, prefixes: Iterable[tuple[str, str]]) -> str | None:
    """Return the name with the first prefix that it has replaced; None if it has none of them."""
    for old, new in prefixes:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return None
