"""Model families: what a config.json says of a network of ours, and how its checkpoint names our tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import activation, need, positive_float, positive_int
from models.checkpoint.shapes import GATES, LAYERS, POSITIONS, expected_shapes, int8_shapes
from models.errors import ModelError

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor

Reader: TypeAlias = Callable[[Mapping[str, Any], ModelConfig], ModelConfig]

_DEFAULTS: dict[str, Any] = {
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_act": "gelu",
}
_ENCODERS = {"is_decoder": False, "add_cross_attention": False}
"""Fields of which transformers would make another network of an encoder's config.json."""

_UNREAD = (".position_ids", ".token_type_ids", ".position_embeddings.weight")
"""Ends of the names of tensors that some checkpoints hold and their networks do not read."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model family, as the rest of the program sees it.

    encoder: the prefix of the encoder's tensors. names: our prefixes of tensors outside the layers → theirs.
    layer, in_layer: the same for a layer and for the modules in it; the first prefix that fits counts.
    Several of our tensors may have one name in the checkpoint, which then holds them one below the other.
    gate_first: so do the weights of the map without activation, above those of the map with it.
    network: names its network class, in `models.networks`.

    fields: BERT's names of fields of config.json → theirs. defaults: by BERT's names, of fields that may be
    missing; embedding_size (None: the layers' width) is read if it is among them.
    fixed: the fields that may have no other value.
    token_types: the fewest that a checkpoint may have; None: the network has none.
    skips_pad: positions begin at pad_token_id + 1; the rows of the position table before that are dropped.
    heads_share: the layers' width is a multiple of so many times the heads; 0: heads have their own width.
    head: the activation of the classifier's dense layer.
    reads: adds to a shape what only this family's config.json says. Raises UnsupportedCheckpoint.
    writes: returns its own fields of a config.json that pruning changes.

    in_transformers: transformers has the network; otherwise checkpoints bring code, which is never run.
    default_labels: how many a config.json has that does not say it.
    keeps_first_layer: the first layer, and no other, has no norm before its attention, so it must stay.
    """

    encoder: str
    names: Mapping[str, str] = field(default_factory=dict)
    layer: str = "encoder.layer."
    in_layer: Mapping[str, str] = field(default_factory=dict)
    gate_first: bool = False
    network: str = "bert"
    fields: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=lambda: {"position_embedding_type": "absolute"})
    token_types: int | None = 2
    skips_pad: bool = False
    heads_share: int = 1
    head: str = "tanh"
    reads: Reader = lambda _, shape: shape
    writes: Callable[[ModelConfig], dict[str, Any]] = lambda _: {}
    in_transformers: bool = True
    default_labels: int = 2
    keeps_first_layer: bool = False

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the shape of the network that a config.json describes; `parse_config` adds the rest.

        Raises UnsupportedCheckpoint for what the network would not compute exactly.
        """
        for name, value in (_ENCODERS | self.fixed).items():
            need(raw.get(name) in (None, value), name, raw.get(name), f"only {value!r} is supported")
        defaults = {**_DEFAULTS, **self.defaults}

        def size(name: str) -> int:
            return positive_int(raw, self.fields.get(name, name), defaults.get(name))

        hidden, heads, positions = map(
            size, ("hidden_size", "num_attention_heads", "max_position_embeddings")
        )
        is_right = not self.heads_share or hidden % (self.heads_share * heads) == 0
        multiple = "an even multiple" if self.heads_share == 2 else "a multiple"
        need(is_right, "hidden_size", hidden, f"it must be {multiple} of num_attention_heads {heads}")
        embedded = hidden
        if "embedding_size" in self.defaults:
            embedded = positive_int(raw, "embedding_size", self.defaults["embedding_size"] or hidden)
        skipped = self._skipped(raw)
        wanted = f"it must be at least {skipped + 1}, because positions begin after pad_token_id"
        need(positions > skipped, "max_position_embeddings", positions, wanted)
        types = 0
        if self.token_types is not None and raw.get("type_vocab_size", defaults["type_vocab_size"]):
            types = size("type_vocab_size")
        wanted = "a query-title classifier needs two segments"
        need(types >= (self.token_types or 0), "type_vocab_size", types, wanted)
        epsilon = self.fields.get("layer_norm_eps", "layer_norm_eps")
        hidden_act = self.fields.get("hidden_act", "hidden_act")
        shape = ModelConfig(
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            embedding_size=embedded,
            num_layers=size("num_hidden_layers"),
            num_heads=heads,
            intermediate_size=size("intermediate_size"),
            max_positions=positions - skipped,
            skipped_positions=skipped,
            type_vocab_size=types,
            layer_norm_eps=positive_float(raw.get(epsilon, defaults["layer_norm_eps"]), epsilon),
            activation=activation(raw, hidden_act, defaults["hidden_act"]),
            head_activation=self.head,
        )
        return self.reads(raw, shape)

    def _skipped(self, raw: Mapping[str, Any]) -> int:
        if not self.skips_pad:
            return 0
        pad = raw.get("pad_token_id", 1)
        is_right = type(pad) is int and pad >= 0
        need(is_right, "pad_token_id", pad, "positions begin after it, so it must be ≥ 0")
        return int(pad) + 1

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say which layers there are, and how many units they have."""
        sizes = {"num_hidden_layers": config.num_layers, "intermediate_size": config.intermediate_size}
        return {self.fields.get(name, name): size for name, size in sizes.items()} | self.writes(config)

    def check_removable(self, layers: Collection[int]) -> None:
        """Raise ModelError if the family's checkpoints cannot say that these layers are gone."""
        if self.keeps_first_layer and 0 in layers:
            raise ModelError(
                f"layer 0 of a {self.network} cannot be removed: the layer after it has a norm of its own, "
                "which the format does not allow in the first place"
            )

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors as our network takes them, with zeros for biases that it lacks.

        Names that are older, or a bare encoder's, are read too. Heads of other tasks are left out. Tensors of
        the encoder that the network does not have keep their names, for `read_tensors` to refuse them.
        """
        import torch

        stored = self._stored(config)
        there: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
            new = new.replace("LayerNorm.beta", "LayerNorm.bias")
            there[self.encoder + new if self.encoder + new in stored else new] = tensor
        found: dict[str, Tensor] = {}
        for name, several in stored.items():
            if (whole := there.pop(name, None)) is not None:
                parts = whole.chunk(len(several)) if len(several) > 1 else (whole,)
                found |= dict(zip(several, parts, strict=False))
        if POSITIONS in found:
            found[POSITIONS] = found[POSITIONS][config.skipped_positions :]
        lacking = {name: shape for name, shape in expected_shapes(config) if not config.is_stored(name)}
        found |= {name: torch.zeros(shape) for name, shape in lacking.items()}
        unknown = set(map(self.their_name, lacking)) | set(filter(self._is_of_encoder, there))
        return found | {name: there[name] for name in unknown & there.keys()}

    def theirs(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return our network's tensors as the family's checkpoints hold them."""
        import torch

        ours = dict(tensors)
        if config.skipped_positions:
            table = ours[POSITIONS]
            unused = table.new_zeros(config.skipped_positions, table.shape[1])  # no token has these positions
            ours[POSITIONS] = torch.cat([unused, table])
        return {
            name: torch.cat([ours[one] for one in several]) if len(several) > 1 else ours[several[0]]
            for name, several in self._stored(config).items()
        }

    def their_name(self, name: str) -> str:
        """Return the name of one of our tensors in a checkpoint."""
        if name.startswith(LAYERS):
            number, inner = name.removeprefix(LAYERS).split(".", 1)
            return f"{self.encoder}{self.layer}{number}.{_replaced(inner, self.in_layer) or inner}"
        inside = name.removeprefix("bert.")
        return _replaced(name, self.names) or (name if inside == name else self.encoder + inside)

    def _stored(self, config: ModelConfig) -> dict[str, list[str]]:
        """Return our names of the tensors that a checkpoint holds, by its own name."""
        ours = [name for name, _ in expected_shapes(config) if config.is_stored(name)]
        if self.gate_first:
            ours.sort(key=lambda name: f".{GATES[0]}." in name)
        if config.int8:
            ours += (name for name, _ in int8_shapes(config))
        names: dict[str, list[str]] = {}
        for name in dict.fromkeys(ours):
            names.setdefault(self.their_name(name), []).append(name)
        return names

    def _is_of_encoder(self, name: str) -> bool:
        """Return whether a tensor is part of the encoder; buffers, and a pooler that is not read, are not."""
        is_unread = name.endswith(_UNREAD) or name.startswith(f"{self.encoder}pooler.")
        return name.startswith((self.encoder, self.layer, "embeddings.")) and not is_unread


def _replaced(name: str, prefixes: Mapping[str, str]) -> str | None:
    """Return the name with the first prefix that it has replaced; None if it has none of them."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return None
