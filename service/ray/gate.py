"""Lets a changed `user_config` through to the replicas of a cluster only if all of them take it.

With `serve deploy` and KubeRay nobody stands between the operator and Serve, which would give an edit to one
replica after the other and to each new one, whatever the others say. So the controller, in whose process
this runs, keeps the config before in force until every replica has agreed to the new one (`rollout`). New
replicas, and a controller that starts again, get the config in force. A change of `args` is no edit: it
replaces the replicas.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import ray

from headroom.models.errors import one_line

if TYPE_CHECKING:
    from headroom.service.config.settings import LiveConfig
    from headroom.service.ray.patches import DeployedApplication

logger = logging.getLogger("ray.serve")

CHECK_TIMEOUT_S = 600.0
"""How long the replicas may take to load what an edit needs, a download included."""

START_S = 60.0
"""Seconds that the process that asks the replicas may take to start."""

ANSWER_S = 60.0
"""Seconds that the controller's event loop and the replicas may take for anything else."""

POLL_S = 0.5
"""How often a wait for the replicas' answers looks whether there is a newer edit."""

SHOW_S = 5.0


@dataclass(frozen=True)
class Edit:
    """A `user_config`, as it was deployed."""

    user_config: Mapping[str, Any]

    @cached_property
    def live(self) -> LiveConfig:
        """The live config. Raises pydantic.ValidationError."""
        # Serve's controller imports all of this only if there is an edit.
        from headroom.service.config.settings import EXPERIMENTS_WAIT, LiveConfig

        fields = {key: value for key, value in self.user_config.items() if key != EXPERIMENTS_WAIT}
        return LiveConfig.model_validate(fields)


class Gate:
    """Says which `user_config` Serve may give to an application's replicas. It runs on Serve's event loop."""

    def __init__(self) -> None:
        self._rollouts: dict[str, Rollouts] = {}  # by application

    def __call__(self, application: DeployedApplication, submitted: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the `user_config` for now: the submitted one, or the one in force while that is tried.

        Raises ValueError if the submitted one can be right for no replica.
        """
        from pydantic import ValidationError

        from headroom.service.config.file import first_problem

        edit = Edit(submitted)
        try:
            _ = edit.live
        except ValidationError as error:
            raise ValueError(f"config refused: {first_problem(error, 'user_config')}") from None
        in_force = application.user_config
        rollouts = self._rollouts.setdefault(application.name, Rollouts())
        if in_force is None or not application.has_replicas:
            rollouts.withdraw()
            return submitted
        if in_force != submitted or rollouts.is_unsettled:
            rollouts.submit(application, edit)
        return in_force


class Rollouts:
    """Rolls the edits of one application out on a thread, one after the other. A newer one replaces one that
    waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: tuple[DeployedApplication, Edit] | None = None
        self._current: Edit | None = None
        self._is_outdated = threading.Event()
        self._is_running = False
        self._is_refused = False

    @property
    def is_unsettled(self) -> bool:
        """Whether an edit is under way, or the last one was refused, which the replicas' metrics show."""
        return self._is_running or self._is_refused

    def submit(self, application: DeployedApplication, edit: Edit) -> None:
        """Roll an edit out after the one under way, which is given up if no replica has it yet."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if edit == self._current:
                self._waiting = None
                self._is_outdated.clear()
                return
            self._waiting = (application, edit)
            self._is_outdated.set()
            if not self._is_running:
                self._is_running = True
                threading.Thread(target=self._run, args=(loop,), name="edits", daemon=True).start()

    def withdraw(self) -> None:
        """Give up what waits, and what no replica has yet."""
        with self._lock:
            self._waiting = None
            self._is_refused = False
            self._is_outdated.set()

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            with self._lock:
                self._is_outdated.clear()
                waiting = self._waiting
                self._waiting = None
                self._current = None if waiting is None else waiting[1]
                if waiting is None:
                    self._is_running = False
                    return
            try:
                application, edit = waiting
                self._is_refused = _roll_out(application, edit, loop, self._is_outdated.is_set)
            except Exception:  # later edits need this thread
                logger.exception("a config was not rolled out; deploy it again")
                self._is_refused = True


def _roll_out(
    application: DeployedApplication,
    edit: Edit,
    loop: asyncio.AbstractEventLoop,
    is_outdated: Callable[[], bool],
) -> bool:
    """Bring an edit to all replicas or to none; return whether it was refused.

    The log and the replicas' metrics say so too. is_outdated: whether there is a newer edit.
    """
    from headroom.service.config.edits import Unsettled
    from headroom.service.ray import rollout

    replicas = Replicas(application, loop, is_outdated)
    result = "refused, the last good one stays"
    try:
        reason = rollout.apply(replicas, edit)
    except Unsettled as error:
        result = "refused, but some replicas may have it; deploy it again"
        reason = str(error)
    except Exception as error:  # it must not end the thread
        reason = one_line(error)
    is_refused = reason is not None and not replicas.is_stopping()
    if reason is None:
        logger.warning("config applied: version %s", edit.live.version)
    elif is_refused:
        logger.error("config %s %s: %s", edit.live.version, result, reason)
    replicas.show_refused(is_refused)
    replicas.close()
    return is_refused


class Replicas:
    """The replicas of an application, from the controller's process but not from its event loop.

    Another process asks them, because a handle of Serve calls the controller. is_outdated: whether there is a
    newer edit.
    """

    check_timeout_s = CHECK_TIMEOUT_S
    retry = "deploy it again"
    why_stopping = "there is a newer config"

    def __init__(
        self,
        application: DeployedApplication,
        loop: asyncio.AbstractEventLoop,
        is_outdated: Callable[[], bool],
    ) -> None:
        self._application = application
        self._loop = loop
        self._is_outdated = is_outdated
        self._has_deployed = False
        self._asker = ray.remote(num_cpus=0)(Asker).remote(application.name)
        in_force = application.user_config
        self.deployed = None if in_force is None else Edit(in_force)

    def is_stopping(self) -> bool:
        """Return whether to give the edit up. What some replicas have must be finished, or taken back."""
        return self._is_outdated() and not self._has_deployed

    def deploy(self, config: Edit, *, may_start: bool = True) -> None:
        """Let Serve give a config to the replicas. may_start: as `Cluster.deploy` takes it."""
        from headroom.service.config.settings import EXPERIMENTS_WAIT

        user_config = dict(config.user_config)
        if not may_start:
            user_config[EXPERIMENTS_WAIT] = True
        self._has_deployed = True

        async def put() -> None:
            self._application.put(user_config)

        asyncio.run_coroutine_threadsafe(put(), self._loop).result(ANSWER_S)
        self.deployed = config

    def status(self) -> Any:
        """Return what Serve says about the application."""
        return ray.get(self._asker.status.remote(), timeout=START_S)

    def ask_all(self, method: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Return the answer of each running replica. Raises as `Cluster.ask_all` does."""
        limit = limit_s or (ANSWER_S if self._has_deployed else CHECK_TIMEOUT_S)
        deadline = time.monotonic() + limit + START_S
        asked = self._asker.ask.remote(method, arguments, limit)
        while not ray.wait([asked], timeout=POLL_S)[0]:
            if (limit_s is None and self.is_stopping()) or time.monotonic() > deadline:
                raise TimeoutError
        answers: list[Any] = ray.get(asked)
        return answers

    def show_refused(self, is_refused: bool) -> None:
        """Show in the replicas' metrics whether the edit was refused."""
        with suppress(Exception):  # none answers
            self.ask_all("show_refused", is_refused, limit_s=SHOW_S)

    def close(self) -> None:
        """End the process that asks."""
        ray.kill(self._asker)


class Asker:
    """An actor that asks all replicas of an application."""

    def __init__(self, application: str) -> None:
        from ray import serve

        self._application = application
        self._handle = serve.get_app_handle(application)

    def ask(self, method: str, arguments: tuple[Any, ...], limit_s: float) -> list[Any]:
        """Return the answer of each running replica. Raises TimeoutError."""
        answers: list[Any] = self._handle.broadcast(method, *arguments).results(timeout_s=limit_s)
        return answers

    def status(self) -> Any:
        """Return what Serve says about the application."""
        from ray import serve

        return serve.status().applications[self._application]
