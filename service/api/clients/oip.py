"""The Open Inference Protocol, version 2: what clients of KServe and Triton speak.

A model is a checkpoint or a variant of it. Its inputs are the BYTES tensors `query` and `title`, (n,) each,
or one query for all titles. Tensors are sent as JSON, or as bytes after the JSON (Triton's binary extension).
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
import orjson
from fastapi import Body, FastAPI, Path, Request, Response
from starlette.routing import Match
from starlette.types import Receive, Scope

from service.api import strict_json
from service.api.backend import Backend
from service.api.body import check_content_type, read
from service.api.clients.base import STATUSES, OurFields, degraded_header, renamed, score_charged
from service.api.clients.oip_schemas import (
    InferAnswer,
    InferRequest,
    InputTensor,
    ModelMetadata,
    ModelReady,
    OipError,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorMetadata,
)
from service.api.errors import json_response
from service.api.openapi import errors
from service.api.post import Post, PostRoute, Timed, backend_of, check_ready, validated
from service.errors import InvalidRequest, NotFound, shown
from service.schemas.listings import VariantInfo
from service.schemas.requests import ScoreRequest
from service.schemas.responses import ScoreResult

VERSION = "1"
"""The version of every model. Variants have names in place of versions."""

_LENGTH_HEADER = "inference-header-content-length"
"""The header that says how many bytes of a body are its JSON."""

_DATATYPES = {"score": "FP32", "probabilities": "FP32", "grade": "INT64"}
_NUMPY = {"FP32": "<f4", "INT64": "<i8"}
_TEXT_LENGTH = struct.Struct("<I")

_ModelName = Annotated[
    str,
    Path(
        examples=["full"],
        description="A checkpoint of `GET /v1/models`, a variant of `GET /v1/variants`, or `NAME@VARIANT`.",
    ),
]


class InferRoute(PostRoute):
    """A POST route whose body may hold tensors after its JSON.

    It takes its path whatever the method, so that `GET …/full/infer` gets 405, and not 404 for a model
    `full/infer`.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the path is this route's."""
        match, child_scope = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL else match), child_scope

    async def read_body(self, request: Post, receive: Receive) -> Any:
        """Return the JSON value of the body; `request.state.tensors` holds the bytes after it."""
        # Triton's client names no type. A web page that sends none names its origin, which is checked.
        length = request.headers.get(_LENGTH_HEADER)
        check_content_type(
            request.headers, others=[""] if length is None else ["", "application/octet-stream"]
        )
        content = request.content = await read(receive, request.headers, request.settings)
        end = len(content)
        if length is not None:
            if not length.isdecimal() or len(length) > 20 or int(length) > end:
                raise InvalidRequest(f"should be the bytes of the JSON, at most {end}", param=_LENGTH_HEADER)
            end = int(length)
        request.state.tensors = content[end:]
        return strict_json.loads(content[:end], max_parts=request.settings.max_json_parts)


async def infer(request: Post, model: _ModelName, body: Annotated[InferRequest, Body()]) -> Timed:
    """Score titles against queries.

    Tensors may be sent as bytes after the JSON (`binary_data_size`), and are then answered so if asked for
    (`binary_data`, `binary_data_output`).
    """
    name = model.removesuffix(f"/versions/{VERSION}")
    ours = body.parameters.model_dump(include=set(OurFields.model_fields))
    found, variant = _served(request.backend, name)
    if ours["variant"] is not None:
        _, variant = _served(request.backend, f"{found.model}@{ours['variant']}")
    try:
        fields = ours | {"variant": variant, "deadline_ms": body.deadline_ms}
        score_request = validated(ScoreRequest, _texts(body.inputs, request.state.tensors) | fields)
        response = await score_charged(request, score_request)
    except InvalidRequest as error:
        raise renamed(error, _their_name) from None
    head: dict[str, Any] = {"model_name": name, "model_version": VERSION}
    if body.id is not None:
        head["id"] = body.id
    truncated = sum(result.truncated for result in response.results)
    head["parameters"] = {"variant": response.variant, "truncated": truncated}
    content, headers = _written(head, body, response.results)
    return Timed(content, response.timing_ms, headers | degraded_header(response))


async def metadata(request: Request, model: _ModelName) -> Response:
    """A model's inputs and outputs."""
    backend = backend_of(request)
    name = model.removesuffix(f"/versions/{VERSION}")
    variant, _ = _served(backend, name)
    grades = backend.model_of(variant.name).grades or []
    shapes = {"score": [-1], "probabilities": [-1, len(grades)], "grade": [-1]} if grades else {"score": [-1]}
    outputs = [TensorMetadata(output, _DATATYPES[output], shape) for output, shape in shapes.items()]
    inputs = [TensorMetadata("query", "BYTES", [-1]), TensorMetadata("title", "BYTES", [-1])]
    return json_response(ModelMetadata(name, [VERSION], "headroom", inputs, outputs))


async def model_ready(request: Request, model: _ModelName) -> Response:
    """The model is there, and requests are welcome."""
    check_ready(request)
    name = model.removesuffix(f"/versions/{VERSION}")
    _served(backend_of(request), name)
    return json_response(ModelReady(name=name, ready=True))


async def server() -> Response:
    """This server and the extensions of the protocol that it knows."""
    extensions = ["binary_tensor_data", "parameters"]
    return json_response(ServerMetadata("headroom", version("headroom"), extensions))


async def live() -> Response:
    """The process runs."""
    return json_response(ServerLive(live=True))


async def ready(request: Request) -> Response:
    """Requests are welcome."""
    check_ready(request)
    return json_response(ServerReady(ready=True))


def add_routes(app: FastAPI) -> None:
    """Add /v2, /v2/health and /v2/models."""
    gets = (401, 404, 429, 500, 503)
    app.router.add_api_route(
        "/v2/models/{model:path}/infer",
        infer,
        name="oip_infer",
        methods=["POST"],
        response_model=InferAnswer,
        responses=errors(*STATUSES, 404, model=OipError),
        tags=["Open Inference Protocol"],
        route_class_override=InferRoute,
    )
    for path, endpoint, name, answer, statuses in (
        ("/v2", server, "oip_server", ServerMetadata, (401, 403, 429, 500)),
        ("/v2/health/live", live, "oip_live", ServerLive, (500,)),
        ("/v2/health/ready", ready, "oip_ready", ServerReady, (500, 503)),
        ("/v2/models/{model:path}/ready", model_ready, "oip_model_ready", ModelReady, gets),
        ("/v2/models/{model:path}", metadata, "oip_model", ModelMetadata, gets),
    ):
        app.add_api_route(
            path,
            endpoint,
            name=name,
            response_model=answer,
            responses=errors(*statuses, model=OipError),
            tags=["Open Inference Protocol"],
        )


def _served(backend: Backend, name: str) -> tuple[VariantInfo, str | None]:
    """Return the variant that a model's name means, and its name for a request. Raises NotFound.

    A checkpoint's name alone is its first variant, or, if the default variant runs it, what requests without
    a variant get: the name for a request is then None.
    """
    variants = backend.variants().variants
    for variant in variants:
        if name in (variant.name, f"{variant.model}@{variant.name}"):
            return variant, variant.name
    of_model = sorted((v for v in variants if v.model == name), key=lambda variant: not variant.default)
    if not of_model:
        known = ", ".join(f"{variant.model}@{variant.name}" for variant in variants)
        raise NotFound(f"There is no model {shown(name)!r}; there are {known}.")
    return of_model[0], None if of_model[0].default else of_model[0].name


def _texts(inputs: list[InputTensor], content: bytes) -> dict[str, Any]:
    """Return `query` and `titles`, or `pairs`, of a request's tensors. Raises InvalidRequest.

    content: the bytes after the JSON; they belong to the inputs that say so, in their order.
    """
    texts: dict[str, list[str]] = {}
    for place, tensor in enumerate(inputs):
        where = f"inputs[{place}]"
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
    queries, titles = texts["query"], texts["title"]
    if len(queries) == 1:
        return {"query": queries[0], "titles": titles}
    if len(queries) != len(titles):
        raise InvalidRequest(
            f"{len(queries)} queries for {len(titles)} titles; send one, or as many", param="query"
        )
    return {"pairs": list(zip(queries, titles, strict=True))}


def _elements(tensor: InputTensor, where: str, content: bytes | None) -> list[str]:
    """Return the texts of a tensor, from its bytes or else its JSON. Raises InvalidRequest."""
    shape = tensor.shape
    if len(shape) != 1 and shape[1:] != [1]:
        raise InvalidRequest(f"should be [n] or [n, 1], not {shown(shape)}", param=f"{where}.shape")
    if content is None and tensor.data is None:
        raise InvalidRequest("is missing; give the tensor's elements as strings", param=f"{where}.data")
    elements = (tensor.data or []) if content is None else list(_strings(content, where))
    if len(elements) != shape[0]:
        raise InvalidRequest(
            f"{len(elements)} elements do not fill the shape {shown(shape)}", param=f"{where}.data"
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


def _written(
    head: dict[str, Any], body: InferRequest, results: list[ScoreResult]
) -> tuple[bytes, dict[str, str]]:
    """Return an answer with the wanted outputs, all that the model has if none is named, and its headers.

    Raises InvalidRequest if a wanted output is not one of a model with one label.
    """
    tensors, buffers = [], []
    wanted: dict[str, bool | None] = {output.name: output.parameters.binary_data for output in body.outputs}
    for place, (name, binary) in enumerate((wanted or dict.fromkeys(_DATATYPES)).items()):
        rows = [getattr(result, name) for result in results]
        if rows[0] is None:
            if not wanted:
                continue
            raise InvalidRequest(f"a model with one label has no {name}", param=f"outputs[{place}].name")
        datatype = _DATATYPES[name]
        values = np.array(rows, _NUMPY[datatype])
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(values.shape)}
        if body.parameters.binary_data_output if binary is None else binary:
            buffers.append(values.tobytes())
            tensor["parameters"] = {"binary_data_size": values.nbytes}
        else:
            tensor["data"] = values.ravel()
        tensors.append(tensor)
    content = orjson.dumps({**head, "outputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
    if not buffers:
        return content, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", _LENGTH_HEADER: str(len(content))}
    return b"".join((content, *buffers)), headers


def _their_name(param: str) -> str:
    """Return the tensor, and the index in it, of one of our fields: `title[3]` for `titles[3]`."""
    field = param.partition("[")[0]
    index = param[len(field) :]
    if field == "pairs":
        return f"query{index.removesuffix('[0]')}"
    return ("title" if field == "titles" else field) + index
