"""Model families: what a config.json says of a network of ours, and how its checkpoint names our tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from headroom.models.checkpoint.fields import Fields, activation, choice, need, positive_float, positive_int
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.checkpoint.shapes import POSITIONS, expected_shapes, int8_shapes, stored_shapes
from headroom.models.checkpoint.tensor_names import GATES, LAYERS
from headroom.models.files import Json

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor

Reader: TypeAlias = Callable[[Fields, ModelConfig], ModelConfig]

_DEFAULTS: Json = {
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

    Names and fields are given by BERT's own. Prefixes of tensors' names map to theirs, and the first one that
    fits counts. Several of our tensors may have one name in the checkpoint, which then holds them one below
    the other.
    """

    encoder: str  # the prefix of the encoder's tensors
    names: Mapping[str, str] = field(default_factory=dict)  # of tensors outside the layers
    layer: str = "encoder.layer."
    in_layer: Mapping[str, str] = field(default_factory=dict)  # of the modules in a layer
    gate_first: bool = False  # the map without activation stands above the one with it
    network: str = "bert"  # names its network class, in `headroom.models.networks`
    fields: Mapping[str, str] = field(default_factory=dict)  # of config.json
    defaults: Fields = field(default_factory=dict)  # of fields that may be missing
    fixed: Json = field(default_factory=lambda: {"position_embedding_type": "absolute"})
    token_types: int | None = 2  # the fewest that a checkpoint may have; None: the network has none
    skips_pad: bool = False  # positions begin at pad_token_id + 1; earlier rows of their table are dropped
    head: str = "tanh"  # the activation of the classifier's dense layer
    reads: Reader = lambda _, shape: shape  # adds what only this family's config.json says, or refuses it
    writes: Callable[[ModelConfig], Json] = lambda _: {}  # its own fields that pruning changes
    in_transformers: bool = True  # otherwise checkpoints bring code, which is never run
    default_labels: int = 2  # of a config.json that does not say how many
    keeps_first_layer: bool = False  # which alone has no norm before its attention, so it must stay

    def shape(self, raw: Fields) -> ModelConfig:
        """Return the shape of the network that a config.json describes; `parse_config` adds the rest. Raises
        UnsupportedCheckpoint for what the network would not compute exactly."""
        for name, value in (_ENCODERS | self.fixed).items():
            choice(raw, name, (None, value))
        called = dict(self.fields)
        defaults = {**_DEFAULTS, **self.defaults}

        def size(name: str, maximum: int = 100_000_000) -> int:
            return positive_int(raw, called.get(name, name), defaults.get(name), maximum)

        hidden = size("hidden_size")
        positions = size("max_position_embeddings", 131_072)
        skipped = raw.get("pad_token_id", 1) + 1 if self.skips_pad else 0
        types = 0
        if self.token_types is not None and raw.get("type_vocab_size", 2):
            types = size("type_vocab_size")
        is_right = types >= (self.token_types or 0)
        need(is_right, "type_vocab_size", types, "a query-title classifier needs two segments")
        epsilon, inner = (called.get(name, name) for name in ("layer_norm_eps", "hidden_act"))
        shape = ModelConfig(
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            embedding_size=positive_int(raw, "embedding_size", defaults.get("embedding_size", hidden)),
            num_layers=size("num_hidden_layers", 1_000),
            num_heads=size("num_attention_heads", 1_000),
            intermediate_size=size("intermediate_size"),
            max_positions=positions - skipped,
            skipped_positions=skipped,
            type_vocab_size=types,
            layer_norm_eps=positive_float(raw.get(epsilon, defaults["layer_norm_eps"]), epsilon),
            activation=activation(raw, inner, defaults["hidden_act"]),
            head_activation=self.head,
        )
        return self.reads(raw, shape)

    def fields_of(self, config: ModelConfig) -> Json:
        """Return the fields of config.json that say which layers there are, and how many units they have."""
        sizes = {"num_hidden_layers": config.num_layers, "intermediate_size": config.intermediate_size}
        return {self.fields.get(name, name): size for name, size in sizes.items()} | self.writes(config)

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors as our network takes them, with zeros for biases that it lacks.

        Names that are older, or a bare encoder's, are read too. Heads of other tasks are left out. Tensors of
        the encoder that the network does not have keep their names, for `read_tensors` to refuse them.
        """
        import torch

        stored = self._stored(config)
        theirs: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            new = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("Norm.beta", "Norm.bias")
            prefixed = self.encoder + new
            theirs[prefixed if prefixed in stored else new] = tensor
        ours: dict[str, Tensor] = {}
        for name, our_names in stored.items():
            whole = theirs.pop(name, None)
            if whole is not None:
                parts = whole.chunk(len(our_names)) if len(our_names) > 1 else (whole,)
                ours |= dict(zip(our_names, parts, strict=False))
        if POSITIONS in ours:
            ours[POSITIONS] = ours[POSITIONS][config.skipped_positions :]
        lacking = {name: shape for name, shape in expected_shapes(config) if not config.is_stored(name)}
        ours |= {name: torch.zeros(shape) for name, shape in lacking.items()}
        unknown = {
            name
            for name in theirs
            if name.startswith((self.encoder, self.layer, "embeddings."))
            and not (name.endswith(_UNREAD) or name.startswith(f"{self.encoder}pooler."))
        } | set(map(self.their_name, lacking))
        return ours | {name: theirs[name] for name in unknown & theirs.keys()}

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
        prefix = ""
        names = self.names
        inside = name
        if name.startswith(LAYERS):
            number, inside = name.removeprefix(LAYERS).split(".", 1)
            prefix = f"{self.encoder}{self.layer}{number}."
            names = self.in_layer
        for ours, theirs in names.items():
            if inside.startswith(ours):
                return prefix + theirs + inside.removeprefix(ours)
        return f"{self.encoder}{name[5:]}" if inside.startswith("bert.") else prefix + inside

    def _stored(self, config: ModelConfig) -> dict[str, list[str]]:
        """Return our names of the tensors that a checkpoint holds, by its own name."""
        ours = [name for name, _ in stored_shapes(config)]
        if self.gate_first:
            ours.sort(key=lambda name: f".{GATES[0]}." in name)
        if config.int8:
            ours += (name for name, _ in int8_shapes(config))
        names: dict[str, list[str]] = {}
        for name in dict.fromkeys(ours):
            names.setdefault(self.their_name(name), []).append(name)
        return names
