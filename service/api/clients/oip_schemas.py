"""The requests and answers of the Open Inference Protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from typing_extensions import TypedDict

from service.api.clients.base import OurFields
from service.schemas.requests import DeadlineMs, example


class _Fields(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class TensorParameters(_Fields):
    """How a tensor is sent, or wanted."""

    binary_data_size: int | None = Field(
        None, ge=0, description="Of an input: the bytes of it after the JSON, in place of `data`."
    )
    binary_data: bool | None = Field(None, description="Of an output: as bytes after the JSON.")
    classification: None = Field(None, description="Not supported.")
    shared_memory_region: None = Field(None, description="Not supported.")


def _flat(data: Any) -> Any:
    """Return `[["a"], ["b"]]`, of the shape [n, 1], as `["a", "b"]`."""
    if not isinstance(data, list):
        return data
    return [each[0] if isinstance(each, list) and len(each) == 1 else each for each in data]


class InputTensor(_Fields):
    """An input."""

    name: Literal["query", "title"] = Field(description="Which input.")
    datatype: Literal["BYTES"] = Field(description="Texts.")
    shape: list[Annotated[int, Field(ge=0)]] = Field(description="[n] or [n, 1].")
    parameters: TensorParameters = Field(TensorParameters(), description="How the tensor is sent.")
    data: Annotated[list[str], Field(fail_fast=True), BeforeValidator(_flat)] | None = Field(
        None, description="The elements."
    )


class WantedOutput(_Fields):
    """An output that is wanted."""

    name: Literal["score", "probabilities", "grade"] = Field(description="Which output.")
    parameters: TensorParameters = Field(TensorParameters(), description="How the output is wanted.")


class InferParameters(OurFields):
    """How the request is scored."""

    deadline_ms: DeadlineMs = None
    timeout: Annotated[int, Field(gt=0, le=2**53 - 1)] | None = Field(
        None, description="Microseconds from the arrival of the request; later, it gets 504."
    )
    binary_data_output: bool = Field(False, description="All outputs as bytes after the JSON.")


class InferRequest(_Fields):
    """Score titles against queries. Our own fields may stand beside `parameters` too."""

    model_config = example(
        inputs=[
            {"name": "query", "datatype": "BYTES", "shape": [1], "data": ["angle bracket"]},
            {"name": "title", "datatype": "BYTES", "shape": [2], "data": ["12-Gauge Angle", "Wood screws"]},
        ]
    )

    id: str | None = Field(None, description="Repeated in the answer.")
    parameters: InferParameters = Field(InferParameters(), description="How the request is scored.")
    inputs: list[InputTensor] = Field(description="`query` and `title`.")
    outputs: list[WantedOutput] = Field([], description="The outputs wanted; default: all.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Move our fields into `parameters`. Those that are there already count."""
        if not isinstance(value, dict) or not isinstance(value.get("parameters", {}), dict):
            return value
        beside = {name: value[name] for name in (*OurFields.model_fields, "deadline_ms") if name in value}
        return {**value, "parameters": {**beside, **value.get("parameters", {})}} if beside else value

    @property
    def deadline_ms(self) -> float | None:
        """Return the request's own timeout."""
        timeout = self.parameters.timeout
        return self.parameters.deadline_ms if timeout is None else timeout / 1000


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


class OutputTensor(TypedDict):
    """An output; in binary, `parameters.binary_data_size` stands in place of `data`."""

    name: Annotated[str, Field(description="`score`, `probabilities` or `grade`.")]
    datatype: Annotated[Literal["FP32", "INT64"], Field(description="The type of its values.")]
    shape: Annotated[list[int], Field(description="[n], or [n, grades].")]
    data: Annotated[list[float], Field(description="The values, row by row.")]


class AnswerParameters(TypedDict):
    """How the request was scored."""

    variant: Annotated[str, Field(description="The variant that scored.")]
    truncated: Annotated[int, Field(description="Pairs whose text did not fit into the window.")]


class InferAnswer(TypedDict):
    """The outputs."""

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


class ServerLive(TypedDict):
    """The process runs."""

    live: Annotated[bool, Field(description="Always true.")]


class ServerReady(TypedDict):
    """Requests are welcome."""

    ready: Annotated[bool, Field(description="Always true: else the status is 503.")]


class ModelReady(ServerReady):
    """A model takes requests."""

    name: Annotated[str, Field(description="As it was asked for.")]


@dataclass(slots=True)
class OipError:
    """Every answer that is not a success."""

    error: Annotated[str, Field(description="One sentence.")]
