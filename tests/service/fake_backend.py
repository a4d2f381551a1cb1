"""A replica without a model, for tests of the HTTP side."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from fastapi import FastAPI

from headroom.models.masks.head_mask import HeadMask
from headroom.service.api import create_app
from headroom.service.config.settings import Settings
from headroom.service.config.variants import MaskForm
from headroom.service.engine.request import Deadline
from headroom.service.errors import InvalidRequest
from headroom.service.experiments.events import Outcome, OutcomeReceipt
from headroom.service.observe.metrics import Metrics
from headroom.service.schemas.condense import CondenseRequest, CondenseResponse, QueryOfLength, WordOfQuery
from headroom.service.schemas.listings import ModelInfo, ModelsResponse, VariantInfo, VariantsResponse
from headroom.service.schemas.requests import AttentionRequest, CompareRequest, ScoreRequest
from headroom.service.schemas.responses import (
    AttentionResponse,
    CompareColumn,
    CompareResponse,
    HeadAttention,
    HeadMaskInfo,
    ScoreResponse,
    ScoreResult,
    Timing,
    Usage,
)
from headroom.service.scoring.catalog import NO_HEADS

LAYERS, HEADS = 12, 12
UNITS = 3072
LABELS = ("irrelevant", "related", "partial", "good", "exact")
TIMING = Timing(tokenize=0.2, queue=0.4, inference=6.1, total=7.0)


def app_with(backend: "FakeBackend | None" = None, **settings: Any) -> FastAPI:
    """The application of a replica without a model."""
    app = create_app(Settings(**settings), Metrics())
    app.state.backend = backend if backend is not None else FakeBackend()
    return app


@cache
def document() -> dict[str, Any]:
    """The OpenAPI document of a service with keys."""
    return app_with(api_keys="alpha").openapi()


class FakeExperiments:
    """No experiment at all; outcomes go nowhere. work: called by `record`."""

    def __init__(self, work: Callable[[object], Awaitable[None]]) -> None:
        self._work = work

    async def record(self, outcomes: Sequence[Outcome]) -> OutcomeReceipt:
        await self._work(outcomes)
        return OutcomeReceipt(0, 0, len(outcomes))


class FakeBackend:
    """Gives every pair the same score.

    Args:
        fails: raised by every call.
        hangs: calls never return; `started` is set when one waits, `cancelled` counts those given up.
    """

    def __init__(self, *, fails: BaseException | None = None, hangs: bool = False) -> None:
        self.fails = fails
        self.hangs = hangs
        self.reason: str | None = None
        self.problem: str | None = None
        self.on_failure = "error"
        self.started = asyncio.Event()
        self.cancelled = 0
        self.requests: list[object] = []
        self._experiments = FakeExperiments(self._work)

    @contextmanager
    def experiments(self) -> Iterator[FakeExperiments]:
        yield self._experiments

    @property
    def catalog(self) -> SimpleNamespace:
        """The config in force, whose one model is `fake`."""
        model = SimpleNamespace(name="fake", config=SimpleNamespace(labels=LABELS))
        config = SimpleNamespace(version=self.config_version, on_failure=self.on_failure)

        def choose(name: str | None, _: MaskForm | None) -> SimpleNamespace:
            return SimpleNamespace(
                name=self._variant(name), is_original=True, info=NO_HEADS, classifier=model
            )

        return SimpleNamespace(config=config, choose=choose)

    @property
    def config_version(self) -> str:
        return "0123456789ab"

    def ready(self) -> str | None:
        return self.reason

    async def score(self, request: ScoreRequest, _deadline: Deadline, _progress: Any = None) -> ScoreResponse:
        await self._work(request)
        variant = self._variant(request.variant)
        pairs = len(request.texts())
        return ScoreResponse(
            model="fake",
            variant=variant,
            head_mask=mask_info(self._mask(request.head_mask, "head_mask")),
            assignment=None,
            degraded=False,
            results=results(pairs),
            usage=Usage(pairs, 17 * pairs),
            timing_ms=TIMING,
            _labels=LABELS,
        )

    async def compare(self, request: CompareRequest, _deadline: Deadline) -> CompareResponse:
        await self._work(request)
        pairs = len(request.texts())
        columns = [
            CompareColumn(mask_info(self._mask(form, f"masks[{number}]")), "full", results(pairs))
            for number, form in enumerate(request.masks)
        ] + [
            CompareColumn(mask_info(HeadMask.none(LAYERS, HEADS)), self._variant(name), results(pairs))
            for name in request.variants
        ]
        return CompareResponse("fake", columns, Usage(pairs * len(columns), 17 * pairs), TIMING)

    async def attention(self, request: AttentionRequest, _deadline: Deadline) -> AttentionResponse:
        await self._work(request)
        chosen = self._mask(request.heads, "heads").off
        uniform = np.full((3, 3), 1 / 3, dtype=np.float32)
        return AttentionResponse(
            model="fake",
            variant=self._variant(request.variant),
            head_mask=mask_info(self._mask(request.head_mask, "head_mask")),
            tokens=["[CLS]", "a", "[SEP]"],
            texts=[" [CLS]", " a", " [SEP]"],
            special=[0, 2],
            segments=[0, 0, 0],
            heads=[HeadAttention(layer, head, uniform) for layer, head in chosen],
            timing_ms=TIMING,
        )

    async def condense(self, request: CondenseRequest, _deadline: Deadline) -> CondenseResponse:
        await self._work(request)
        pairs = len(request.titles or ())
        return CondenseResponse(
            model="fake",
            variant=self._variant(request.variant),
            head_mask=mask_info(self._mask(request.head_mask, "head_mask")),
            method="greedy",
            condensed=request.query,
            loss=0.0,
            words=[WordOfQuery(request.query, request.query, True, 1.0)],
            path=[QueryOfLength(1, request.query, None, 0.0, True)],
            note=None,
            usage=Usage(pairs, 17 * pairs),
            timing_ms=TIMING,
        )

    def models(self) -> ModelsResponse:
        shape = {"layers": LAYERS, "heads": HEADS, "hidden_size": 768, "intermediate_size": 3072}
        return ModelsResponse(
            [
                ModelInfo(
                    name="fake",
                    repository="fakes/fake",
                    commit="0123456789abcdef0123456789abcdef01234567",
                    family="bert",
                    **shape,
                    score_activation="softmax",
                    vocab_size=30_522,
                    max_tokens=512,
                    grades=list(LABELS),
                    parameters=109_486_085,
                    bytes=218_972_170,
                    device="cpu",
                    dtype="bfloat16",
                    deterministic=False,
                    generator=None,
                    sliced_bytes=0,
                    processor=["avx512_bf16"],
                    kernels=None,
                    label_order_note=None,
                    kernels_skipped=[],
                    int8_input_bits=None,
                    quality={"accuracy": 0.9},
                    _labels=LABELS,
                )
            ]
        )

    def variants(self) -> VariantsResponse:
        everything = mask_info(HeadMask.none(LAYERS, HEADS))
        return VariantsResponse(
            self.config_version,
            [VariantInfo("full", "fake", everything, False, 109_486_085, True, 0, _grades=LABELS)],
        )

    async def _work(self, request: object) -> None:
        self.requests.append(request)
        if self.fails is not None:
            raise self.fails
        if self.hangs:
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise

    @staticmethod
    def _variant(name: str | None) -> str:
        if name not in (None, "full"):
            raise InvalidRequest("there is no such variant; there is full", param="variant")
        return "full"

    @staticmethod
    def _mask(form: MaskForm | None, param: str) -> HeadMask:
        if form is None:
            return HeadMask.none(LAYERS, HEADS)
        try:
            return HeadMask.parse(form, layers=LAYERS, heads=HEADS)
        except Exception as error:
            raise InvalidRequest(str(error), param=param) from None


def mask_info(mask: HeadMask) -> HeadMaskInfo:
    heads, units = mask.layers * mask.heads, mask.layers * UNITS
    on = (mask.heads_on, heads, mask.units_on(UNITS), units, len(mask.layers_kept), mask.layers)
    return HeadMaskInfo(mask.id, mask.spec, *on)


def results(count: int) -> list[ScoreResult]:
    probabilities = np.array([0.01, 0.04, 0.2, 0.61, 0.14], dtype=np.float32)
    expected = np.float32(2.87)
    return [
        ScoreResult(
            index,
            3,
            "good",
            expected,
            np.float32(0.717),
            probabilities,
            17,
            0,
            False,
            0.93,
            _logits=probabilities,
        )
        for index in range(count)
    ]
