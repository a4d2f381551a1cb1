"""The Open Inference Protocol, version 2: what clients of KServe and Triton speak.

A model is a checkpoint or a variant of it. Its inputs are the BYTES tensors `query` and `title`, (n,) each,
or one query for all titles.
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any

import numpy as np
from fastapi import Body, FastAPI, Path, Request, Response
from starlette.routing import Match
from starlette.types import Scope

from service.api.body import check_content_type
from service.api.clients import tensors
from service.api.clients.base import STATUSES, degraded_header, renamed
from service.api.clients.oip_schemas import (
    EXAMPLES,
    VERSION,
    InferAnswer,
    InferParameters,
    InferRequest,
    ModelMetadata,
    ModelReady,
    OipError,
    ServerLive,
    ServerMetadata,
    ServerReady,
    TensorMetadata,
    WantedOutput,
)
from service.api.clients.served import grades, served
from service.api.examples import ANSWERS
from service.api.openapi import errors
from service.api.post import Post, PostRoute, Timed, backend_of, check_ready, validated
from service.api.replies import json_response
from service.errors import InvalidRequest
from service.schemas.limits import check_score
from service.schemas.requests import ScoreRequest, shown
from service.schemas.responses import ScoreResult

_OUTPUTS = {"score": "FP32", "probabilities": "FP32", "grade": "INT64"}
"""The datatype of each output."""

TAG = "Open Inference Protocol"
_GET = (401, 404, 429, 500, 503)
_SERVER = ServerMetadata("headroom", version("headroom"), ["binary_tensor_data", "parameters"])

_NAMES = {"titles": "title", "pairs": "query"}


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

    def _check_headers(self, request: Post) -> None:
        # Triton's client names no type. A web page that sends none names its origin, which is checked.
        binary = ["application/octet-stream"] if tensors.HEADER in request.headers else []
        check_content_type(request.headers, others=["", *binary])

    def _parsed(self, content: bytes, request: Post) -> Any:
        content, request.state.tensors = tensors.split(content, request.headers.get(tensors.HEADER))
        return super()._parsed(content, request)


async def infer(request: Post, model: _ModelName, body: Annotated[InferRequest, Body()]) -> Timed:
    """Score titles against queries.

    Tensors may be sent as bytes after the JSON (`binary_data_size`), and are then answered so if asked for
    (`binary_data`, `binary_data_output`).
    """
    name = _without_version(model)
    chosen = served(request.backend, name)
    parameters = body.parameters or InferParameters.model_construct()
    if (variant := body.given("variant")) is not None:
        chosen = served(request.backend, f"{chosen.model}@{variant}")
    wanted = _wanted(body, parameters)
    try:
        score_request = validated(
            ScoreRequest,
            {
                **_texts(body, request.state.tensors),
                "variant": chosen.variant,
                "head_mask": body.given("head_mask"),
                "unit": body.given("unit"),
                "attributes": body.given("attributes"),
                "deadline_ms": body.deadline,
            },
        )
        check_score(score_request, request.settings)
        with request.charged(score_request.count):
            response = await request.backend.score(score_request, request.deadline)
    except InvalidRequest as error:
        raise renamed(error, _their_name) from None
    answer: dict[str, Any] = {"model_name": name, "model_version": VERSION}
    if body.id is not None:
        answer["id"] = body.id
    truncated = sum(result.truncated for result in response.results)
    answer["parameters"] = {"variant": response.variant, "truncated": truncated}
    content, headers = tensors.write(answer, _tensors(wanted, response.results, named=bool(body.outputs)))
    return Timed(content, response.timing_ms, {**headers, **degraded_header(response)})


async def metadata(request: Request, model: _ModelName) -> Response:
    """A model's inputs and outputs."""
    backend = backend_of(request)
    name = _without_version(model)
    count = len(grades(backend, name))
    outputs = [TensorMetadata("score", "FP32", [-1])]
    if count:
        outputs.append(TensorMetadata("probabilities", "FP32", [-1, count]))
        outputs.append(TensorMetadata("grade", "INT64", [-1]))
    inputs = [TensorMetadata("query", "BYTES", [-1]), TensorMetadata("title", "BYTES", [-1])]
    return json_response(ModelMetadata(name, [VERSION], "headroom", inputs, outputs))


async def model_ready(request: Request, model: _ModelName) -> Response:
    """The model is there, and requests are welcome."""
    check_ready(request)
    name = _without_version(model)
    served(backend_of(request), name)
    return json_response(ModelReady(name, ready=True))


async def server() -> Response:
    """This server and the extensions of the protocol that it knows."""
    return json_response(_SERVER)


async def live() -> Response:
    """The process runs."""
    return json_response(ServerLive(live=True))


async def ready(request: Request) -> Response:
    """Requests are welcome."""
    check_ready(request)
    return json_response(ServerReady(ready=True))


def add_routes(app: FastAPI) -> None:
    """Add /v2, /v2/health and /v2/models."""
    ANSWERS.update(EXAMPLES)
    app.router.add_api_route(
        "/v2/models/{model:path}/infer",
        infer,
        name="oip_infer",
        methods=["POST"],
        response_model=InferAnswer,
        responses=errors(*STATUSES, 404, model=OipError),
        tags=[TAG],
        route_class_override=InferRoute,
    )
    for path, endpoint, name, answer, statuses in (
        ("/v2", server, "oip_server", ServerMetadata, (401, 403, 429, 500)),
        ("/v2/health/live", live, "oip_live", ServerLive, (500,)),
        ("/v2/health/ready", ready, "oip_ready", ServerReady, (500, 503)),
        ("/v2/models/{model:path}/ready", model_ready, "oip_model_ready", ModelReady, _GET),
        ("/v2/models/{model:path}", metadata, "oip_model", ModelMetadata, _GET),
    ):
        app.add_api_route(
            path,
            endpoint,
            name=name,
            response_model=answer,
            responses=errors(*statuses, model=OipError),
            tags=[TAG],
        )


def _without_version(model: str) -> str:
    """Return the name of `NAME/versions/1`."""
    return model.removesuffix(f"/versions/{VERSION}")


def _wanted(body: InferRequest, parameters: InferParameters) -> dict[str, bool]:
    """Return whether each wanted output goes out in binary, by name. Raises InvalidRequest."""
    wanted = {}
    for place, output in enumerate(body.outputs or [WantedOutput(name=name) for name in _OUTPUTS]):
        if output.name not in _OUTPUTS:
            raise InvalidRequest(
                f"there is no output {shown(output.name)!r}; there are {', '.join(_OUTPUTS)}",
                param=f"outputs[{place}].name",
            )
        binary = parameters.binary_data_output
        if output.parameters is not None:
            for name in ("classification", "shared_memory_region"):
                if getattr(output.parameters, name) is not None:
                    raise InvalidRequest("is not supported", param=f"outputs[{place}].parameters.{name}")
            if output.parameters.binary_data is not None:
                binary = output.parameters.binary_data
        wanted[output.name] = binary
    return wanted


def _tensors(
    wanted: Mapping[str, bool], results: Sequence[ScoreResult], *, named: bool
) -> list[tensors.Output]:
    """Return the wanted outputs: of a one-label model the score, and no other. Raises InvalidRequest."""
    outputs = []
    for place, (name, binary) in enumerate(wanted.items()):
        values = [getattr(result, name) for result in results]
        if values[0] is not None:
            outputs.append(tensors.Output(name, _OUTPUTS[name], np.array(values), binary))
        elif named:
            raise InvalidRequest(f"a model with one label has no {name}", param=f"outputs[{place}].name")
    return outputs


def _texts(body: InferRequest, binary: bytes) -> dict[str, Any]:
    """Return `query` and `titles`, or `pairs`, of a request's tensors. Raises InvalidRequest.

    binary: the bytes after the JSON; they belong to the inputs that say so, in their order.
    """
    texts_by_name: dict[str, list[str]] = {}
    start = 0
    for place, tensor in enumerate(body.inputs):
        where = f"inputs[{place}]"
        if tensor.name not in ("query", "title"):
            raise InvalidRequest(
                f"there is no input {shown(tensor.name)!r}; send query and title", param=where
            )
        if tensor.name in texts_by_name:
            raise InvalidRequest(f"is the second {tensor.name}", param=where)
        sent = tensor.parameters
        if sent is not None and sent.shared_memory_region is not None:
            raise InvalidRequest("is not supported", param=f"{where}.parameters.shared_memory_region")
        content = None
        if sent is not None and sent.binary_data_size is not None:
            end = start + sent.binary_data_size
            if end > len(binary):
                raise InvalidRequest(
                    "is more than the body holds", param=f"{where}.parameters.binary_data_size"
                )
            content, start = binary[start:end], end
        texts_by_name[tensor.name] = tensors.texts(
            tensor.model_dump(include={"datatype", "shape", "data"}), where, content
        )
    for name in ("query", "title"):
        if name not in texts_by_name:
            raise InvalidRequest(f"there is no tensor {name!r}; send query and title", param="inputs")
    if start != len(binary):
        raise InvalidRequest(f"{len(binary) - start} bytes after the JSON belong to no input", param="inputs")
    queries, titles = texts_by_name["query"], texts_by_name["title"]
    if len(queries) == 1:
        return {"query": queries[0], "titles": titles}
    if len(queries) != len(titles):
        raise InvalidRequest(
            f"{len(queries)} queries for {len(titles)} titles; send one, or as many", param="query"
        )
    return {"pairs": list(zip(queries, titles, strict=True))}


def _their_name(param: str) -> str:
    """Return the tensor, and the place in it, of one of our fields: `title[3]` for `titles[3]`."""
    field = param.partition("[")[0]
    place = param[len(field) :]
    return _NAMES.get(field, field) + (place.removesuffix("[0]") if field == "pairs" else place)
