"""Requests and answers of the Open Inference Protocol, for the tests."""

from __future__ import annotations

import struct
from typing import Any

import httpx
import numpy as np
import orjson

from tests.service.in_process import QUERY, TITLES

LENGTH = "inference-header-content-length"
INFER = "/v2/models/full/infer"


def tensor(name: str, texts: list[str], shape: list[int] | None = None, **more: Any) -> dict[str, Any]:
    shape = [len(texts)] if shape is None else shape
    return {"name": name, "datatype": "BYTES", "shape": shape, "data": texts} | more


INPUTS = [tensor("query", [QUERY]), tensor("title", TITLES)]


def with_bytes(inputs: list[dict[str, Any]], **fields: Any) -> tuple[bytes, dict[str, str]]:
    """A body whose tensors follow its JSON, and its headers."""
    described, buffers = [], []
    for each in inputs:
        texts = [text.encode() for text in each["data"]]
        buffers.append(b"".join(struct.pack("<I", len(text)) + text for text in texts))
        bare = {key: value for key, value in each.items() if key != "data"}
        described.append(bare | {"parameters": {"binary_data_size": len(buffers[-1])}})
    head = orjson.dumps({"inputs": described, **fields})
    headers = {LENGTH: str(len(head)), "content-type": "application/octet-stream"}
    return head + b"".join(buffers), headers


def outputs_of(answer: httpx.Response) -> dict[str, np.ndarray]:
    """The outputs of an answer, from JSON or bytes."""
    size = int(answer.headers.get(LENGTH, len(answer.content)))
    rest = answer.content[size:]
    outputs = {}
    for output in orjson.loads(answer.content[:size])["outputs"]:
        kind = {"FP32": np.float32, "INT64": np.int64}[output["datatype"]]
        if "data" in output:
            values = np.array(output["data"], kind)
        else:
            count = output["parameters"]["binary_data_size"]
            values, rest = np.frombuffer(rest[:count], kind), rest[count:]
        outputs[output["name"]] = values.reshape(output["shape"])
    assert not rest
    return outputs
