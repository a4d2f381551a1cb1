"""Makes Ray Serve's manager of HAProxy notice soon when HAProxy dies or hangs.

Serve checks HAProxy every ten seconds, and after three failures it replaces the manager as well, which means
half a minute of refused connections. Our manager watches the process and restarts it.

The controller calls `install` before it starts the proxies (controller.py). This module uses private names of
Ray 2.60; if one of them is gone, the start and the tests fail.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import ray
from ray.serve._private import controller, proxy_state
from ray.serve._private.constants import SERVE_LOGGER_NAME
from ray.serve._private.haproxy import HAProxyManager

from service.ray.environment import tell

LOOK_S = 0.2
RETRY_S = 1.0
ASK_S = 1.0
ANSWER_S = 3.0
"""How often HAProxy is asked for a sign of life, and how long it may take to answer."""

logger = logging.getLogger(SERVE_LOGGER_NAME)


def install() -> None:
    """Replace Serve's manager by ours in the controller's process.

    Serve's additional Python proxy is not started, because no request goes there (see haproxy.py).
    """
    assert controller.HAProxyManager is HAProxyManager
    controller.HAProxyManager = ray.remote(num_cpus=0)(HAProxyKeeper)
    assert callable(proxy_state.ProxyStateManager._start_fallback_proxy_if_needed)
    proxy_state.ProxyStateManager._start_fallback_proxy_if_needed = _no_fallback


# An actor's class cannot be inherited from, so this is the plain class that Serve made the actor from.
_ServesManager: Any = HAProxyManager.__ray_metadata__.modified_class.__ray_actor_class__


class HAProxyKeeper(_ServesManager):  # type: ignore[misc]
    """HAProxyManager that restarts HAProxy with its current configuration if it ends by itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._watch_tasks = [self.event_loop.create_task(work) for work in (self._watch(), self._ask())]

    async def shutdown(self) -> None:
        """Stop the watch tasks, then HAProxy."""
        for task in self._watch_tasks:
            task.cancel()
        await super().shutdown()

    async def check_health(self) -> bool:
        """Return True also while HAProxy restarts, because a new manager would take longer."""
        return self._is_restarting() or await super().check_health()

    def _is_restarting(self) -> bool:
        """Return whether HAProxy ended by itself. With status 0 it was asked to end: the service stops."""
        return self._haproxy._proc is not None and bool(self._haproxy._proc.returncode)

    async def _watch(self) -> None:
        await self._haproxy_start_task
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._is_restarting():
                continue
            async with self._reload_lock:
                if self._is_restarting():
                    await self._start_again()

    async def _ask(self) -> None:
        """Kill HAProxy if it does not answer twice in a row; `_watch` then starts it again."""
        await self._haproxy_start_task
        silences = 0
        while True:
            await asyncio.sleep(ASK_S)
            process = self._haproxy._proc
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self._haproxy.is_running()
            except TimeoutError:
                silences += 1
            else:
                silences = 0
            if silences > 1:
                silences = 0
                _tell("HAProxy does not answer; killing it")
                process.kill()

    async def _start_again(self) -> None:
        _tell("HAProxy ended; starting it again")
        has_failed = False
        while self._is_restarting():
            try:
                self._haproxy._proc = await self._haproxy._start_and_wait_for_haproxy()
            except Exception as error:
                if not has_failed:
                    _tell(f"HAProxy did not start; trying again every second: {error}")
                has_failed = True
                await asyncio.sleep(RETRY_S)


def _tell(line: str) -> None:
    """Write a line to Serve's log and to the operator of `headroom serve`."""
    logger.warning(line)
    tell(line)


def _no_fallback(*_: object) -> None:
    return None
