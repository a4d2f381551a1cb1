"""The Open Inference Protocol, version 2: what clients of KServe and Triton speak.

A model is a checkpoint or a variant of it. Its inputs are the BYTES tensors `query` and `title`, (n,) each,
or one query for all titles. Tensors are sent as JSON, or as bytes after the JSON (Triton's binary extension).
https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md and
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Body, FastAPI, Path, Request, Response
from pydantic import Field, model_validator
from starlette.types import Receive

from headroom.service.api.body import read
from headroom.service.api.clients.base import OurFields, refuse_order_fields, renamed, their_name
from headroom.service.api.clients.tensors import (
    DATATYPES,
    LENGTH_HEADER,
    Fields,
    InputTensor,
    WantedOutput,
    add_empty_grades,
    read_texts,
    write_outputs,
)
from headroom.service.api.errors import OIP, json_response
from headroom.service.api.openapi import errors
from headroom.service.api.post import (
    Post,
    PostRoute,
    Timed,
    backend_of,
    check_ready,
    deadline_limit,
    validated,
)
from headroom.service.api.ranking import headers_of, score_titles
from headroom.service.config.settings import OnFailure
from headroom.service.errors import InvalidRequest, NotFound
from headroom.service.fields import WHOLE_NUMBER
from headroom.service.schemas.listings import VariantInfo
from headroom.service.schemas.requests import DocumentsRequest, example, too_many
from headroom.service.sentences import shortened
from headroom.version import version

if TYPE_CHECKING:
    from headroom.service.replica import Replica

VERSION = "1"
"""The version of every model. Variants have names in place of versions."""

MAX_TENSORS = 16
"""Inputs, and wanted outputs, of one request."""

_NAMES = {"query": "query", "titles": "title"}
"""The tensors that hold our fields."""

ModelName = Annotated[
    str,
    Path(
        examples=["full"],
        description="A checkpoint of `GET /v1/models`, a variant of `GET /v1/variants`, or `NAME@VARIANT`.",
    ),
]


class InferParameters(OurFields):
    """The variant, mask and limits of a request."""

    timeout: Annotated[int, Field(ge=0, le=2**53 - 1), WHOLE_NUMBER] | None = None
    """Microseconds from the arrival of the request; later, it gets 504. 0: not given."""
    binary_data_output: bool = False
    """All outputs as bytes after the JSON."""


class InferRequest(Fields):
    """Score titles against queries. Our own fields may stand beside `parameters` too."""

    model_config = example(
        inputs=[
            {"name": "query", "datatype": "BYTES", "shape": [1], "data": ["angle bracket"]},
            {"name": "title", "datatype": "BYTES", "shape": [2], "data": ["12-Gauge Angle", "Wood screws"]},
        ]
    )

    id: str | None = None
    """Repeated in the answer."""
    parameters: InferParameters = InferParameters()
    """The request's variant, mask and limits."""
    inputs: list[InputTensor] = Field(max_length=MAX_TENSORS, fail_fast=True)
    """`query` and `title`."""
    outputs: list[WantedOutput] = Field([], max_length=MAX_TENSORS, fail_fast=True)
    """The outputs wanted; default: all."""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Move our fields into `parameters`. Those that are there already count."""
        if not isinstance(value, dict) or not isinstance(value.get("parameters", {}), dict):
            return value
        ours = {name: value[name] for name in OurFields.model_fields if name in value}
        return {**value, "parameters": {**ours, **value.get("parameters", {})}} if ours else value

    @property
    def deadline_ms(self) -> float | None:
        """Return the request's own timeout."""
        timeout = self.parameters.timeout
        return timeout / 1000 if timeout else self.parameters.deadline_ms

    def deadline_limit(self, limit_ms: float) -> tuple[str, str]:
        """Return the field that the request's own timeout is in, and the largest value in its unit."""
        if self.parameters.timeout:
            return "parameters.timeout", f"{limit_ms * 1000:.0f}"
        return deadline_limit(limit_ms)

    def keeps_order(self, default: OnFailure) -> bool:
        """Return whether a failure is answered with scores of 0. default: the config's `on_failure`."""
        return self.parameters.keeps_order(default)


class InferRoute(PostRoute):
    """A POST route whose body may hold tensors after its JSON."""

    async def read_body(self, request: Post, receive: Receive, hold: Callable[[int], None]) -> bytes:
        """Return the JSON of the body; `request.state.tensors` holds the bytes after it."""
        # Triton's client names no type. A web page that sends none names its origin, which is checked.
        length = request.headers.get(LENGTH_HEADER)
        types = [""] if length is None else ["", "application/octet-stream"]
        content = await read(receive, request.headers, request.settings, hold, other_types=types)
        end = len(content)
        if length is not None:
            if not length.isdecimal() or len(length) > 20 or int(length) > end:
                raise InvalidRequest(f"should be the bytes of the JSON, at most {end}", param=LENGTH_HEADER)
            end = int(length)
        request.state.tensors = content[end:]
        return content[:end]


async def infer(request: Post, model: ModelName, body: Annotated[InferRequest, Body()]) -> Timed:
    """Score titles against queries. The answer is that of the protocol.

    Its outputs are `score` and, of a graded model, `probabilities` (FP32) and `grade` (INT64). Tensors may be
    sent as bytes after the JSON (`binary_data_size`), and are answered so if asked for (`binary_data`,
    `binary_data_output`).
    """
    name, served, variant = _served(request.backend, model)
    parameters = body.parameters
    if parameters.variant is not None:
        _, _, variant = _served(request.backend, f"{served.model}@{parameters.variant}")
    fields = parameters.model_dump(include=set(OurFields.model_fields))
    fields |= {"variant": variant, "deadline_ms": body.deadline_ms}
    try:
        refuse_order_fields(parameters, "min_score", "min_grade")  # a tensor has an element per title
        for tensor in body.inputs:
            if tensor.shape and tensor.shape[0] > request.settings.max_pairs:
                raise too_many(tensor.shape[0], tensor.name, request.settings)
        texts = read_texts(body.inputs, request.state.tensors)
        score_request = validated(DocumentsRequest, texts | fields | {"is_ranked": False})
        response = await score_titles(request, score_request)
    except InvalidRequest as error:
        raise renamed(error, lambda param: their_name(param, _NAMES)) from None
    truncated = sum(result.truncated for result in response.results)
    head = {
        "model_name": name,
        "model_version": VERSION,
        "parameters": {"variant": response.variant, "truncated": truncated, "reranked": response.reranked},
        **({} if body.id is None else {"id": body.id}),
    }
    add_empty_grades(response.results, len(response.labels))
    content, headers = write_outputs(
        head, body.outputs, response.results, binary=parameters.binary_data_output
    )
    return Timed(content, response.timing_ms, headers | headers_of(response))


async def metadata(request: Request, model: ModelName) -> Response:
    """A model's inputs and outputs."""
    name, served, _ = _served(backend_of(request), model)
    grades = served.grades
    shapes = {"score": [-1]} | ({"probabilities": [-1, len(grades)], "grade": [-1]} if grades else {})
    return json_response(
        {
            "name": name,
            "versions": [VERSION],
            "platform": "headroom",
            "inputs": [{"name": each, "datatype": "BYTES", "shape": [-1]} for each in ("query", "title")],
            "outputs": [{"name": key, "datatype": DATATYPES[key], "shape": shapes[key]} for key in shapes],
        }
    )


async def model_ready(request: Request, model: ModelName) -> Response:
    """The model is there, and requests are welcome."""
    check_ready(request)
    name, _, _ = _served(backend_of(request), model)
    return json_response({"name": name, "ready": True})


async def server() -> Response:
    """This server and the extensions of the protocol that it knows."""
    extensions = ["binary_tensor_data", "parameters"]
    return json_response({"name": "headroom", "version": version(), "extensions": extensions})


async def health(request: Request) -> Response:
    """The process runs (`live`), or requests are welcome (`ready`)."""
    state = request.url.path.rpartition("/")[2]
    if state == "ready":
        check_ready(request)
    return json_response({state: True})


def add_routes(app: FastAPI) -> None:
    """Add /v2, /v2/health and /v2/models. Their answers are those of the protocol."""
    for path, endpoint, name, statuses in (
        ("/v2/models/{model:path}/infer", infer, "oip_infer", (*OIP.statuses, 404)),
        ("/v2", server, "oip_server", (401, 403, 429, 500)),
        ("/v2/health/live", health, "oip_live", (500,)),
        ("/v2/health/ready", health, "oip_ready", (500, 503)),
        ("/v2/models/{model:path}/ready", model_ready, "oip_model_ready", (401, 404, 429, 500, 503)),
        ("/v2/models/{model:path}", metadata, "oip_model", (401, 404, 429, 500, 503)),
    ):
        app.router.add_api_route(
            path,
            endpoint,
            name=name,
            methods=["POST" if endpoint is infer else "GET"],
            response_model=dict[str, Any],
            responses=errors(*statuses, model=OIP.model),
            tags=["Open Inference Protocol"],
            route_class_override=InferRoute if endpoint is infer else None,
        )


def _served(backend: Replica, model: str) -> tuple[str, VariantInfo, str | None]:
    """Return a model's name without its version, the variant that it means, and that one's name in a request.

    A checkpoint's name alone is its first variant, or, if the default variant runs it, what requests without
    a variant get: the name in a request is then None. Raises NotFound.
    """
    name = model.removesuffix(f"/versions/{VERSION}")
    variants = backend.variants().variants
    for variant in variants:
        if name in (variant.name, f"{variant.model}@{variant.name}"):
            return name, variant, variant.name
    of_model = sorted((v for v in variants if v.model == name), key=lambda variant: not variant.default)
    if not of_model:
        known = ", ".join(f"{variant.model}@{variant.name}" for variant in variants)
        raise NotFound(f"There is no model {shortened(name)!r}; there are {known}.")
    return name, of_model[0], None if of_model[0].default else of_model[0].name
