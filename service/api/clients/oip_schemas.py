"""The shapes of the Open Inference Protocol's requests and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from service.errors import InvalidRequest
from service.experiments.fields import Attributes
from service.schemas.requests import DeadlineMs, MaskForm

VERSION = "1"
"""The version of every model. Variants have names in place of versions."""


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, protected_namespaces=())


class TensorParameters(_Fields):
    """How a tensor is sent."""

    binary_data_size: int | None = Field(
        None, ge=0, description="Bytes of the tensor after the JSON, in place of `data`."
    )
    shared_memory_region: str | None = Field(None, description="Not supported.")


class InputTensor(_Fields):
    """An input: `query` or `title`."""

    name: str = Field(description="`query` or `title`.")
    datatype: str = Field(description="BYTES.")
    shape: list[Annotated[int, Field(ge=0)]] = Field(description="[n] or [n, 1].")
    parameters: TensorParameters | None = Field(None, description="How the tensor is sent.")
    data: list[Any] | None = Field(None, description="The elements, strings.")


class OutputParameters(_Fields):
    """How an output is wanted."""

    binary_data: bool | None = Field(None, description="As bytes after the JSON.")
    classification: int | None = Field(None, description="Not supported.")
    shared_memory_region: str | None = Field(None, description="Not supported.")


class WantedOutput(_Fields):
    """An output that is wanted."""

    name: str = Field(description="`score`, `probabilities` or `grade`.")
    parameters: OutputParameters | None = Field(None, description="How the output is wanted.")


class InferParameters(_Fields):
    """How the request is scored."""

    variant: str | None = Field(None, description="Ours: a variant of `GET /v1/variants`.")
    head_mask: MaskForm | None = Field(None, description="Ours: multiplied onto the variant's own mask.")
    unit: str | None = Field(
        None, description="Ours: who is asking, for the assignment to an experiment's arm."
    )
    attributes: Attributes = Field(
        None, description="Ours: what an experiment's `where` may ask for, such as `locale`."
    )
    timeout: int | None = Field(
        None,
        gt=0,
        le=2**53 - 1,
        description="Microseconds from the arrival of the request; later, it gets 504.",
    )
    binary_data_output: bool = Field(False, description="All outputs as bytes after the JSON.")


class InferRequest(_Fields):
    """Score titles against queries."""

    id: str | None = Field(None, description="Repeated in the answer.")
    parameters: InferParameters | None = Field(None, description="How the request is scored.")
    inputs: list[InputTensor] = Field(description="`query` and `title`.")
    outputs: list[WantedOutput] | None = Field(None, description="The outputs wanted; default: all.")
    variant: str | None = Field(None, description="As in `parameters`.")
    head_mask: MaskForm | None = Field(None, description="As in `parameters`.")
    unit: str | None = Field(None, description="As in `parameters`.")
    attributes: Attributes = Field(None, description="As in `parameters`.")
    deadline: DeadlineMs = Field(None, alias="deadline_ms")

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": "42",
                    "inputs": [
                        {"name": "query", "datatype": "BYTES", "shape": [1], "data": ["angle bracket"]},
                        {
                            "name": "title",
                            "datatype": "BYTES",
                            "shape": [2],
                            "data": ["Wood deck screws", "Simpson Strong-Tie 12-Gauge Angle"],
                        },
                    ],
                    "outputs": [{"name": "score"}],
                }
            ]
        }
    )

    @property
    def deadline_ms(self) -> float | None:
        """Return the request's own timeout, in either form. Raises InvalidRequest if the two forms differ."""
        timeout = None if self.parameters is None else self.parameters.timeout
        ours = None if timeout is None else timeout / 1000
        deadline: float | None = _one("deadline_ms", self.deadline, "timeout", ours)
        return deadline

    def given(self, name: str) -> Any:
        """Return a field of ours, from `parameters` or beside them. Raises InvalidRequest if they differ."""
        return _one(name, getattr(self, name), name, getattr(self.parameters, name, None))


def _one(name: str, value: Any, parameter: str, other: Any) -> Any:
    """Return which of a field and a parameter is given. Raises InvalidRequest if both are and they differ."""
    if value is not None and other is not None and value != other:
        raise InvalidRequest(f"is another than parameters.{parameter}; give one of them", param=name)
    return other if value is None else value


@dataclass(slots=True)
class TensorMetadata:
    """An input or output of a model."""

    name: Annotated[str, Field(description="As requests and answers name it.")]
    datatype: Annotated[str, Field(description="BYTES, FP32 or INT64.")]
    shape: Annotated[list[int], Field(description="-1: any number.")]


@dataclass(slots=True)
class ModelMetadata:
    """A model's inputs and outputs."""

    name: Annotated[str, Field(description="As it was asked for.")]
    versions: Annotated[list[str], Field(description="Always the one.")]
    platform: Annotated[str, Field(description="What serves it.")]
    inputs: Annotated[list[TensorMetadata], Field(description="What it reads.")]
    outputs: Annotated[list[TensorMetadata], Field(description="What it answers.")]


@dataclass(slots=True)
class OutputTensor:
    """An output."""

    name: Annotated[str, Field(description="`score`, `probabilities` or `grade`.")]
    datatype: Annotated[str, Field(description="FP32 or INT64.")]
    shape: Annotated[list[int], Field(description="[n], or [n, grades].")]
    data: Annotated[list[float], Field(description="The values, row by row.")]


@dataclass(slots=True)
class AnswerParameters:
    """How the request was scored."""

    variant: Annotated[str, Field(description="The variant that scored.")]
    truncated: Annotated[int, Field(description="Pairs whose text did not fit into the window.")]


class InferAnswer(TypedDict):
    """The outputs; in binary, `parameters.binary_data_size` stands in place of `data`."""

    model_name: Annotated[str, Field(description="As it was asked for.")]
    model_version: Annotated[str, Field(description="The one version.")]
    id: NotRequired[Annotated[str, Field(description="The request's, if it has one.")]]
    parameters: AnswerParameters
    outputs: Annotated[list[OutputTensor], Field(description="In the order asked for.")]


@dataclass(slots=True)
class ServerMetadata:
    """This server."""

    name: Annotated[str, Field(description="What serves.")]
    version: Annotated[str, Field(description="Its version.")]
    extensions: Annotated[list[str], Field(description="The protocol's extensions that it knows.")]


@dataclass(slots=True)
class ServerLive:
    """The process runs."""

    live: Annotated[bool, Field(description="Always true.")]


@dataclass(slots=True)
class ServerReady:
    """Requests are welcome."""

    ready: Annotated[bool, Field(description="Always true: else the status is 503.")]


@dataclass(slots=True)
class ModelReady:
    """A model takes requests."""

    name: Annotated[str, Field(description="As it was asked for.")]
    ready: Annotated[bool, Field(description="Always true: else the status is 503.")]


@dataclass(slots=True)
class OipError:
    """Every answer that is not a success."""

    error: Annotated[str, Field(description="One sentence.")]


_MODEL = "headroom-default"
EXAMPLES: dict[str, Any] = {
    "oip_server": {
        "name": "headroom",
        "version": "0.1.0",
        "extensions": ["binary_tensor_data", "parameters"],
    },
    "oip_live": {"live": True},
    "oip_ready": {"ready": True},
    "oip_model_ready": {"name": _MODEL, "ready": True},
    "oip_model": {
        "name": _MODEL,
        "versions": [VERSION],
        "platform": "headroom",
        "inputs": [
            {"name": "query", "datatype": "BYTES", "shape": [-1]},
            {"name": "title", "datatype": "BYTES", "shape": [-1]},
        ],
        "outputs": [
            {"name": "score", "datatype": "FP32", "shape": [-1]},
            {"name": "probabilities", "datatype": "FP32", "shape": [-1, 5]},
            {"name": "grade", "datatype": "INT64", "shape": [-1]},
        ],
    },
    "oip_infer": {
        "model_name": _MODEL,
        "model_version": VERSION,
        "id": "42",
        "parameters": {"variant": "full", "truncated": 0},
        "outputs": [{"name": "score", "datatype": "FP32", "shape": [2], "data": [0.3817, 0.5616]}],
    },
}
"""An answer of each operation."""
