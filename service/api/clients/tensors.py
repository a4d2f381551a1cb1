"""Tensors of the Open Inference Protocol: as JSON, and as bytes after the JSON (Triton's binary extension).

https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from service.errors import InvalidRequest
from service.schemas.requests import shown

HEADER = "inference-header-content-length"
"""The header that says how many bytes of a body are its JSON; tensors follow as bytes."""

DATATYPES = {"FP32": "<f4", "INT64": "<i8"}
_LENGTH = struct.Struct("<I")


class Output(NamedTuple):
    """A tensor of an answer. binary: whether its values go out as bytes after the JSON."""

    name: str
    datatype: str
    values: np.ndarray
    binary: bool


def split(content: bytes, header: str | None) -> tuple[bytes, bytes]:
    """Return the JSON of a body, and the bytes of tensors after it. Raises InvalidRequest.

    header: the value of `Inference-Header-Content-Length`, or None if all of the body is JSON.
    """
    if header is None:
        return content, b""
    if not header.isdecimal() or len(header) > 20 or int(header) > len(content):
        raise InvalidRequest(f"should be the bytes of the JSON, at most {len(content)}", param=HEADER)
    return content[: int(header)], content[int(header) :]


def texts(tensor: Mapping[str, Any], place: str, binary: bytes | None) -> list[str]:
    """Return the elements of a BYTES tensor, which should be UTF-8. Raises InvalidRequest.

    tensor: with `datatype`, `shape` and, unless there are bytes, `data`. place: its name for messages.
    """
    if tensor["datatype"] != "BYTES":
        raise InvalidRequest(f"should be BYTES, not {shown(tensor['datatype'])}", param=f"{place}.datatype")
    count = _elements(tensor["shape"], place)
    if binary is None:
        if tensor["data"] is None:
            raise InvalidRequest("is missing; give the tensor's elements as strings", param=f"{place}.data")
        elements = list(_flat(tensor["data"], place))
    else:
        elements = list(_strings(binary, place))
    if len(elements) != count:
        raise InvalidRequest(
            f"{len(elements)} elements do not fill the shape {shown(tensor['shape'])}", param=f"{place}.data"
        )
    return elements


def write(answer: Mapping[str, Any], outputs: Sequence[Output]) -> tuple[bytes, dict[str, str]]:
    """Return an inference response, `answer` with its `outputs`, as a body and its headers."""
    described = []
    buffers = []
    for output in outputs:
        values = np.ascontiguousarray(output.values, DATATYPES[output.datatype])
        tensor: dict[str, Any] = {
            "name": output.name,
            "datatype": output.datatype,
            "shape": list(values.shape),
        }
        if output.binary:
            buffers.append(values.tobytes())
            tensor["parameters"] = {"binary_data_size": len(buffers[-1])}
        else:
            tensor["data"] = values.ravel()
        described.append(tensor)
    content = orjson.dumps({**answer, "outputs": described}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return content, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER: str(len(content))}
    return b"".join((content, *buffers)), headers


def _elements(shape: Sequence[int], place: str) -> int:
    """Return the number of elements of a vector, (n,) or (n, 1)."""
    if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
        raise InvalidRequest(f"should be [n] or [n, 1], not {shown(list(shape))}", param=f"{place}.shape")
    return shape[0]


def _flat(data: Any, place: str) -> Iterator[str]:
    """Yield the elements of `data`, which may be nested as its shape is."""
    for element in data:
        if isinstance(element, list) and len(element) == 1:
            (element,) = element
        if not isinstance(element, str):
            raise InvalidRequest("should hold strings alone", param=f"{place}.data")
        yield element


def _strings(binary: bytes, place: str) -> Iterator[str]:
    """Yield the elements of a BYTES tensor: each has its length before it, in 4 bytes, little-endian."""
    offset = 0
    while offset < len(binary):
        start = offset + _LENGTH.size
        if start > len(binary):
            break
        (length,) = _LENGTH.unpack_from(binary, offset)
        offset = start + length
        if offset > len(binary):
            break
        try:
            yield binary[start:offset].decode()
        except UnicodeDecodeError:
            raise InvalidRequest("should hold text in UTF-8", param=place) from None
    if offset != len(binary):
        raise InvalidRequest("its bytes end within an element", param=place)
