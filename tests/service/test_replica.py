"""A whole replica in one process: its limits, failures, live configs and end."""

import asyncio
import gc
import shutil
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headroom import Classifier, HeadMask
from headroom.models.checkpoint.files import digest_of
from headroom.models.ops import kernel_build, kernel_library
from headroom.service import replica
from headroom.service.config.settings import InvalidConfig, LiveConfig
from headroom.service.engine import threads as engine
from headroom.service.engine.runner import Batch
from headroom.service.engine.threads import Engine, Lane, PairRow
from headroom.service.errors import DeviceFailed, OutOfMemory
from tests.checkpoints import write_checkpoint
from tests.service.in_process import QUERY, TITLES, Service, pairs, serve


async def test_no_request_leaves_objects_that_only_a_search_for_circles_frees(service: Service) -> None:
    async def requests() -> None:
        texts: dict[str, Any] = {"query": QUERY, "titles": TITLES}
        await asyncio.gather(*(service.post("/v1/score", **texts) for _ in range(5)))
        await service.post("/v1/score", **texts, variant="cut", deadline_ms=5000)
        await service.post("/v1/compare", **texts, masks=["none", "1.0-2"])
        await service.post("/v1/attention", query=QUERY, title=TITLES[0], heads="0.*")
        await service.refused("/v1/score", 422, **texts, head_mask="99.*")

    await requests()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await requests()
        gc.collect()
        kinds = {f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not {kind for kind in kinds if kind.startswith(("service.", "models.", "numpy."))}


async def test_a_row_without_a_finite_score_fails_its_own_request_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = service.replica.engine
    classifier = engine.classifiers[""]
    forward = classifier.forward

    def poisoned(encoded: Any, weights: Any, **how: Any) -> np.ndarray:
        logits = forward(encoded, weights, **how)
        for i, pair in enumerate(encoded):
            if "lamp" in classifier.tokenizer.tokens(pair):
                logits[i] = np.nan
        return logits

    monkeypatch.setattr(classifier, "forward", poisoned)
    good, bad = await asyncio.gather(
        service.post("/v1/score", query=QUERY, titles=TITLES),
        service.refused("/v1/score", 500, query=QUERY, titles=["a lamp"]),
    )
    assert len(good["results"]) == 4
    assert "finite" in bad["message"]


def make_passes_hang(service: Service, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let forward passes end when the event is set, and count as hanging after a third of a second."""
    end = threading.Event()

    def hung(pairs: Sequence[object], *_: Any, **__: Any) -> np.ndarray:
        end.wait()
        return np.zeros((len(pairs), 5), np.float32)

    monkeypatch.setattr(engine, "HANGS_AFTER_S", 0.3)
    monkeypatch.setattr(engine, "HANGS_AFTER_TIMES", 0)
    monkeypatch.setattr(service.replica.engine.classifiers[""], "forward", hung)
    return end


async def test_a_pass_that_hangs_takes_its_replica_out_of_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serve replaces a replica that is not ready; without this it would get requests for ever."""

    async def until(status: int, ready: int) -> None:
        while (await service.http.get("/health/ready")).status_code != status:
            await asyncio.sleep(0.01)
        while service.metric("headroom_ready") != ready:
            await asyncio.sleep(0.01)

    end = make_passes_hang(service, monkeypatch)
    answer = asyncio.create_task(service.http.post("/v1/score", json={"query": QUERY, "titles": TITLES}))
    try:
        await asyncio.wait_for(until(503, ready=0), 30)
        assert service.replica.ready() == "a forward pass hangs"
    finally:
        end.set()
    assert (await answer).status_code == 200
    await asyncio.wait_for(until(200, ready=1), 30)


async def test_a_failed_device_is_503_counted_and_no_longer_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    classifier = service.replica.engine.classifiers[""]
    monkeypatch.setattr(classifier, "forward", broken)
    monkeypatch.setattr(classifier.network, "device", torch.device("meta"))  # it gives no values any more
    error = await service.refused("/v1/score", 503, query=QUERY, titles=TITLES)
    assert error["type"] == DeviceFailed.type
    assert (await service.http.get("/health/ready")).status_code == 503
    assert (await service.http.get("/health/live")).status_code == 200
    await service.refused("/v1/score", 503, query=QUERY, titles=TITLES)
    assert service.metric('headroom_device_failures_total{kind="cuda"}') == 1
    lane = Lane(classifier)
    raised = []
    for _ in range(2):
        with pytest.raises(DeviceFailed) as caught:
            service.replica.engine._forward(lane, [])
        raised.append(caught.value)
    assert raised[0] is not raised[1], "its traceback would grow with each request that raises it"


async def test_an_error_of_cuda_that_does_not_stick_fails_its_own_request_only(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any, **__: Any) -> np.ndarray:
        raise torch.AcceleratorError("CUDA error: invalid configuration argument")

    with monkeypatch.context() as patch:
        patch.setattr(service.replica.engine.classifiers[""], "forward", refused)
        await service.refused("/v1/score", 500, query=QUERY, titles=TITLES)
    assert (await service.http.get("/health/ready")).status_code == 200
    assert len((await service.post("/v1/score", query=QUERY, titles=TITLES))["results"]) == len(TITLES)
    assert service.metric('headroom_device_failures_total{kind="cuda"}') == 0


async def test_a_warm_up_that_does_not_fit_the_memory_is_halved_and_so_is_the_first_batch(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a small or shared GPU the replica would otherwise fail at every start."""
    forward, sizes = Classifier.forward, []

    def small(self: Classifier, encoded: Any, weights: Any, **how: Any) -> np.ndarray:
        sizes.append(sum(map(len, encoded)))
        if sizes[-1] > 300:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(self, encoded, weights, **how)

    monkeypatch.setattr(Classifier, "forward", small)
    async with serve(tiny_checkpoint, max_batch_tokens=1024) as service:
        assert service.replica.engine.batch_tokens == 256
        fell_back = len(sizes)
        await service.post("/v1/score", query=QUERY, titles=TITLES * 20)
        assert max(sizes[fell_back:]) <= 256

    monkeypatch.setattr(Classifier, "forward", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(OutOfMemory):
        async with serve(tiny_checkpoint):
            pass


async def test_a_warm_up_that_hangs_ends_and_takes_the_replica_out_of_service(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held the lock that every later edit of the config needs, and nothing noticed."""
    version = service.replica.config_version
    monkeypatch.setattr(engine, "WARM_UP_HANGS_AFTER_S", 0.2)
    end = make_passes_hang(service, monkeypatch)
    edit = LiveConfig.model_validate({"variants": [{"name": "full"}, {"name": "new", "head_mask": "0.1"}]})
    try:
        with pytest.raises(TimeoutError, match="did not end within 0 s"):
            await asyncio.wait_for(asyncio.to_thread(service.replica.apply, edit), 60)
        assert service.replica.ready() == "a forward pass hangs"
        assert service.replica.config_version == version
    finally:
        end.set()


async def test_a_batch_that_does_not_fit_the_memory_is_halved_until_it_does(
    service: Service, clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = service.replica.engine.classifiers[""]
    forward = classifier.forward

    def small(encoded: Any, weights: Any, **how: Any) -> np.ndarray:
        if len(encoded) > 3:
            raise torch.AcceleratorError("CUDA error: out of memory")
        return forward(encoded, weights, **how)

    monkeypatch.setattr(classifier, "forward", small)
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES * 4)
    scores = [row["score"] for row in answer["results"]]
    np.testing.assert_allclose(scores, clf.score(pairs() * 4).score, atol=1e-5)
    assert service.metric("headroom_out_of_memory_total") >= 1
    assert service.metric('headroom_device_failures_total{kind="cuda"}') == 0

    monkeypatch.setattr(classifier, "forward", lambda *_, **__: (_ for _ in ()).throw(MemoryError()))
    error = await service.refused("/v1/score", 503, query=QUERY, titles=TITLES)
    assert error["type"] == OutOfMemory.type


async def test_a_live_config_changes_variants_without_touching_requests_under_way(
    service: Service, tmp_path: Path
) -> None:
    old = asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 100, variant="cut"))
    other = write_checkpoint(tmp_path / "other", seed=9)
    await asyncio.to_thread(
        service.replica.apply,
        LiveConfig.model_validate(
            {"variants": [{"name": "full"}, {"name": "other", "checkpoint": str(other)}], "default": "other"}
        ),
    )

    assert len((await old)["results"]) == 400
    answer = await service.post("/v1/score", query=QUERY, titles=TITLES)
    assert (answer["variant"], answer["model"]) == ("other", "other")
    expected = Classifier.load(other, "cpu", "float32").score(pairs()).score
    np.testing.assert_allclose([row["score"] for row in answer["results"]], expected, atol=1e-5)
    error = await service.refused("/v1/score", 422, query=QUERY, titles=TITLES, variant="cut")
    assert "full, other" in error["message"]
    listed = (await service.http.get("/v1/variants")).json()
    defaults = {variant["name"]: variant["default"] for variant in listed["variants"]}
    assert defaults == {"full": False, "other": True, "original": False}


async def test_a_request_outlives_two_changes_of_the_config_and_its_checkpoint_then_goes(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = str(write_checkpoint(tmp_path / "other", seed=9))
    configs = [
        LiveConfig.model_validate({"variants": [{"name": "full"}, *more]})
        for more in ([{"name": "other", "checkpoint": other}], [], [{"name": "cut", "head_mask": "0.0"}])
    ]
    await asyncio.to_thread(service.replica.apply, configs[0])
    gone = weakref.ref(service.replica.engine.classifiers[other])
    begun, go_on = asyncio.Event(), asyncio.Event()
    run = service.replica.engine.run

    async def held(batch: Batch) -> Any:
        begun.set()
        await go_on.wait()
        return await run(batch)

    monkeypatch.setattr(service.replica.scheduler._runner, "forward", held)
    old = asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES, variant="other"))
    async with asyncio.timeout(60):
        await begun.wait()
        for config in configs[1:]:
            await asyncio.to_thread(service.replica.apply, config)
        go_on.set()
        assert (await old)["variant"] == "other"
    del old
    gc.collect()
    assert gone() is None


async def test_on_a_gpu_two_batches_are_under_way_and_a_full_memory_is_emptied(
    clf: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors: list[weakref.ref[torch.Tensor]] = []
    freed: list[bool] = []

    def full(*_: Any, **__: Any) -> np.ndarray:
        tensor = torch.zeros(1)
        tensors.append(weakref.ref(tensor))
        raise torch.OutOfMemoryError("CUDA out of memory")

    for name in ("set_device", "set_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, lambda _: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: freed.append(tensors[-1]() is None))
    monkeypatch.setattr(clf.network, "device", torch.device("cuda", 0))
    monkeypatch.setattr(clf, "forward", full)
    engine = Engine({"": clf}, threads=8, on_failure=pytest.fail)
    (pair,) = clf.tokenizer.encode(pairs()[:1])
    row = PairRow(len(pair), Lane(clf), pair, HeadMask.none(clf.num_layers, clf.num_heads))
    try:
        assert (engine.device_type, engine.slots, engine.split_tokens) == ("cuda", 2, None)
        with pytest.raises(OutOfMemory):
            await engine.run(Batch(row.lane, [row], row.tokens))
    finally:
        engine.close()
    assert freed == [True], "emptied before the batch's tensors were free, or not at all"


async def test_models_of_one_name_are_told_apart(service: Service, tmp_path: Path) -> None:
    """Directories of releases often end in the same name."""
    name = service.replica.engine.classifiers[""].name
    one_label = write_checkpoint(tmp_path / name, num_labels=1)
    live = LiveConfig.model_validate(
        {
            "variants": [
                {"name": "full"},
                {"name": "same", "checkpoint": str(service.replica.engine.classifiers[""].directory)},
                {"name": "other", "checkpoint": str(one_label)},
            ]
        }
    )
    await asyncio.to_thread(service.replica.apply, live)
    models = (await service.http.get("/v1/models")).json()["models"]
    assert [model["grades"] is None for model in models] == [False, True], "each checkpoint once"
    for variant, outputs in (("full", 3), ("other", 1)):
        promised = (await service.http.get(f"/v2/models/{variant}")).json()["outputs"]
        assert len(promised) == outputs


async def test_a_checkpoint_with_other_content_than_the_config_was_checked_with_is_refused(
    service: Service, tmp_path: Path
) -> None:
    """Its path alone does not say which model it is: its weights, or a stored mask, may be replaced."""
    other = write_checkpoint(tmp_path / "other", seed=3)
    known = digest_of(other, masks=True)
    config = {"variants": [{"name": "full"}, {"name": "other", "checkpoint": str(other)}]}
    pinned = LiveConfig.model_validate({**config, "digests": {str(other): known}})
    assert pinned.version != LiveConfig.model_validate(config).version

    (other / "masks").mkdir()
    (other / "masks" / "late.json").write_text('{"mask": "0.0"}')
    before = service.replica.config_version
    with pytest.raises(InvalidConfig, match=rf"the files in {other} have changed since"):
        service.replica.apply(pinned)
    assert service.replica.config_version == before
    shutil.rmtree(other / "masks")
    service.replica.apply(pinned)
    await service.post("/v1/score", query=QUERY, titles=TITLES, variant="other")


async def test_listings_say_what_is_loaded(service: Service, clf: Classifier) -> None:
    await service.post("/v1/score", query=QUERY, titles=TITLES, variant="cut")
    models = (await service.http.get("/v1/models")).json()["models"]
    variants = (await service.http.get("/v1/variants")).json()["variants"]
    masks = (await service.http.get("/v1/masks")).json()["masks"]

    assert len(models) == 1
    assert models[0]["parameters"] == clf.network.parameters
    assert (models[0]["layers"], models[0]["heads"], models[0]["grades"]) == (3, 4, list(clf.grades))
    assert models[0]["sliced_bytes"] > 0
    assert [v["name"] for v in variants] == ["full", "masked", "cut", "original"]
    assert variants[2]["parameters"] == models[0]["parameters"] - 6 * 8 * (4 * 32 + 3)
    assert [(m["name"], m["source"]) for m in masks] == [("some", "config")]
    assert models[0]["kernels_skipped"] == []


async def test_listings_say_why_better_kernels_are_not_used(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_build, "BUILT", tmp_path / "nowhere")
    kernel_library.choice.cache_clear()
    try:
        models = (await service.http.get("/v1/models")).json()["models"]
    finally:
        kernel_library.choice.cache_clear()
    assert models[0]["kernels"] is None
    assert any(reason.startswith("avx2: not compiled") for reason in models[0]["kernels_skipped"])


async def test_draining_answers_what_was_accepted_and_refuses_what_comes_after(tiny_checkpoint: Path) -> None:
    async with serve(tiny_checkpoint, max_batch_tokens=64, max_queue_tokens=10**6) as service:
        accepted = [
            asyncio.create_task(service.post("/v1/score", query=QUERY, titles=TITLES * 10)) for _ in range(5)
        ]
        while len(service.replica.scheduler._requests) < len(accepted):
            await asyncio.sleep(0)
        draining = asyncio.create_task(service.replica.drain())
        await asyncio.sleep(0)

        late = await service.http.post("/v1/score", json={"query": QUERY, "titles": TITLES})
        assert late.status_code == 503
        assert "retry-after" in late.headers
        assert (await service.http.get("/health/ready")).status_code == 503
        assert [len(answer["results"]) for answer in await asyncio.gather(*accepted)] == [40] * 5
        await draining


async def test_a_condense_request_in_hand_is_finished_by_a_stop(tiny_checkpoint: Path) -> None:
    """Each step of its search is queued by itself, and the next one comes after the stop has begun."""
    async with serve(tiny_checkpoint) as service:
        condensing = asyncio.create_task(
            service.post("/v1/condense", query="a strong steel angle bracket for a shelf", titles=TITLES)
        )
        while not service.replica.scheduler._requests:
            await asyncio.sleep(0)
        await service.replica.drain()
        assert (await condensing)["condensed"]


async def test_a_request_that_is_not_done_at_the_drain_timeout_gets_503(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve(tiny_checkpoint, drain_timeout_s=0.1) as service:
        hangs = asyncio.Event()

        async def never(*_: object) -> None:
            await hangs.wait()

        monkeypatch.setattr(service.replica.scheduler._runner, "forward", never)
        asking = asyncio.create_task(service.refused("/v1/score", 503, query=QUERY, titles=TITLES))
        while not service.replica.scheduler._requests:
            await asyncio.sleep(0)
        await asyncio.wait_for(service.replica.drain(), 30)
        assert (await asking)["type"] == "draining"


async def test_a_disk_that_hangs_does_not_hold_up_the_end_for_ever(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica, "CLOSE_SECONDS", 0.1)
    is_back = threading.Event()
    try:
        async with serve(tiny_checkpoint) as service:
            close = service.replica.live.windows.close

            def hang() -> None:
                is_back.wait()
                close()

            monkeypatch.setattr(service.replica.live.windows, "close", hang)
            await service.post("/v1/score", query=QUERY, titles=TITLES)
    finally:
        is_back.set()
    assert "the experiments' database has not ended" in caplog.text


async def test_what_cannot_be_closed_does_not_keep_the_rest_open(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object) -> None:
        raise TimeoutError("the server is away")

    async with serve(tiny_checkpoint) as service:
        monkeypatch.setattr(service.replica.live, "close", fail)
        closed: list[bool] = []
        monkeypatch.setattr(service.replica.engine, "close", lambda: closed.append(True))
    assert closed == [True]
    assert "the experiments' database could not be closed" in caplog.text
    assert "the server is away" in caplog.text


async def test_a_background_task_that_fails_begins_again_and_the_replica_serves_on(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The device and the requests have nothing to do with it."""
    calls: dict[str, int] = {"gauges": 0, "memory": 0, "shadow": 0}

    def failing(name: str) -> Callable[..., Any]:
        async def fail(*_: object) -> None:
            calls[name] += 1
            raise OSError(f"{name}: no space left on device")

        return fail

    monkeypatch.setattr(replica, "RESTART_SECONDS", 0.01)
    monkeypatch.setattr(replica.Replica, "_report", failing("gauges"))
    monkeypatch.setattr(replica.Shadow, "run", failing("shadow"))
    monkeypatch.setattr(replica, "release_memory_periodically", failing("memory"))
    async with serve(tiny_checkpoint) as service:
        while min(calls.values()) < 3:
            await asyncio.sleep(0.01)
        assert service.replica.failure is None
        assert (await service.http.get("/health/ready")).status_code == 200
        await service.post("/v1/score", query=QUERY, titles=TITLES)
    assert "memory: no space left on device" in caplog.text
    assert caplog.text.count("a background task failed") == len(calls), "once a minute each"
