"""Model families: how a family's config.json describes a network of ours, and how it names the tensors; and
those whose network is BERT's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from models.checkpoint.config import ModelConfig
from models.checkpoint.fields import activation, need, positive_float, positive_int
from models.checkpoint.shapes import LAYERS, POSITIONS, Shapes, bert_shapes, int8_shapes
from models.errors import ModelError

if TYPE_CHECKING:  # errors are reported before torch is imported
    from torch import Tensor

Expected: TypeAlias = Callable[[ModelConfig], Shapes]


@dataclass(frozen=True, kw_only=True)
class Family(ABC):
    """A model family, as the rest of the program sees it.

    encoder: the prefix of the encoder's tensors. names: our prefixes of tensors outside the layers → theirs.
    layer, in_layer: the same for a layer and for the modules in it; the first prefix that fits counts.
    Several of our tensors may have one name in the checkpoint, which then holds them one below the other.
    network: names its network class, in `models.networks`. expected: returns every float tensor of the
    network with its shape; narrower layers where they are pruned.
    in_transformers: transformers has the network; otherwise checkpoints bring code, which is never run.
    default_labels: how many a config.json has that does not say it.
    keeps_first_layer: the first layer, and no other, has no norm before its attention, so it must stay.
    """

    encoder: str
    names: Mapping[str, str] = field(default_factory=dict)
    layer: str = "encoder.layer."
    in_layer: Mapping[str, str] = field(default_factory=dict)
    network: str
    expected: Expected
    keeps_first_layer: bool = False
    default_labels: int = 2
    in_transformers: bool = True

    def described(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a config.json as the classifier's that it is read as."""
        return raw

    @abstractmethod
    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the shape of the network that a config.json describes; `parse_config` adds the rest.

        Raises UnsupportedCheckpoint for what the network would not compute exactly.
        """

    @abstractmethod
    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say which layers there are, and how many units they have."""

    def check_removable(self, layers: Collection[int]) -> None:
        """Raise ModelError if the family's checkpoints cannot say that these layers are gone."""
        if self.keeps_first_layer and 0 in layers:
            raise ModelError(
                f"layer 0 of a {self.network} cannot be removed: the layer after it has a norm of its own, "
                "which the format does not allow in the first place"
            )

    def ours(self, tensors: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
        """Return a checkpoint's tensors as our network takes them, with zeros for biases that it lacks.

        Heads of other tasks are left out. Tensors of the encoder that the network does not have keep their
        names, for `read_tensors` to refuse them.
        """
        import torch

        there = {self._full_name(name): tensor for name, tensor in tensors.items()}
        found: dict[str, Tensor] = {}
        for name, several in self._stored(config).items():
            if (tensor := there.pop(name, None)) is not None:
                parts = tensor.chunk(len(several)) if len(several) > 1 else (tensor,)
                found |= dict(zip(several, parts, strict=False))
        if POSITIONS in found:
            found[POSITIONS] = found[POSITIONS][config.skipped_positions :]
        lacking = {name: shape for name, shape in self.expected(config) if not config.is_stored(name)}
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
        names: dict[str, list[str]] = {}
        for name in self._all_names(config):
            several = names.setdefault(self.their_name(name), [])
            if name not in several:
                several.append(name)
        return names

    def _all_names(self, config: ModelConfig) -> Iterator[str]:
        yield from (name for name, _ in self.expected(config) if config.is_stored(name))
        if config.int8:
            yield from (name for name, _ in int8_shapes(config))

    def _full_name(self, name: str) -> str:
        """Return the name that transformers writes today for one that is older or a bare encoder's."""
        name = name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
        is_bare = name.startswith(("embeddings.", "pooler.", "final_norm.", self.layer))
        return self.encoder + name if is_bare else name

    def _is_of_encoder(self, name: str) -> bool:
        """Return whether a tensor is part of the encoder; buffers, and a pooler that is not read, are not."""
        if name.endswith((".position_ids", ".token_type_ids")):
            return False
        has_own_head = name.startswith(f"{self.encoder}pooler.") and bool(self.names)
        return name.startswith(self.encoder) and not has_own_head


@dataclass(frozen=True, kw_only=True)
class LikeBert(Family):
    """A family whose network is BERT's.

    fields: BERT's names in config.json → theirs.
    embedding_size: the default width of the embeddings, which a linear map widens; None: the layers' width.
    token_types: the fewest that a checkpoint may have; 0: the family has none.
    skips_pad: positions begin at pad_token_id + 1; the rows of the position table before that are dropped.
    head: the activation of the classifier's dense layer.
    layer_norm_eps: LayerNorm's epsilon if config.json has no say in it.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    embedding_size: int | None = None
    skips_pad: bool = False
    token_types: int = 2
    head: str = "tanh"
    layer_norm_eps: float | None = None
    network: str = "bert"
    expected: Expected = bert_shapes

    def shape(self, raw: Mapping[str, Any]) -> ModelConfig:
        """Return the network's shape."""

        def size(name: str, default: int | None = None) -> int:
            return positive_int(raw, self.fields.get(name, name), default)

        hidden, heads = size("hidden_size"), size("num_attention_heads")
        need(
            hidden % heads == 0,
            "hidden_size",
            hidden,
            f"it must be a multiple of num_attention_heads {heads}",
        )
        skipped = self._skipped(raw)
        positions = size("max_position_embeddings", 512) - skipped
        wanted = f"it must be at least {skipped + 1}, because positions begin after pad_token_id"
        need(positions >= 1, "max_position_embeddings", positions + skipped, wanted)
        types = positive_int(raw, "type_vocab_size", 2) if self.token_types else 0
        wanted = "a query-title classifier needs two segments"
        need(types >= self.token_types, "type_vocab_size", types, wanted)
        return ModelConfig(
            vocab_size=size("vocab_size"),
            hidden_size=hidden,
            embedding_size=size("embedding_size", self.embedding_size) if self.embedding_size else hidden,
            num_layers=size("num_hidden_layers"),
            num_heads=heads,
            intermediate_size=size("intermediate_size"),
            max_positions=positions,
            skipped_positions=skipped,
            type_vocab_size=types,
            layer_norm_eps=self.layer_norm_eps
            or positive_float(raw.get("layer_norm_eps", 1e-12), "layer_norm_eps"),
            activation=activation(raw, self.fields.get("hidden_act", "hidden_act")),
            head_activation=self.head,
        )

    def fields_of(self, config: ModelConfig) -> dict[str, Any]:
        """Return the fields of config.json that say how many layers and units there are."""
        sizes = {"num_hidden_layers": config.num_layers, "intermediate_size": config.intermediate_size}
        return {self.fields.get(name, name): size for name, size in sizes.items()}

    def _skipped(self, raw: Mapping[str, Any]) -> int:
        if not self.skips_pad:
            return 0
        pad = raw.get("pad_token_id", 1)
        is_right = type(pad) is int and pad >= 0
        need(is_right, "pad_token_id", pad, "positions begin after it, so it must be ≥ 0")
        return int(pad) + 1


def _replaced(name: str, prefixes: Mapping[str, str]) -> str | None:
    """Return the name with the first prefix that it has replaced; None if it has none of them."""
    for old, new in prefixes.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return None
