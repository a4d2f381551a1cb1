"""A replica captures CUDA graphs of the variants that its config names. A stand-in replaces the GPU."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from headroom.models import network
from headroom.models.batch import PackedBatch
from headroom.models.classifier import Classifier
from headroom.service.config.settings import InvalidConfig, LiveConfig
from tests.models.graphs_stand_in import CapturedOps, Gpu, stand_in
from tests.service.in_process import QUERY, TITLES, Service, serve

FULL = {"name": "full"}
MASKED = {"name": "masked", "head_mask": "1.0-2"}
CUT = {"name": "cut", "head_mask": "0.*", "sliced": True}
OTHER_CUT = {"name": "cut", "head_mask": "1.*", "sliced": True}
WITHOUT_A_LAYER = {"name": "shallow", "head_mask": "skip:1"}
MAX_BATCH_TOKENS = 256


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    monkeypatch.setattr(network, "choose", lambda _, device, dtype, __: CapturedOps(device, dtype))
    return stand_in(monkeypatch)


def graphs_by_rung(service: Service) -> int:
    """Return how many graphs each rung of the ladder has."""
    found = service.replica.engine.classifiers[""].network
    assert found.graphs is not None
    each, rest = divmod(len(found.graphs), len(found.ladder))
    assert rest == 0
    return each


def config(*variants: dict[str, Any]) -> LiveConfig:
    return LiveConfig.model_validate({"variants": variants})


async def test_the_variants_of_a_config_have_graphs_when_it_is_in_force(
    gpu: Gpu, tiny_checkpoint: Path
) -> None:
    variants = [FULL, MASKED, CUT]
    async with serve(tiny_checkpoint, {"variants": variants}, max_batch_tokens=MAX_BATCH_TOKENS) as service:
        assert graphs_by_rung(service) == 3  # without masks, with them, and of `cut`
        texts: dict[str, Any] = {"query": QUERY, "titles": TITLES[:2]}
        for request in ({}, {"variant": "masked"}, {"variant": "cut"}, {"head_mask": "0.0"}):
            gpu.calls.clear()
            await service.post("/v1/score", **texts, **request)
            assert gpu.replays == 1
        captures = gpu.captures
        service.replica.apply(config(FULL, OTHER_CUT, WITHOUT_A_LAYER))
        assert graphs_by_rung(service) == 5  # those of the previous config stay, so that it may come back
        service.replica.apply(config(FULL))
        assert graphs_by_rung(service) == 4
        service.replica.apply(config(FULL, {"name": "another", "head_mask": "1.0"}))
        assert graphs_by_rung(service) == 2
        assert gpu.captures == captures * 5 // 3


@pytest.mark.usefixtures("gpu")
async def test_a_refused_config_leaves_no_graphs(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("the slots are taken")

    async with serve(tiny_checkpoint, {"variants": [FULL]}, max_batch_tokens=MAX_BATCH_TOKENS) as service:
        before = graphs_by_rung(service)
        monkeypatch.setattr(service.replica.live, "apply", refuse)
        with pytest.raises(InvalidConfig, match="the slots are taken"):
            service.replica.apply(config(FULL, CUT))
        assert graphs_by_rung(service) == before


@pytest.mark.usefixtures("gpu")
async def test_graphs_make_room_for_full_batches(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a small GPU, batches were halved although they fit once the graphs were gone."""
    forward = network.Network._forward

    def small(self: network.Network, batch: PackedBatch, *masks: Any, **how: Any) -> Tensor:
        if self.ladder and len(batch.ids) > MAX_BATCH_TOKENS // 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, batch, *masks, **how)

    monkeypatch.setattr(network.Network, "_forward", small)
    async with serve(tiny_checkpoint, {"variants": [FULL]}, max_batch_tokens=MAX_BATCH_TOKENS) as service:
        assert service.replica.engine.batch_tokens == MAX_BATCH_TOKENS
        assert not service.replica.engine.classifiers[""].network.ladder
    warnings = [record for record in caplog.records if "CUDA graphs" in record.message]
    assert len(warnings) == 1


@pytest.mark.usefixtures("gpu")
async def test_a_batch_for_which_graphs_make_no_room_is_halved(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may be full before the network is asked: while the batch is packed."""
    forward = Classifier.forward

    def small(self: Classifier, encoded: Any, weights: Any, **how: Any) -> np.ndarray:
        if sum(map(len, encoded)) > MAX_BATCH_TOKENS // 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, encoded, weights, **how)

    monkeypatch.setattr(Classifier, "forward", small)
    async with serve(tiny_checkpoint, {"variants": [FULL]}, max_batch_tokens=MAX_BATCH_TOKENS) as service:
        assert service.replica.engine.batch_tokens == MAX_BATCH_TOKENS // 2
        assert service.replica.engine.classifiers[""].network.ladder
