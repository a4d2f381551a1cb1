"""OpenFeature's remote evaluation: a page's other parts ask for a unit's arm as for the value of a flag.

https://github.com/open-feature/protocol/blob/main/service/openapi.yaml
"""

from typing import Annotated

from fastapi import Body, FastAPI, Path
from pydantic import BaseModel, ConfigDict, Field

from headroom.service.api.errors import OFREP
from headroom.service.api.openapi import errors
from headroom.service.api.post import Post, PostRoute
from headroom.service.errors import TargetingKeyMissing
from headroom.service.experiments.fields import Unit
from headroom.service.experiments.flags import Flag
from headroom.service.schemas.requests import example


class FlagContext(BaseModel):
    """Who asks. Other attributes are ignored."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    targetingKey: Unit | None = Field(  # noqa: N815 - the protocol's name
        None, description="The `unit` of the scoring requests."
    )


class FlagRequest(BaseModel):
    """Ask for a flag."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True) | example(
        context={"targetingKey": "user-123"}
    )

    context: FlagContext = Field(FlagContext(), description="Who asks.")


async def evaluate_flag(
    request: Post,
    experiment: Annotated[
        str, Path(examples=["prune20"], description="The experiment's name in the config.")
    ],
    body: Annotated[FlagRequest, Body()],
) -> Flag:
    """The arm of a unit, for OpenFeature's clients. It exposes nobody: the unit's scoring requests do."""
    unit = body.context.targetingKey
    if unit is None:
        raise TargetingKeyMissing
    return request.backend.flag(experiment, unit)


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
