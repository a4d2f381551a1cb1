"""Runs HAProxy for Ray Serve, safely on a public network and without gaps when a part of it dies.

Serve's controller starts one manager per node, which writes HAProxy's configuration and starts it. The
controller calls `install` first (`RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH`), which puts our manager in the
place of Serve's. Ours renders `haproxy.cfg.jinja` instead of Serve's template:

* Nothing listens but the service: no statistics page, no metrics port.
* Errors without a replica, with a lost replica and after a timeout have our error shape and `Retry-After`
  (`error_pages`). With Serve's template, each of them is a plain-text 500.
* There is no fallback to Serve's Python proxy, in which requests hang until a new replica is up. Instead, the
  replicas that Serve no longer lists stay (`TemplateValues`).
* Replicas that are all too busy to answer a check in time keep their requests.

It also notices soon when HAProxy dies or hangs. Serve checks every ten seconds, and after three failures it
replaces the manager as well, which means half a minute of refused connections.
"""

import asyncio
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headroom.service.api.edge import BODY_TIMEOUT_S, MACHINE, STAMP
from headroom.service.ray import patches
from headroom.service.ray.environment import REPEATABLE, REPEATABLE_BELOW
from headroom.service.ray.notices import notify_operator, show_controller_to_operator

TEMPLATE = Path(__file__).with_name("haproxy.cfg.jinja")
LOOK_S = 0.2
"""Seconds between two checks whether HAProxy has ended."""
RETRY_S = 1.0
"""Seconds between two tries to start it."""
ASK_S = 1.0
"""Seconds between two requests for a sign of life."""
ANSWER_S = 3.0
"""Seconds that HAProxy may take to answer one."""

logger = logging.getLogger("ray.serve")


def install() -> None:
    """Prepare the controller, whose process this is: our manager instead of Serve's, no Python proxy beside
    HAProxy, and the death of a replica is said."""
    patches.replace_haproxy_manager(HAProxyKeeper)
    patches.start_no_fallback_proxy()
    show_controller_to_operator()


def use_our_template(pages: Path) -> None:
    """Let Serve's manager in this process render our template. pages: the directory of our error pages."""
    patches.use_haproxy_template(TEMPLATE.read_text(), TemplateValues(pages))


@dataclass
class ServerLists:
    """The servers of one backend: those that Serve listed last, and those of the different list before."""

    current: list[Any] = field(default_factory=list)
    previous: list[Any] = field(default_factory=list)


class TemplateValues:
    """Values that our template needs beyond Serve's own. pages: the directory of HAProxy's answers.

    stamp, machine: the header of the time of arrival, and the part of it that says whose clock it is.
    repeatable, repeatable_below: `REPEATABLE`, `REPEATABLE_BELOW`.

    It keeps the servers that each backend had before. Serve does not list a replica while it takes a new live
    config, so the death of the only listed one would be an outage. HAProxy itself finds out which are down.
    """

    stamp = STAMP
    machine = MACHINE
    repeatable = REPEATABLE
    repeatable_below = REPEATABLE_BELOW
    body_timeout_ms = round(BODY_TIMEOUT_S * 1000)
    patience_s = 10
    """A replica is down for good once it has let two checks wait for so long. A busy one is back earlier."""

    def __init__(self, pages: Path) -> None:
        self.pages = sorted(pages.glob("*.http"))
        (self.waiting_page,) = pages.glob("*.html")
        self.slow_body_page = pages / "slow-body"
        self._lists: dict[str, ServerLists] = {}  # by backend

    def servers(self, backend: Any) -> tuple[list[Any], list[Any]]:
        """Return the servers that Serve lists for a backend (its BackendConfig), and more of them as backups.

        The backups are the servers of the list before, unless another replica has their address now. If Serve
        lists none, the last list stays.
        """
        lists = self._lists.setdefault(backend.name, ServerLists())
        listed = list(backend.servers)
        if not listed:
            return lists.current, []
        if listed != lists.current:
            lists.previous = lists.current
            lists.current = listed
        addresses = {(server.host, server.port) for server in listed}
        backups = [server for server in lists.previous if (server.host, server.port) not in addresses]
        return listed, backups


class HAProxyKeeper(patches.HAProxyAccess, patches.haproxy_manager()):  # type: ignore[misc]
    """Serve's manager of HAProxy with our template, which restarts HAProxy if it ends by itself or hangs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        use_our_template(Path(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"]).parent / "errors")
        super().__init__(*arguments, **options)
        self._watch_tasks = [
            self.start_task(self._restart_when_ended()),
            self.start_task(self._kill_when_silent()),
        ]

    async def shutdown(self) -> None:
        """Stop the watch tasks, then HAProxy."""
        for task in self._watch_tasks:
            task.cancel()
        await super().shutdown()

    async def check_health(self) -> bool:
        """Return True also while HAProxy restarts, because a new manager would take longer."""
        return self._has_ended() or await super().check_health()

    def _has_ended(self) -> bool:
        """Return whether HAProxy ended by itself. With status 0 it was asked to end: the service stops."""
        return self.process is not None and bool(self.process.returncode)

    async def _restart_when_ended(self) -> None:
        await self.until_started()
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._has_ended():
                continue
            async with self.reload_lock:
                if self._has_ended():
                    await self._restart()

    async def _kill_when_silent(self) -> None:
        """Kill HAProxy if it does not answer twice in a row; it is then restarted."""
        await self.until_started()
        silences = 0
        while True:
            await asyncio.sleep(ASK_S)
            process = self.process
            try:
                async with asyncio.timeout(ANSWER_S):
                    await self.ask()
            except TimeoutError:
                silences += 1
            else:
                silences = 0
            if silences > 1:
                silences = 0
                _report("HAProxy does not answer; killing it")
                process.kill()

    async def _restart(self) -> None:
        _report("HAProxy ended; starting it again")
        has_failed = False
        while self._has_ended():
            try:
                await self.start_process()
            except Exception as error:
                if not has_failed:
                    _report(f"HAProxy did not start; trying again every second: {error}")
                has_failed = True
                await asyncio.sleep(RETRY_S)


def _report(line: str) -> None:
    """Write a line to Serve's log and to the operator of `headroom serve`."""
    logger.warning(line)
    notify_operator(line)
