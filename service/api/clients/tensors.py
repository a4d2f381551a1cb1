"""The tensors of the Open Inference Protocol: their form, their texts, and how outputs are written.

They are sent as JSON, or as bytes after the JSON.
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import BaseModel, ConfigDict, Field

from headroom.service.api.clients.base import query_and_titles
from headroom.service.errors import InvalidRequest
from headroom.service.fields import WHOLE_NUMBER
from headroom.service.schemas.responses import ScoreResult
from headroom.service.sentences import shortened

LENGTH_HEADER = "inference-header-content-length"
"""The header that says how many bytes of a body are its JSON."""

DATATYPES = {"score": "FP32", "probabilities": "FP32", "grade": "INT64"}
_NUMPY = {"FP32": "<f4", "INT64": "<i8"}
_TEXT_LENGTH = struct.Struct("<I")


class Fields(BaseModel):
    """A part of a request. Unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class TensorParameters(Fields):
    """The form in which a tensor is sent, or wanted."""

    binary_data_size: Annotated[int, Field(ge=0), WHOLE_NUMBER] | None = None
    """Of an input: the bytes of it after the JSON, in place of `data`."""
    binary_data: bool | None = None
    """Of an output: as bytes after the JSON."""
    classification: None = None
    """Not supported."""
    shared_memory_region: None = None
    """Not supported."""


class InputTensor(Fields):
    """An input."""

    name: Literal["query", "title"]
    """Which input."""
    datatype: Literal["BYTES"]
    """Texts."""
    shape: list[Annotated[int, Field(ge=0), WHOLE_NUMBER]] = Field(fail_fast=True)
    """[n] or [n, 1]."""
    parameters: TensorParameters = TensorParameters()
    """How the tensor is sent."""
    data: Annotated[list[str], Field(fail_fast=True)] | None = None
    """The elements."""


class WantedOutput(Fields):
    """An output that is wanted."""

    name: Literal["score", "probabilities", "grade"]
    """Which output."""
    parameters: TensorParameters = TensorParameters()
    """How the output is wanted."""


def read_texts(inputs: Sequence[InputTensor], content: bytes) -> dict[str, Any]:
    """Return `query` and `titles`, or `pairs`, of a request's tensors. Raises InvalidRequest.

    content: the bytes after the JSON; they belong to the inputs that say so, in their order.
    """
    texts: dict[str, list[str]] = {}
    for index, tensor in enumerate(inputs):
        where = f"inputs[{index}]"
        if tensor.name in texts:
            raise InvalidRequest(f"is the second {tensor.name}", param=where)
        size = tensor.parameters.binary_data_size
        if size is not None and size > len(content):
            raise InvalidRequest("is more than the body holds", param=f"{where}.parameters.binary_data_size")
        texts[tensor.name] = _elements(tensor, where, None if size is None else content[:size])
        content = content[size or 0 :]
    for name in ("query", "title"):
        if name not in texts:
            raise InvalidRequest(f"there is no tensor {name!r}; send query and title", param="inputs")
    if content:
        raise InvalidRequest(f"{len(content)} bytes after the JSON belong to no input", param="inputs")
    return query_and_titles(texts["query"], texts["title"])


def _elements(tensor: InputTensor, where: str, content: bytes | None) -> list[str]:
    """Return the texts of a tensor, from its bytes or else its JSON. Raises InvalidRequest."""
    shape = tensor.shape
    if len(shape) != 1 and shape[1:] != [1]:
        raise InvalidRequest(f"should be [n] or [n, 1], not {shortened(shape)}", param=f"{where}.shape")
    if content is None and tensor.data is None:
        raise InvalidRequest("is missing; give the tensor's elements as strings", param=f"{where}.data")
    elements = tensor.data or []
    if content is not None:
        elements = list(islice(_strings(content, where), shape[0] + 1))
    if len(elements) != shape[0]:
        raise InvalidRequest(
            f"{len(elements)} elements do not fill the shape {shortened(shape)}", param=f"{where}.data"
        )
    return elements


def _strings(content: bytes, where: str) -> Iterator[str]:
    """Yield the elements of a BYTES tensor: each has its length before it, in 4 bytes, little-endian."""
    end = 0
    while end < len(content):
        start = end + _TEXT_LENGTH.size
        if start <= len(content):
            end = start + _TEXT_LENGTH.unpack_from(content, end)[0]
        if not start <= end <= len(content):
            raise InvalidRequest("its bytes end within an element", param=where)
        try:
            yield content[start:end].decode()
        except UnicodeDecodeError:
            raise InvalidRequest("should hold text in UTF-8", param=where) from None


def add_empty_grades(results: Sequence[ScoreResult], labels: int) -> None:
    """Give the results that were not scored the grade -1, and probabilities of 0, if the model is graded:
    it then has more than one label."""
    for result in results:
        if not result.scored and labels > 1:
            result.grade = -1
            result.probabilities = [0.0] * labels


def write_outputs(
    head: dict[str, Any], outputs: Sequence[WantedOutput], results: list[ScoreResult], *, binary: bool
) -> tuple[bytes, dict[str, str]]:
    """Return an answer with the wanted outputs, all that the model has if none is named, and its headers.

    binary: whether outputs that do not say how they are wanted come as bytes after the JSON.
    Raises InvalidRequest if a wanted output is not one of a model with one label.
    """
    tensors = []
    buffers = []
    wanted: dict[str, bool | None] = {output.name: output.parameters.binary_data for output in outputs}
    for index, (name, as_bytes) in enumerate((wanted or dict.fromkeys(DATATYPES)).items()):
        rows = [getattr(result, name) for result in results]
        if rows[0] is None:
            if not wanted:
                continue
            raise InvalidRequest(f"a model with one label has no {name}", param=f"outputs[{index}].name")
        datatype = DATATYPES[name]
        values = np.array(rows, _NUMPY[datatype])
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
        if binary if as_bytes is None else as_bytes:
            buffers.append(values.tobytes())
            tensor["parameters"] = {"binary_data_size": values.nbytes}
        else:
            tensor["data"] = values.ravel()
        tensors.append(tensor)
    content = orjson.dumps({**head, "outputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return content, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", LENGTH_HEADER: str(len(content))}
    return b"".join((content, *buffers)), headers
