"""Makes Ray Serve's manager of HAProxy notice at once when HAProxy dies.

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

from service.deployment.environment import tell

LOOK_S = 0.2
RETRY_S = 1.0

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
        self._watch_task = self.event_loop.create_task(self._watch())

    async def shutdown(self) -> None:
        """Stop the watch task, then HAProxy."""
        self._watch_task.cancel()
        await super().shutdown()

    async def check_health(self) -> bool:
        """Return True also while HAProxy restarts, because a new manager would take longer."""
        return self._is_restarting() or await super().check_health()

    def _is_restarting(self) -> bool:
        return self._haproxy._proc is not None and not self._haproxy._is_running()

    async def _watch(self) -> None:
        await self._haproxy_start_task
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._is_restarting():
                continue
            async with self._reload_lock:
                if self._is_restarting():
                    await self._start_again()

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
