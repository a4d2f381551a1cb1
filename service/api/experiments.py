"""The routes about experiments: outcomes, what stands where, and the switches of an admin."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from fastapi import Body, FastAPI, Path, Request, Response

from service.api.openapi import GET_ERRORS, errors
from service.api.post import Post, add_post_route, backend_of
from service.api.replies import json_response
from service.experiments.events import OutcomeReceipt
from service.experiments.report import Course, ExperimentDetail, ExperimentsView
from service.schemas.experiments import OutcomesRequest, RampRequest, ShipRequest, StopRequest

Name = Annotated[
    str, Path(max_length=64, examples=["prune20"], description="The experiment's name in the config.")
]


async def outcomes(request: Post, body: Annotated[OutcomesRequest, Body()]) -> OutcomeReceipt:
    """Report what exposed units did. Answered when stored; on 503 send it again, nothing counts twice."""
    return await request.backend.experiments.record([item.event() for item in body.outcomes])


async def experiments(request: Request) -> Response:
    """The experiments of the live config, as the answering replica knows them."""
    return json_response(backend_of(request).experiments.listing())


async def experiment(request: Request, name: Name) -> Response:
    """One experiment: state, log, and the analysis so far (null while the database is down)."""
    return json_response(await backend_of(request).experiments.show(name))


async def course(request: Request, name: Name) -> Response:
    """The intervals of an experiment's metrics at past times, evenly spaced from its start."""
    return json_response(await backend_of(request).experiments.course(name))


async def ramp(request: Post, name: Name, body: Annotated[RampRequest, Body()]) -> ExperimentDetail:
    """Change the traffic, resume a stopped experiment, or take rolled back arms in again. Admin."""
    actor = request.admin()
    return await request.backend.experiments.ramp(
        name, traffic=body.traffic, reinstate=body.reinstate, reason=body.reason, actor=actor
    )


async def stop(request: Post, name: Name, body: Annotated[StopRequest, Body()]) -> ExperimentDetail:
    """End the experiment: everybody gets the default. Takes back a `ship`, too. Admin."""
    actor = request.admin()
    return await request.backend.experiments.stop(name, reason=body.reason, actor=actor)


async def ship(request: Post, name: Name, body: Annotated[ShipRequest, Body()]) -> ExperimentDetail:
    """End the experiment: everybody but the holdout gets this arm's variant. Admin."""
    actor = request.admin()
    return await request.backend.experiments.ship(name, arm=body.arm, reason=body.reason, actor=actor)


def add_experiment_routes(app: FastAPI) -> None:
    """Add everything to an app whose `state` has `backend`."""
    tags: list[str | Enum] = ["experiments"]
    add_post_route(app, "/v1/outcomes", outcomes, OutcomeReceipt, tags)
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
    app.add_api_route(
        "/v1/experiments/{name}/course",
        course,
        response_model=Course,
        responses=GET_ERRORS | errors(404, 422),
        tags=tags,
    )
    for verb in (ramp, stop, ship):
        path = f"/v1/experiments/{{name}}/{verb.__name__}"
        add_post_route(app, path, verb, ExperimentDetail, tags, more_errors=(403, 404, 409))
