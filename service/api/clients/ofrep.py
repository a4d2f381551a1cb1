"""OpenFeature's remote evaluation: a page's other parts ask for a unit's arm as for the value of a flag.

https://github.com/open-feature/protocol/blob/main/service/openapi.yaml
"""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Body, FastAPI, Path
from pydantic import BaseModel, ConfigDict

from headroom.service.api.errors import OFREP, OFREP_BULK
from headroom.service.api.openapi import errors
from headroom.service.api.post import Post, PostRoute
from headroom.service.descriptions import documented
from headroom.service.errors import TargetingKeyMissing
from headroom.service.experiments.assignment import Flag
from headroom.service.fields import Unit
from headroom.service.schemas.requests import example


class FlagContext(BaseModel):
    """The unit that a flag is asked for. Other attributes are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, use_attribute_docstrings=True)

    targetingKey: Unit | None = None  # noqa: N815 - the protocol's name
    """The `unit` of the scoring requests."""


class FlagRequest(BaseModel):
    """Ask for a flag, or for all."""

    model_config = ConfigDict(
        strict=True, extra="ignore", frozen=True, use_attribute_docstrings=True
    ) | example(context={"targetingKey": "user-123"})

    context: FlagContext = FlagContext()
    """The unit that the flags are asked for."""


@documented
@dataclass(slots=True)
class Flags:
    """The flags of all experiments for a unit."""

    flags: list[Flag]
    """One per experiment."""


async def evaluate_flag(
    request: Post,
    experiment: Annotated[
        str, Path(examples=["prune20"], description="The experiment's name in the config.")
    ],
    body: Annotated[FlagRequest, Body()],
) -> Flag:
    """The arm of a unit, for OpenFeature's clients. It exposes nobody: the unit's scoring requests do."""
    return request.backend.flag(experiment, _unit(body))


async def evaluate_flags(request: Post, body: Annotated[FlagRequest, Body()]) -> Flags:
    """The arms of a unit in all experiments, for OpenFeature's clients that ask once. It exposes nobody."""
    return Flags(request.backend.flags(_unit(body)))


def _unit(body: FlagRequest) -> str:
    """Return the unit that flags are asked for. Raises TargetingKeyMissing."""
    if body.context.targetingKey is None:
        raise TargetingKeyMissing
    return body.context.targetingKey


def add_routes(app: FastAPI) -> None:
    """Add /ofrep/v1/evaluate/flags."""
    app.router.add_api_route(
        "/ofrep/v1/evaluate/flags/{experiment}",
        evaluate_flag,
        name="ofrep_flag",
        methods=["POST"],
        response_model=Flag,
        responses=errors(*OFREP.statuses, model=OFREP.model),
        tags=["OpenFeature"],
        route_class_override=PostRoute,
    )
    app.router.add_api_route(
        "/ofrep/v1/evaluate/flags",
        evaluate_flags,
        name="ofrep_flags",
        methods=["POST"],
        response_model=Flags,
        responses=errors(*OFREP_BULK.statuses, model=OFREP_BULK.model),
        tags=["OpenFeature"],
        route_class_override=PostRoute,
    )
