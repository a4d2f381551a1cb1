"""The shapes of what is loaded (models, variants, masks, what a study found out about heads), and of health.

Plain slotted dataclasses, as in `responses`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic.json_schema import SkipJsonSchema

from service.experiments.fields import says
from service.schemas.responses import AnsweringModel, HeadMaskInfo


@dataclass(slots=True)
class ModelInfo:
    """A loaded checkpoint."""

    name: Annotated[str, says("As answers name it in `model`.")]
    repository: Annotated[str | None, says("Its repository on the hub; null for a local directory.")]
    commit: Annotated[str | None, says("The repository's commit that was loaded.")]
    family: Annotated[str, says("The architecture: `model_type` in config.json.")]
    layers: Annotated[int, says("Layers of the encoder.")]
    heads: Annotated[int, says("Heads per layer.")]
    hidden_size: Annotated[int, says("Numbers that describe a token between layers.")]
    intermediate_size: Annotated[int, says("Width of the feed-forward part.")]
    vocab_size: Annotated[int, says("Tokens that the vocabulary knows.")]
    max_tokens: Annotated[int, says("The window: longer pairs are truncated.")]
    grades: Annotated[list[str] | None, says("From least to most relevant; null: one score.")]
    score_activation: Annotated[
        Literal["softmax", "sigmoid", "identity"],
        says("What makes a score of logits: softmax (grades), sigmoid, or identity (raw logits)."),
    ]
    parameters: Annotated[int, says("Weights, counted.")]
    bytes: Annotated[int, says("Weights in memory.")]
    sliced_bytes: Annotated[int, says("Weights with dead heads cut out, cached beside them.")]
    device: Annotated[str, says("What computes.")]
    dtype: Annotated[str, says("The number format of the computation.")]
    deterministic: Annotated[bool, says("Whether a pair scores bitwise the same alone and in any batch.")]
    processor: Annotated[list[str], says("Features of the processor that are used.")]
    kernels: Annotated[
        str | None,
        says("The level of our compiled kernels on this processor; null: torch computes."),
    ]
    kernels_skipped: Annotated[
        list[str], says("Better levels that this processor has, and why they are not used.")
    ]
    int8_input_bits: Annotated[
        int | None,
        says(
            "Bits that an int8 checkpoint's products take of an input: 8; 7 without VNNI; 0: "
            "float products stand in for them, slower. null: not int8, or not on a CPU."
        ),
    ]
    quality: Annotated[dict[str, float] | None, says("Held-out metrics of the checkpoint.")]
    _labels: SkipJsonSchema[Sequence[str]] = ()

    @property
    def labels(self) -> Sequence[str]:
        """As `ScoreResponse.labels`."""
        return self._labels


@dataclass(slots=True)
class ModelsResponse:
    """The loaded models."""

    models: Annotated[list[ModelInfo], says("The service's own checkpoint first.")]


@dataclass(slots=True)
class CascadeStage:
    """A stage of a cascade."""

    variant: Annotated[str, says("The variant that scores.")]
    keep: Annotated[
        float | None,
        says(
            "How many of a query's titles the next stage scores; below 1, which share of them; "
            "null: this is the last stage."
        ),
    ]


@dataclass(slots=True)
class VariantInfo:
    """A servable: a checkpoint with a mask, or a cascade of them, whose fields are then the last stage's."""

    name: Annotated[str, says("As requests name it in `variant`.")]
    model: AnsweringModel
    head_mask: HeadMaskInfo
    sliced: Annotated[bool, says("Whether dead heads' weights are cut out.")]
    parameters: Annotated[int, says("Weights, counted, without those cut out.")]
    default: Annotated[bool, says("Whether requests that name no variant get it.")]
    cascade: Annotated[list[CascadeStage] | None, says("Of a cascade, its stages in order; else null.")] = (
        None
    )


@dataclass(slots=True)
class VariantsResponse:
    """The variants of the live config."""

    config_version: Annotated[str, says("Changes with the live config.")]
    variants: Annotated[list[VariantInfo], says("In the config's order.")]


@dataclass(slots=True)
class MaskInfo:
    """A stored mask: `@name` in a spec."""

    name: Annotated[str, says("Without the @.")]
    source: Annotated[Literal["model", "config"], says("Where it is stored.")]
    head_mask: HeadMaskInfo


@dataclass(slots=True)
class MasksResponse:
    """The masks that requests can name."""

    masks: Annotated[list[MaskInfo], says("By name.")]


@dataclass(slots=True)
class HeadsResponse:
    """The head study of the service's own checkpoint: what it found out about each head."""

    model: AnsweringModel
    layers: Annotated[int, says("Layers of the encoder.")]
    heads: Annotated[int, says("Heads per layer.")]
    study: Annotated[
        dict[str, Any] | None,
        says(
            "`head_study.json` beside the weights: of each head in `heads`, the change of QWK, "
            "NDCG@10 and accuracy with that head alone off (`delta`), its 95 % interval, and the share of "
            "its attention beyond chance in each of the `roles` that it holds. Null without a study."
        ),
    ]


@dataclass(slots=True)
class Health:
    """The service is live, or ready; the status code says the same."""

    status: Annotated[Literal["live", "ready"], says("The state that was asked for.")]
