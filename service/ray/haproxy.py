"""Runs HAProxy for Ray Serve, safely on a public network and without gaps when a part of it dies.

Serve's controller starts one manager per node, which writes HAProxy's configuration and starts it. The
controller calls `install` first (`RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`), which puts our manager in the
place of Serve's. Ours renders `haproxy.cfg.jinja` instead of Serve's template:

* Nothing listens but the service: no statistics page, no metrics port.
* Errors without a replica, with a lost replica and after a timeout have our error shape and `Retry-After`
  (`error_pages`). With Serve's template, each of them is a plain-text 500.
* There is no fallback to Serve's Python proxy, in which requests hang until a new replica is up. Instead, the
  replicas that Serve no longer lists stay (`Listed`).

It also notices soon when HAProxy dies or hangs. Serve checks every ten seconds, and after three failures it
replaces the manager as well, which means half a minute of refused connections.

This module uses private names of Ray 2.60; if one of them is gone, the start and the tests fail.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any

import ray
from ray.serve._private import controller, haproxy, proxy_state
from ray.serve._private.constants import RAY_SERVE_HAPROXY_BINARY_PATH, SERVE_LOGGER_NAME
from ray.serve._private.haproxy import BackendConfig, HAProxyConfig, HAProxyManager, ServerConfig

from service.ray.haproxy_files import WAITING_PAGE
from service.ray.notices import notify_operator

TEMPLATE = Path(__file__).with_name("haproxy.cfg.jinja")
LOOK_S = 0.2
RETRY_S = 1.0
ASK_S = 1.0
ANSWER_S = 3.0
"""How often HAProxy is asked for a sign of life, and how long it may take to answer."""

logger = logging.getLogger(SERVE_LOGGER_NAME)


def install() -> None:
    """Replace Serve's manager by ours in the controller's process, and start no Python proxy beside it."""
    assert controller.HAProxyManager is HAProxyManager
    controller.HAProxyManager = ray.remote(num_cpus=0)(HAProxyKeeper)
    assert callable(proxy_state.ProxyStateManager._start_fallback_proxy_if_needed)
    proxy_state.ProxyStateManager._start_fallback_proxy_if_needed = lambda *_: None


def use_our_template(pages: Path) -> None:
    """Let Serve's manager in this process render our template. pages: the directory of our error pages."""
    assert haproxy.HAPROXY_CONFIG_TEMPLATE.startswith("global")
    haproxy.HAPROXY_CONFIG_TEMPLATE = TEMPLATE.read_text()
    HAProxyConfig.headroom = Listed(pages)


class Listed:
    """Values that our template needs beyond Serve's own values. pages: the directory of HAProxy's answers.

    It keeps the servers that each backend had before. Serve does not list a replica while it takes a new live
    config, so the death of the only listed one would be an outage. HAProxy itself finds out which are down.
    """

    patience_s = 10
    """A replica is down for good once it has let two checks wait for so long. A busy one is back earlier."""

    def __init__(self, pages: Path) -> None:
        self.pages = sorted(pages.glob("*.http"))
        self.waiting_page = pages / WAITING_PAGE
        self._lists: dict[str, tuple[list[ServerConfig], list[ServerConfig]]] = {}  # the last two, by backend

    def servers(self, backend: BackendConfig) -> tuple[list[ServerConfig], list[ServerConfig]]:
        """Return the listed servers, and as backups those of the list before.

        If none is listed now, return the last list.
        """
        last, before = self._lists.get(backend.name, ([], []))
        if not (listed := list(backend.servers)):
            return last, []
        if listed != last:
            self._lists[backend.name] = listed, before = listed, last
        taken = {(server.host, server.port) for server in listed}
        return listed, [server for server in before if (server.host, server.port) not in taken]


# An actor's class cannot be inherited from, so this is the plain class that Serve made the actor from.
_ServesManager: Any = HAProxyManager.__ray_metadata__.modified_class.__ray_actor_class__


class HAProxyKeeper(_ServesManager):  # type: ignore[misc]
    """HAProxyManager with our template, which restarts HAProxy if it ends by itself or hangs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        use_our_template(Path(RAY_SERVE_HAPROXY_BINARY_PATH).parent / "errors")
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
                _report("HAProxy does not answer; killing it")
                process.kill()

    async def _start_again(self) -> None:
        _report("HAProxy ended; starting it again")
        has_failed = False
        while self._is_restarting():
            try:
                self._haproxy._proc = await self._haproxy._start_and_wait_for_haproxy()
            except Exception as error:
                if not has_failed:
                    _report(f"HAProxy did not start; trying again every second: {error}")
                has_failed = True
                await asyncio.sleep(RETRY_S)


def _report(line: str) -> None:
    """Write a line to Serve's log and to the operator of `headroom serve`."""
    logger.warning(line)
    notify_operator(line)
