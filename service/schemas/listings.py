"""The shapes of what is loaded (models, variants, masks, what a study found out about heads), and of health.

Plain slotted dataclasses, as in `responses`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic.json_schema import SkipJsonSchema

from headroom.service.descriptions import documented
from headroom.service.schemas.responses import AnsweringModel, HeadMaskInfo


@documented
@dataclass(slots=True)
class GeneratorInfo:
    """The shape of a query generator, as masks of `decoder:` and `cross:` number its heads."""

    layers: int
    """Layers of the decoder."""
    heads: int
    """Heads per layer, of masked self-attention and of encoder–decoder attention each."""


@documented
@dataclass(slots=True)
class ModelInfo:
    """A loaded checkpoint."""

    name: str
    """As answers name it in `model`."""
    repository: str | None
    """Its repository on the hub; null for a local directory."""
    commit: str | None
    """The repository's commit that was loaded."""
    family: str
    """The architecture: `model_type` in config.json."""
    layers: int
    """Layers of the encoder."""
    heads: int
    """Heads per layer."""
    hidden_size: int
    """Numbers that describe a token between layers."""
    intermediate_size: int
    """Width of the feed-forward part."""
    vocab_size: int
    """Tokens that the vocabulary knows."""
    max_tokens: int
    """The window: longer pairs are truncated."""
    grades: list[str] | None
    """From least to most relevant; null: one score."""
    label_order_note: str | None
    """Which label counts as best, if neither its name nor a setting says it; null: that is known."""
    score_activation: Literal["softmax", "sigmoid", "identity"]
    """The function from logits to a score: softmax (grades), sigmoid, or identity (raw logits)."""
    parameters: int
    """Weights, counted."""
    bytes: int
    """Weights in memory."""
    sliced_bytes: int
    """Weights with dead heads cut out, cached beside them."""
    device: str
    """Device of the computation."""
    dtype: str
    """The number format of the computation."""
    deterministic: bool
    """Whether a pair scores bitwise the same alone and in any batch."""
    processor: list[str]
    """Features of the processor that are used."""
    kernels: str | None
    """The level of our compiled kernels on this processor; null: torch computes."""
    kernels_skipped: list[str]
    """Better levels that this processor has, and why they are not used."""
    int8_input_bits: int | None
    """Bits that an int8 checkpoint's products take of an input: 8; 7 without VNNI; 0: float products stand in
    for them, slower. null: not int8, or not on a CPU."""
    quality: dict[str, float] | None
    """Held-out metrics of the checkpoint."""
    generator: GeneratorInfo | None
    """Its query generator, for `/v1/condense` with the method `generate`; null: it has none."""
    _labels: SkipJsonSchema[Sequence[str]] = ()

    @property
    def labels(self) -> Sequence[str]:
        """As `ScoreResponse.labels`."""
        return self._labels


@documented
@dataclass(slots=True)
class ModelsResponse:
    """The loaded models."""

    models: list[ModelInfo]
    """The service's own checkpoint first."""


@documented
@dataclass(slots=True)
class CascadeStage:
    """A stage of a cascade."""

    variant: str
    """The variant that scores."""
    keep: float | None
    """How many of a query's titles the next stage scores; below 1, which share of them; null: this is the
    last stage."""


@documented
@dataclass(slots=True)
class VariantInfo:
    """A servable: a checkpoint with a mask, or a cascade of them, whose fields are then the last stage's.

    `original`, the order in which the titles came, has no parameters and a mask of 0 heads.
    """

    name: str
    """As requests name it in `variant`."""
    model: AnsweringModel
    head_mask: HeadMaskInfo
    sliced: bool
    """Whether dead heads' weights are cut out."""
    parameters: int
    """Weights, counted, without those cut out."""
    default: bool
    """Whether requests that name no variant get it."""
    model_index: int
    """Its checkpoint's position in `GET /v1/models`, where two may have one name; 0: the service's own."""
    cascade: list[CascadeStage] | None = None
    """The stages of a cascade, in order; else null."""
    _grades: SkipJsonSchema[Sequence[str]] = ()

    @property
    def grades(self) -> Sequence[str]:
        """The names of the model's grades; none of a one-label model."""
        return self._grades


@documented
@dataclass(slots=True)
class VariantsResponse:
    """The variants of the live config."""

    config_version: str
    """Changes with the live config."""
    variants: list[VariantInfo]
    """In the config's order, and `original` last."""


@documented
@dataclass(slots=True)
class MaskInfo:
    """A stored mask: `@name` in a spec."""

    name: str
    """Without the @."""
    source: Literal["model", "config"]
    """Where it is stored."""
    head_mask: HeadMaskInfo


@documented
@dataclass(slots=True)
class MasksResponse:
    """The masks that requests can name."""

    masks: list[MaskInfo]
    """By name."""


@documented
@dataclass(slots=True)
class HeadsResponse:
    """The head study of the service's own checkpoint: what it found out about each head."""

    model: AnsweringModel
    layers: int
    """Layers of the encoder."""
    heads: int
    """Heads per layer."""
    study: dict[str, Any] | None
    """`head_study.json` beside the weights: of each head in `heads`, the change of each of the `metrics` with
    that head alone off (`delta`), its 95 % interval, and the share of its attention beyond chance in each of
    the `roles` that it holds. Null without a study."""


@documented
@dataclass(slots=True)
class Live:
    """The process runs; the status code says the same."""

    status: Literal["live"] = "live"
    """The state that was asked for."""


@documented
@dataclass(slots=True)
class Ready:
    """Requests are welcome; the status code says the same."""

    problem: str | None
    """What does not work although requests are answered: the experiments, if their database is of another
    release; the last edit of the config, if it was refused. Null: nothing."""
    status: Literal["ready"] = "ready"
    """The state that was asked for."""
