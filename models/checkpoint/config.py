"""Reads and checks a checkpoint's config.json."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from models.checkpoint.fields import check, need, positive_float, positive_int, read_json, reading
from models.checkpoint.files import bytes_of_weights, check_files, weights_of
from models.checkpoint.modules import with_modules
from models.checkpoint.prompt import with_answers
from models.checkpoint.shapes import ATTENTION, LAYERS, MLP, expected_shapes
from models.errors import InvalidMask, ModelError, UnsupportedCheckpoint
from models.masks.head_mask import HeadMask

if TYPE_CHECKING:
    from models.checkpoint.decoder import Decoder

INT8_FORMAT = "w8a8-1"
"""`headroom.quantization.format` in config.json: the layout that `shapes.int8_shapes` describes."""

QUANTIZATION_CONFIG = {"quant_method": "headroom-w8a8"}
"""`quantization_config` of an int8 checkpoint: with it, transformers warns that it cannot read the file."""

ScoreActivation = Literal["softmax", "sigmoid", "identity"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary angles position·θ^(−2i/d), whose frequencies may be divided by `factor`.

    ramp: between these i YaRN goes over from whole frequencies to divided ones (Peng et al. 2023,
    https://arxiv.org/abs/2309.00071); None: all are divided. length: cosines and sines are multiplied by it.
    """

    theta: float
    factor: float = 1.0
    ramp: tuple[float, float] | None = None
    length: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Shape and labels of one sequence classifier."""

    vocab_size: int
    hidden_size: int
    embedding_size: int  # a linear map widens the embeddings if it is not hidden_size
    num_layers: int
    num_heads: int  # before pruning
    intermediate_size: int  # the units of the widest layer's feed-forward half
    max_positions: int  # the window
    skipped_positions: int = 0  # rows of the checkpoint's position table before the first token's
    type_vocab_size: int  # 0: the network has no token types
    layer_norm_eps: float
    activation: str
    head_activation: str = "tanh"  # of the classifier's dense layer
    family: str = "bert"  # the key of `families.FAMILIES`
    labels: tuple[str, ...] = ()  # one per logit, least relevant first; a one-label cross-encoder has one
    label_order: tuple[int, ...] = ()  # the checkpoint's logit index of each entry of `labels`
    kept_heads: tuple[tuple[int, ...], ...] = ()  # original numbers of the heads that each layer still has
    widths: tuple[int, ...] = ()  # the units of each layer
    temperature: float = 1.0  # logits are divided by it before the softmax (or the sigmoid)
    score_activation: ScoreActivation = "softmax"  # of one label: sigmoid, or identity for raw scores
    int8: bool = False  # the layers' products have 8-bit weights and inputs (`headroom quantize` wrote it)
    gated: bool = False  # inner activations are multiplied by the output of a further map, `gate`
    without_bias: frozenset[str] = frozenset()  # maps and norms; those in a layer by their names there
    pools_mean: bool = False  # the classifier reads the mean of all tokens, not the first one
    windows: tuple[int | None, ...] = ()  # how many tokens to each side a layer sees; None, or empty: all
    ropes: tuple[Rope, ...] = ()  # each layer's rotary angles; empty without rotary positions
    pre_norm: bool = False  # norms stand before the halves of a layer, and one after the last layer
    absolute_positions: bool = True  # the network adds embeddings of positions
    distances: tuple[int, int] | None = None  # DeBERTa's buckets to each side, and the largest distance
    decoder: Decoder | None = None  # of a network that attends to what stands before a token

    def is_stored(self, name: str) -> bool:
        """Return whether checkpoints hold a tensor of the network; those that they do not hold are zeros."""
        module, _, part = name.rpartition(".")
        if module.startswith(LAYERS):
            module = module.removeprefix(LAYERS).split(".", 1)[1]
        has_offsets = self.int8 and module in (*ATTENTION, *MLP)  # of inputs, whose effect a bias holds
        return part != "bias" or has_offsets or module not in self.without_bias

    def heads_kept(self, mask: HeadMask) -> tuple[tuple[int, ...], ...]:
        """Return the heads of each layer that a mask keeps, ascending; none in a layer that it skips."""
        return tuple(
            tuple(head for head in held if mask.matrix[layer, head] > 0)
            for layer, held in enumerate(self.kept_heads)
        )

    def check_head_left(self, mask: HeadMask) -> None:
        """Raise ModelError if a mask keeps none of the checkpoint's heads."""
        if not any(self.heads_kept(mask)):
            raise ModelError(
                f"that would remove all {sum(map(len, self.kept_heads))} heads, and without any every pair "
                "gets the same score; keep at least one"
            )

    def parse_mask(self, form: str | Mapping[str, object], stored: Mapping[str, HeadMask]) -> HeadMask:
        """Return the mask of a spec or a JSON form, as `HeadMask.parse` does; it may switch units off."""
        shape = {"layers": self.num_layers, "heads": self.num_heads, "units": self.intermediate_size}
        return HeadMask.parse(form, **shape, stored=stored)

    def units_kept(self, mask: HeadMask) -> tuple[tuple[int, ...], ...]:
        """Return the units of each layer that a mask keeps, ascending; none in a layer that it skips. A unit
        is an inner activation: a row of the up map (and of the gate), a column of the down map."""
        off = mask.units_off
        off = np.zeros((len(self.widths), self.intermediate_size), np.bool_) if off is None else off
        return tuple(
            () if layer in mask.skipped else tuple(np.flatnonzero(~off[layer, :width]).tolist())
            for layer, width in enumerate(self.widths)
        )

    def under(self, mask: HeadMask) -> ModelConfig:
        """Return the shape of the network that a mask leaves: its layers are numbered from 0, its heads keep
        their numbers, and a layer may be without units."""
        layers, heads, units = mask.layers_kept, self.heads_kept(mask), self.units_kept(mask)
        widths = tuple(len(units[layer]) for layer in layers)
        return replace(
            self,
            num_layers=len(layers),
            windows=tuple(self.windows[layer] for layer in layers) if self.windows else (),
            ropes=tuple(self.ropes[layer] for layer in layers) if self.ropes else (),
            kept_heads=tuple(heads[layer] for layer in layers),
            intermediate_size=max(widths, default=0),
            widths=widths,
        )

    def key_heads(self, heads: Sequence[int]) -> list[int]:
        """Return the head of keys and values, before pruning, that each of some heads of queries reads."""
        shared = self.num_heads if self.decoder is None else self.decoder.key_heads
        return [head * shared // self.num_heads for head in heads]

    def projected(self, layer: int) -> tuple[int, int, int]:
        """Return the widths of a layer's queries, keys and values."""
        kept = self.kept_heads[layer]
        keys = len(set(self.key_heads(kept))) * self.head_size
        return len(kept) * self.head_size, keys, keys

    @property
    def head_size(self) -> int:
        """Return the width of one head; d_model / h but for decoders."""
        return self.hidden_size // self.num_heads if self.decoder is None else self.decoder.head_size

    @property
    def is_graded(self) -> bool:
        """Return False for a one-label cross-encoder, which gives a score and no grades."""
        return len(self.labels) > 1


def read_config(directory: Path, label_order: Sequence[str] | None = None) -> ModelConfig:
    """Read `config.json` of a Hugging Face sequence classifier.

    label_order: the label names from least to most relevant; default: the order given under
        `headroom.label_order` in the file, else by label id.
    Raises UnsupportedCheckpoint for anything that our networks do not compute exactly, for files that are not
    regular ones, and for sizes that the weights do not have.
    """
    check_files(directory)
    config = parse_config(read_raw(directory), label_order)
    there = bytes_of_weights(directory)
    wanted = sum(math.prod(shape) for name, shape in expected_shapes(config) if config.is_stored(name))
    check(
        not there or wanted <= there,  # a number takes a byte or more
        f"{directory}: the weights cannot be read: {', '.join(file.name for file in weights_of(directory))} "
        f"has {there:,} bytes, and config.json describes {wanted:,} parameters",
    )
    return config


def read_raw(directory: Path) -> dict[str, Any]:
    """Return the content of `config.json`, with what sentence-transformers writes beside it, and the ids of
    a language model's answers."""
    file = directory / "config.json"
    with reading(file):
        return with_answers(directory, with_modules(directory, read_json(file)))


@reading("config.json")
def parse_config(raw: Mapping[str, Any], label_order: Sequence[str] | None = None) -> ModelConfig:
    """Check a config that is already parsed, as `read_config` does."""
    from models.checkpoint.families import FAMILIES, family_of  # these build on ModelConfig

    family = family_of(raw)
    shape, ours = FAMILIES[family].shape(raw), raw.get("headroom") or {}
    if shape.decoder is not None and shape.decoder.vocabulary is not None:  # a language model has no labels
        raw = {**raw, "id2label": {"0": "LABEL_0"}, "num_labels": 1}
    labels, order = _labels(raw, label_order or ours.get("label_order"), FAMILIES[family].default_labels)
    kind, own, foreign = raw.get("problem_type"), ours.get("quantization"), raw.get("quantization_config")
    is_right = kind != "multi_label_classification" and (kind != "regression" or len(labels) == 1)
    need(is_right, "problem_type", kind, "supported are grades that exclude each other, or one label")
    is_right = not foreign or (own and foreign == QUANTIZATION_CONFIG)
    need(is_right, "quantization_config", foreign, "load an unquantized checkpoint")
    is_right = own is None or (isinstance(own, Mapping) and own.get("format") == INT8_FORMAT)
    need(is_right, "headroom.quantization", own, f"it must be an object whose format is {INT8_FORMAT!r}")
    most, sizes = shape.intermediate_size, ours.get("intermediate_sizes")
    widths = tuple(sizes or [most] * shape.num_layers)
    is_right = len(widths) == shape.num_layers and all(type(n) is int and 0 < n <= most for n in widths)
    wanted = f"it must hold a number from 1 to {most} for each layer"
    need(is_right, "headroom.intermediate_sizes", sizes, wanted)
    # as transformers 4 writes it: {"layer": [removed heads]}
    gone = {int(layer): heads for layer, heads in (raw.get("pruned_heads") or {}).items()}
    return replace(
        shape,
        family=family,
        labels=labels,
        label_order=order,
        kept_heads=tuple(
            tuple(head for head in range(shape.num_heads) if head not in gone.get(layer, ()))
            for layer in range(shape.num_layers)
        ),
        widths=widths,
        temperature=positive_float(ours.get("temperature", 1.0), "headroom.temperature"),
        score_activation="softmax" if len(labels) > 1 else _score_activation(raw, shape),
        int8=own is not None,
    )


def read_stored_masks(directory: Path, config: ModelConfig) -> dict[str, HeadMask]:
    """Return a checkpoint's stored masks: files `masks/NAME.json` with a spec or a JSON form under "mask"."""
    masks: dict[str, HeadMask] = {}
    for file in sorted((directory / "masks").glob("*.json")):
        try:
            masks[file.stem] = config.parse_mask(read_json(file)["mask"], {})
        except (KeyError, InvalidMask) as error:
            raise UnsupportedCheckpoint(f"{file} does not hold a mask of this model: {error}") from None
    return masks


def check_holds_floats(source: Path, config: ModelConfig) -> None:
    """Raise UnsupportedCheckpoint if the checkpoint is int8, and so can be neither trained nor quantized."""
    problem = f"{source} is int8, and 8-bit weights cannot be trained or quantized again; name the float "
    check(not config.int8, f"{problem}checkpoint that it was made from")


def _score_activation(raw: Mapping[str, Any], shape: ModelConfig) -> ScoreActivation:
    """Return the activation of a one-label model's score, which sentence-transformers stores; its default is
    the sigmoid. Of two answers, the score is the probability of the relevant one, whatever is stored."""
    if shape.decoder is not None and len(shape.decoder.answers) == 2:
        return "sigmoid"
    stored = {
        "sentence_transformers.activation_fn": (raw.get("sentence_transformers") or {}).get("activation_fn"),
        "sbert_ce_default_activation_function": raw.get("sbert_ce_default_activation_function"),  # before 4
    }
    for field, name in stored.items():
        if name is not None:
            known = re.fullmatch(r"torch\.nn\.(?:\w+\.)*(Sigmoid|Identity)", name)
            need(known, field, name, "supported: torch.nn.Sigmoid and torch.nn.Identity")
            return "identity" if name.endswith("Identity") else "sigmoid"
    return "sigmoid"


def _labels(
    raw: Mapping[str, Any], wanted: Sequence[str] | None, default: int
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    id2label, count = raw.get("id2label"), raw.get("num_labels")
    if count is not None:
        count = positive_int(raw, "num_labels", at_most=10_000)
    if id2label is None or count not in (None, len(id2label)):
        id2label = {i: f"LABEL_{i}" for i in range(count or default)}  # as transformers does
    by_id = {int(key): str(name) for key, name in id2label.items()}
    names = [by_id[id_] for id_ in sorted(by_id)]
    if wanted is None:
        return tuple(names), tuple(range(len(names)))
    is_right = isinstance(wanted, list | tuple) and len(wanted) == len(names)
    is_right = is_right and sorted(map(str, wanted)) == sorted(set(names))
    check(is_right, f"label order {wanted!r} does not name each label of the checkpoint once: {names}")
    return tuple(wanted), tuple(names.index(name) for name in wanted)
