"""Ray Serve's deployment: one actor per replica, which answers HTTP by itself."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import ray
from pydantic import ValidationError
from ray import serve

from headroom.models.checkpoint.hub import LOCATED
from headroom.models.cores import cores
from headroom.models.errors import one_line
from headroom.service.config import key_file
from headroom.service.config.edits import experiments_taken_out
from headroom.service.config.file import DEPLOYMENT, first_problem
from headroom.service.config.settings import EXPERIMENTS_WAIT, InvalidConfig, LiveConfig, Settings
from headroom.service.ray import mps, patches
from headroom.service.ray.autoscaling import LOAD
from headroom.service.ray.notices import NOTICES, notify_operator, show_to_operator
from headroom.service.ray.processes import run_in_thread

if TYPE_CHECKING:
    from fastapi import FastAPI

    from headroom.service.observe.traces import Traces
    from headroom.service.replica import Replica

logger = logging.getLogger("headroom.deployment")

COLLECT_AFTER = 50_000
"""First threshold of Python's garbage collector: it looks for cycles when this many more objects were made
than freed. A request's few hundred objects hold no cycles and are freed by reference counting; with Python's
default of 700, useless searches took a tenth of the event loop's time."""

MAX_REASON_CHARS = 300

GPU_MISSING = (
    "a GPU was asked for, and torch sees none, so a replica computes on the CPU: nvidia-smi says whether the "
    "driver works, and torch.version.cuda whether this torch is a CPU build"
)

MPS_MISSING = (
    "CUDA's Multi-Process Service takes no new process while those that met an error on the GPU still run; "
    "this replica starts again"
)

OTHERS_S = 5.0
"""Seconds that the other replicas may take to say which config they have in force."""

FLUSH_S = 3.0
"""Seconds that a drained replica waits until its last spans are sent."""

EditState = Literal["applied", "refused", "pending"]


def bind(deployment: Any, arguments: Mapping[str, Any]) -> Any:
    """Return a deployment with the settings of `arguments`, which win over the HEADROOM_* environment.

    Ray keeps what is bound, in the store of its head too, and gives it to later replicas. So each node has
    secrets, such as a URL with a password, from its own environment, unless `arguments` name them.
    """
    settings = Settings.model_validate(dict(arguments))
    secrets = {name for name, field in Settings.model_fields.items() if not field.repr}
    bound = settings.model_dump(exclude_unset=True, exclude=secrets - arguments.keys())
    if "api_keys" in settings.model_fields_set:  # a dump leaves them out
        bound["api_keys"] = [key.entry for key in settings.api_keys]
    return deployment.bind(bound)


@serve.deployment(name=DEPLOYMENT, user_config={})
@serve.ingress()
class Relevance:
    """One replica: one process, all its cores or one GPU.

    Serve builds it in this order: `__init__`, the ASGI app, `reconfigure` with the live config, which loads
    and warms up the model; only then it gets requests. The heavy imports wait until then, so that the
    processes that only handle the class (driver, controller) stay light.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        shared = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
        if shared is not None:
            Path(shared).mkdir(parents=True, exist_ok=True)  # before prometheus-client is imported
        from headroom.service.observe.metrics import Metrics

        show_to_operator()
        patches.restore_print()
        patches.listen_on_loopback_only()
        self._arguments = dict(settings)
        self._settings = Settings.model_validate(self._arguments)
        self._metrics = Metrics()
        self._traces: Traces | None = None
        self._replica: Replica | None = None
        self._refused: tuple[str, str] | None = None  # the last config's version ("": it has none), and why
        self._may_start = False  # whether the experiments of the config in force may
        self._config_lock = asyncio.Lock()
        self._drained: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> FastAPI:
        from headroom.service.api import create_app
        from headroom.service.observe import open_traces

        # Serve's id of the replica is in the names of its log files.
        instance = serve.get_replica_context().replica_id.unique_id
        self._traces = open_traces(instance, _notify_operator)
        try:
            self._app = create_app(self._settings, self._metrics, self._traces)
        except InvalidConfig as error:
            notify_operator(f"a replica cannot start: {error}", once=True)
            raise
        return self._app

    async def reconfigure(self, user_config: Mapping[str, Any]) -> None:
        """Put a live config in force.

        The first one starts the replica. If it is wrong, the replica starts with the config that another one
        has in force, and raises without any: a replica without a config must not serve. Later ones never
        raise, because Serve would take a healthy replica down for it: a config that cannot be applied is
        logged, and the one before stays. (`headroom serve` asks `refusal` first, and then `edit_state`.)

        user_config: if it holds EXPERIMENTS_WAIT, its new experiments start once it comes again without it.
        """
        async with self._config_lock:
            fields = dict(user_config)
            may_start = not fields.pop(EXPERIMENTS_WAIT, False)
            if self._replica is None:
                await self._start(fields, may_start)
                return
            version = ""
            try:
                config = LiveConfig.model_validate(fields)
                version = config.version
                previous = self._replica.catalog.config
                await asyncio.to_thread(self._replica.apply, config, may_start=may_start)
                self._may_start = may_start
                taken_out = experiments_taken_out(previous, config)
                if taken_out is not None and LOCATED not in os.environ:  # else `headroom serve` says so
                    logger.warning("%s", taken_out)
            except Exception as error:
                self._refuse(version, _reason(error))
            else:
                self._refused = None
                self._show_refused(False)

    async def refusal(self, user_config: Mapping[str, Any]) -> str | None:
        """Return why `reconfigure` would refuse this config, or None; change nothing."""
        async with self._config_lock:
            if self._replica is None:
                return "the replica is starting"
            try:
                config = LiveConfig.model_validate(dict(user_config))
                await asyncio.to_thread(self._replica.check, config)
            except Exception as error:
                return _reason(error)
            return None

    async def edit_state(self, version: str, may_start: bool) -> tuple[EditState, str]:
        """Return what became of the config of this version here, and the reason if it was refused.

        may_start: whether it is applied only once its experiments may start.
        """
        if self._refused is not None and self._refused[0] in (version, ""):
            return "refused", self._refused[1]
        is_in_force = self._replica is not None and self._replica.config_version == version
        is_applied = is_in_force and (self._may_start or not may_start)
        return "applied" if is_applied else "pending", ""

    async def config_in_force(self, arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the live config in force, for a replica with these arguments that cannot start with its own.

        None if this replica has other arguments, or none in force yet.
        """
        if self._replica is None or arguments != self._arguments:
            return None
        return self._replica.catalog.config.model_dump(mode="json")

    async def show_refused(self, is_refused: bool) -> None:
        """Show in metrics and health whether `headroom serve` has refused the last edit of the config."""
        self._show_refused(is_refused)

    async def drain(self) -> None:
        """Refuse new requests, answer those in hand, and end everything that lives here but the HTTP side.

        `headroom serve` asks for it before it stops.
        """
        if self._drained is None:
            self._drained = asyncio.create_task(self._drain())
        await asyncio.shield(self._drained)

    async def check_health(self) -> None:
        """Raise if Serve should replace this replica: its device failed, a pass hangs, or a task ended."""
        reason = None if self._replica is None else self._replica.failure
        if reason is not None:
            raise RuntimeError(f"not ready: {reason}")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Return what the policy of `autoscaling` counts."""
        if self._replica is None:
            return {}
        return {LOAD: self._replica.scheduler.load.value}

    async def __del__(self) -> None:
        """End everything that lives here. Serve calls this when the requests in hand are answered."""
        await self.drain()

    async def _drain(self) -> None:
        if self._replica is not None:
            await self._replica.drain()
        if self._traces is not None:
            sent = run_in_thread(self._traces.flush, FLUSH_S / 2)
            await asyncio.wait([asyncio.wrap_future(sent)], timeout=FLUSH_S)

    async def _start(self, fields: Mapping[str, Any], may_start: bool) -> None:
        """Start the replica with a live config, or, if that is wrong, with the one of another replica."""
        load = partial(self._load, await asyncio.to_thread(self._import))
        version = ""
        reason = ""
        in_force: LiveConfig | None = None
        try:
            config = LiveConfig.model_validate(fields)
            version = config.version
            replica = await load(config, may_start)
        except (ValidationError, InvalidConfig) as error:
            reason = _reason(error)
            in_force = await asyncio.to_thread(self._config_of_others)
            if in_force is None or in_force.version == version:
                notify_operator(f"a replica cannot start: {reason}", once=True)
                raise
        if in_force is not None:  # after the handler, whose traceback holds the models of the wrong config
            replica = await load(in_force, True)
        self._may_start = may_start or bool(reason)
        # What is loaded stays: a collection that walks all of torch's modules would hold up every request.
        gc.collect()
        gc.freeze()
        gc.set_threshold(COLLECT_AFTER)
        self._replica = self._app.state.backend = replica
        if reason:
            self._refuse(version, reason)

    async def _load(
        self, start: Callable[..., Awaitable[Replica]], config: LiveConfig, may_start: bool
    ) -> Replica:
        """Load the models and begin. start: of `Replica`. Raises ModelError or InvalidConfig."""
        self._metrics.notify_operator = partial(notify_operator, once=True)
        return await start(
            self._settings,
            config,
            self._metrics,
            threads=_threads(),
            may_start=may_start,
            nodes=ServingNodes(self._settings.ray_timeout_s),
            background=key_file.background(self._settings, self._app.state.keys, self._metrics),
        )

    def _config_of_others(self) -> LiveConfig | None:
        """Return the live config that another replica has in force; None if none says one. Blocks."""
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, context.app_name)
        try:
            answers = handle.broadcast("config_in_force", self._arguments).results(
                timeout_s=OTHERS_S, return_exceptions=True
            )
        except Exception as error:  # there is no other, or Ray's head is away
            logger.warning("no other replica says which config is in force: %s", one_line(error))
            return None
        given = next((answer for answer in answers if isinstance(answer, Mapping)), None)
        return None if given is None else LiveConfig.model_validate(given)

    def _refuse(self, version: str, reason: str) -> None:
        """Note that a config was refused, and say so. version: "" if it has none."""
        self._refused = (version, reason)
        self._show_refused(True)
        logger.error("config %s refused, the last good one stays: %s", version, reason)

    def _show_refused(self, is_refused: bool) -> None:
        self._metrics.set_gauge("config_refused", is_refused)
        if self._replica is not None:
            self._replica.config_is_refused = is_refused

    def _import(self) -> Callable[..., Awaitable[Replica]]:
        """Import what a replica is made of, torch included: it takes seconds, so call it on a thread."""
        from headroom.models.device import limit_memory, resolve_device
        from headroom.models.ops.kernel_library import choice
        from headroom.service.replica import Replica

        has_mps = mps.connect()
        device = resolve_device(self._settings.device)
        gpus = _assigned_gpus()
        is_missing = device.type == "cpu" and self._settings.device == "auto" and is_promised_gpu(gpus)
        self._metrics.set_gauge("gpu_missing", is_missing)
        if is_missing and has_mps:
            raise RuntimeError(MPS_MISSING)
        if is_missing:
            notify_operator(GPU_MISSING, once=True)
        if device.type == "cuda":
            limit_memory(device, 1.0 if gpus is None else gpus)
        else:
            # The tokenizers library would run each text on its own threads, which wait for the cores that
            # the forward threads use.
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            if (notice := choice().notice) is not None:
                notify_operator(notice, once=True)
        return Replica.start


def _assigned_gpus() -> float | None:
    """Return the GPUs that Ray assigned to this process (`num_gpus`); None if none, or without Ray."""
    if not ray.is_initialized():  # else the next call would start one
        return None
    gpus = ray.get_runtime_context().get_assigned_resources().get("GPU")
    return None if gpus is None else float(gpus)


def is_promised_gpu(gpus: float | None) -> bool:
    """Return whether this process should have a GPU: from Ray, or from the container's runtime.

    gpus: those that Ray assigned. https://docs.nvidia.com/datacenter/cloud-native, "NVIDIA_VISIBLE_DEVICES".
    """
    return bool(gpus) or os.environ.get("NVIDIA_VISIBLE_DEVICES", "") not in ("", "void", "none")


def _reason(error: Exception) -> str:
    """Return why a config is refused, in one line."""
    if isinstance(error, ValidationError):
        return first_problem(error)
    if isinstance(error, InvalidConfig):
        return str(error)
    logger.warning("a config cannot be applied", exc_info=error)
    return f"{type(error).__name__}: {one_line(error)}"[:MAX_REASON_CHARS]


def _notify_operator(line: str) -> None:
    """Show a line to the operator of `headroom serve` once; on a cluster, write it into the replica's log."""
    if NOTICES in os.environ:
        notify_operator(line, once=True)
    else:
        logger.warning("%s", line)


class ServingNodes:
    """Counts the nodes that replicas may run on. At most one question to Ray is under way.

    Ray answers only while its head is there. timeout_s: how long it is waited for.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._asked: Future[int] | None = None

    def __call__(self) -> int:
        """Return their number. Blocks. Raises TimeoutError, with a sentence, if Ray does not answer."""
        with self._lock:
            if self._asked is None or self._asked.done():
                self._asked = run_in_thread(_serving_nodes)
            asked = self._asked
        if not wait([asked], self._timeout_s).done:
            raise TimeoutError(
                f"Ray has not said in {self._timeout_s:g} s how many nodes serve: is its head down? "
                "(Experiments in a PostgreSQL need no answer.)"
            )
        return asked.result()


def _serving_nodes() -> int:
    """Return the number of nodes that replicas may run on. Blocks while Ray's head is away."""
    return sum(node["Alive"] and node["Resources"].get("CPU", 0) > 0 for node in ray.nodes())


def _threads() -> int:
    """Return the threads that Ray set for this replica (num_cpus, or `headroom serve`'s choice), else the
    number of cores."""
    threads = os.environ.get("OMP_NUM_THREADS", "")
    return int(threads) if threads.isdecimal() and int(threads) > 0 else cores()
