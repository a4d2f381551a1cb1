"""The routes about experiments: outcomes, what stands where, and the switches of an admin."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fastapi import Body, FastAPI, Path, Request, Response

from service.api_keys import ApiKey
from service.errors import Forbidden, Starting
from service.experiments.analysis.views import ExperimentDetail, ExperimentsView
from service.experiments.definition.events import OutcomeReceipt
from service.http.backend import Backend, Experiments
from service.http.openapi import GET_ERRORS, errors
from service.http.replies import json_response
from service.schemas.experiments import OutcomesRequest, RampRequest, ShipRequest, StopRequest

Name = Annotated[str, Path(max_length=64, description="The experiment's name in the config.")]

_WRITE = errors(400, 401, 408, 413, 415, 422, 429, 500, 503)
_SWITCH = errors(400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503)


async def outcomes(request: Request, body: Annotated[OutcomesRequest, Body()]) -> Response:
    """Report what exposed units did. Answered when stored; on 503 send it again, nothing counts twice."""
    return json_response(await _experiments(request).record([item.event() for item in body.outcomes]))


async def experiments(request: Request) -> Response:
    """The experiments of the live config, as the answering replica knows them."""
    return json_response(_experiments(request).listing())


async def experiment(request: Request, name: Name) -> Response:
    """One experiment: state, log, and the analysis so far (null while the database is down)."""
    return json_response(await _experiments(request).show(name))


async def ramp(request: Request, name: Name, body: Annotated[RampRequest, Body()]) -> Response:
    """Change the traffic, resume a stopped experiment, or take rolled back arms in again. Admin."""
    actor = _admin(request)
    return json_response(
        await _experiments(request).ramp(
            name, traffic=body.traffic, reinstate=body.reinstate, reason=body.reason, actor=actor
        )
    )


async def stop(request: Request, name: Name, body: Annotated[StopRequest, Body()]) -> Response:
    """End the experiment: everybody gets the default. Takes back a `ship`, too. Admin."""
    actor = _admin(request)
    return json_response(await _experiments(request).stop(name, reason=body.reason, actor=actor))


async def ship(request: Request, name: Name, body: Annotated[ShipRequest, Body()]) -> Response:
    """End the experiment: everybody but the holdout gets this arm's variant. Admin."""
    actor = _admin(request)
    return json_response(
        await _experiments(request).ship(name, arm=body.arm, reason=body.reason, actor=actor)
    )


def add_experiment_routes(app: FastAPI) -> None:
    """Add everything to an app whose `state` has `backend`."""
    tags: list[str | Enum] = ["experiments"]
    app.add_api_route(
        "/v1/outcomes", outcomes, methods=["POST"], response_model=OutcomeReceipt, responses=_WRITE, tags=tags
    )
    app.add_api_route(
        "/v1/experiments", experiments, response_model=ExperimentsView, responses=GET_ERRORS, tags=tags
    )
    app.add_api_route(
        "/v1/experiments/{name}",
        experiment,
        response_model=ExperimentDetail,
        responses=GET_ERRORS | errors(404, 422),
        tags=tags,
    )
    for verb in (ramp, stop, ship):
        app.add_api_route(
            f"/v1/experiments/{{name}}/{verb.__name__}",
            verb,
            methods=["POST"],
            response_model=ExperimentDetail,
            responses=_SWITCH,
            tags=tags,
        )


def _experiments(request: Request) -> Experiments:
    backend: Backend | None = request.app.state.backend
    if backend is None:
        raise Starting(retry_after=2.0)
    return backend.experiments


def _admin(request: Request) -> str:
    """Who is asking, as the log names them; without keys, nobody: behind the front all look alike."""
    key: ApiKey | None = getattr(request.state, "key", None)
    if key is None:
        raise Forbidden(
            "This needs an API key with the admin role, and no keys are set: see HEADROOM_API_KEYS."
        )
    if key.role != "admin":
        raise Forbidden
    return key.name
