"""What the routes need from below: the seam between HTTP and scoring."""

from __future__ import annotations

from typing import Protocol

from service.responses import (
    AttentionResponse,
    CompareResponse,
    MasksResponse,
    ModelsResponse,
    ScoreResponse,
    VariantsResponse,
)
from service.schemas import AttentionRequest, CompareRequest, ScoreRequest


class Pipeline(Protocol):
    """A replica that is up. `app.state.pipeline` holds it, or None while the replica starts.

    Requests arrive checked against everything but the model. The calls raise `service.errors.ServiceError`
    (or `models.errors.InvalidMask`); a call that is cancelled drops its queued work.
    """

    @property
    def config_version(self) -> str:
        """The live config's version, sent with every answer."""

    def ready(self) -> str | None:
        """None when requests are welcome, else why not: `draining`, `device failed`."""

    async def score(self, request: ScoreRequest) -> ScoreResponse: ...

    async def compare(self, request: CompareRequest) -> CompareResponse: ...

    async def attention(self, request: AttentionRequest) -> AttentionResponse: ...

    def models(self) -> ModelsResponse: ...

    def variants(self) -> VariantsResponse: ...

    def masks(self) -> MasksResponse: ...
