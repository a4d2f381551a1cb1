"""What the routes need from below: the seam between HTTP and scoring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.experiments.analysis.views import ExperimentDetail, ExperimentsView
from service.experiments.definition.events import Outcome, OutcomeReceipt
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import (
    AttentionResponse,
    CompareResponse,
    MasksResponse,
    ModelsResponse,
    ScoreResponse,
    VariantsResponse,
)


class Experiments(Protocol):
    """What the routes ask of a replica's experiments. Methods raise members of the error tree."""

    async def record(self, outcomes: Sequence[Outcome]) -> OutcomeReceipt: ...

    def listing(self) -> ExperimentsView: ...

    async def show(self, name: str) -> ExperimentDetail: ...

    async def ramp(
        self, name: str, *, traffic: float | None, reinstate: Sequence[str], reason: str, actor: str
    ) -> ExperimentDetail: ...

    async def stop(self, name: str, *, reason: str, actor: str) -> ExperimentDetail: ...

    async def ship(self, name: str, *, arm: str, reason: str, actor: str) -> ExperimentDetail: ...


class Pipeline(Protocol):
    """A replica that is up. `app.state.pipeline` holds it, or None while the replica starts.

    Requests arrive checked against everything but the model. The calls raise `service.errors.ServiceError`
    (or `models.errors.InvalidMask`); a call that is cancelled drops its queued work.
    """

    @property
    def config_version(self) -> str:
        """The live config's version, sent with every answer."""

    @property
    def experiments(self) -> Experiments:
        """What there is to see of the experiments, and to do with them."""

    def ready(self) -> str | None:
        """None when requests are welcome, else why not: `draining`, `device failed`."""

    async def score(self, request: ScoreRequest) -> ScoreResponse: ...

    async def compare(self, request: CompareRequest) -> CompareResponse: ...

    async def attention(self, request: AttentionRequest) -> AttentionResponse: ...

    def models(self) -> ModelsResponse: ...

    def variants(self) -> VariantsResponse: ...

    def masks(self) -> MasksResponse: ...
