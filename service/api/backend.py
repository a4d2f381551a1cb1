"""The interface between HTTP and the replica under it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from service.engine.request import Deadline
from service.experiments.events import Outcome, OutcomeReceipt
from service.experiments.report import Course, ExperimentDetail, ExperimentsView
from service.experiments.steering import Decide
from service.schemas.condense import CondenseRequest, CondenseResponse
from service.schemas.listings import (
    HeadsResponse,
    MasksResponse,
    ModelInfo,
    ModelsResponse,
    VariantsResponse,
)
from service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from service.schemas.responses import AttentionResponse, CompareResponse, ScoreResponse


class Experiments(Protocol):
    """A replica's experiments, as the routes use them. Methods raise members of the error tree."""

    async def record(self, outcomes: Sequence[Outcome]) -> OutcomeReceipt: ...

    def listing(self) -> ExperimentsView: ...

    async def show(self, name: str) -> ExperimentDetail: ...

    async def course(self, name: str) -> Course: ...

    async def act(self, name: str, decide: Decide, *, reason: str, actor: str) -> ExperimentDetail: ...


class Backend(Protocol):
    """A replica that is up. `app.state.backend` holds it, or None while the replica starts.

    Requests arrive checked against everything but the model. The calls raise `service.errors.ServiceError`
    (or `models.errors.InvalidMask`); a call that is cancelled removes its work from the queue.
    """

    @property
    def config_version(self) -> str:
        """The live config's version, sent with every answer."""

    @property
    def experiments(self) -> Experiments:
        """The experiments and their switches."""

    def ready(self) -> str | None:
        """Return None if requests are welcome, else the reason why not, such as `draining`."""

    async def score(self, request: ScoreRequest, deadline: Deadline) -> ScoreResponse: ...

    async def compare(self, request: CompareRequest, deadline: Deadline) -> CompareResponse: ...

    async def attention(self, request: AttentionRequest, deadline: Deadline) -> AttentionResponse: ...

    async def condense(
        self, request: CondenseRequest, deadline: Deadline, count_pairs: Callable[[int], None]
    ) -> CondenseResponse:
        """Condense a query. count_pairs: called with each number of pairs that were scored meanwhile."""

    def models(self) -> ModelsResponse: ...

    def model_of(self, variant: str) -> ModelInfo: ...

    def variants(self) -> VariantsResponse: ...

    def masks(self) -> MasksResponse: ...

    def heads(self) -> HeadsResponse: ...
