"""Every private name of Ray that we use, in one place. Written for Ray 2.60.

Each function says what fails without it, what shows that, and what to look at in the next release. If a name
is gone, the service does not start (`_replace`, or the import); no port opens and no request is lost instead.
`make next-ray VERSION=` runs the tests that are named here against another release.

The imports stand in the functions: a replica must not load what only the controller needs.
"""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Coroutine
from typing import Any

import ray

from headroom.service.loopback import is_loopback


def _replace(owner: Any, name: str, ours: Any) -> None:
    """Put ours in the place of a name of Ray. Raises AttributeError if this release has none of that name."""
    getattr(owner, name)
    setattr(owner, name, ours)


def leave_out_idle_programs() -> None:
    """Let Ray start no programs for autoscaling nodes, drivers' output and the dashboard, which are all off.

    Without it: three more processes with 168 MB (PSS), and `ray.init` waits for the last of them.
    Shown by: tests/service/ray/test_patches.py.
    Next release: settings that turn them off; then this goes.
    """
    from ray._private.node import Node

    for name in ("start_monitor", "start_log_monitor", "start_api_server"):
        _replace(Node, name, lambda *_, **__: None)


def start_serve(schema: Any) -> Any:
    """Start Serve as a ServeDeploySchema says, and return its client, which deploys such a schema.

    Without it: a config file reaches Serve only by the REST API of the dashboard, a process of 75 MB.
    Shown by: every test of a real `headroom serve`.
    Next release: a public call that deploys a config file.
    """
    from ray.serve._private.api import serve_start

    return serve_start(
        http_options=schema.http_options.model_dump(),
        proxy_location=schema.proxy_location,
        global_logging_config=schema.logging_config,
    )


def restore_print() -> None:
    """Let `print` be Python's own in this process, a replica, where Serve puts another one in its place.

    Without it: what is printed to a file is written as a tuple, such as each line of a traceback in the log.
    Shown by: tests/service/ray/test_patches.py, which also says when the patch can go.
    Next release: whether `redirected_print` still hands its objects on as one.
    """
    from ray.serve._private import logging_utils

    _replace(builtins, "print", logging_utils.buildin_print)


def listen_on_loopback_only() -> None:
    """Open this replica's ports on the loopback interface if Ray runs on one machine: nobody else uses them.

    Call it in the constructor of a replica, before Serve opens them.

    Without it: the gRPC port is open on every interface, and the HTTP port behind HAProxy on the address of
    HAProxy itself, so that anybody passes by HAProxy's limits.
    Shown by: tests/security/test_ports.py, which tries all ports from another address.
    Next release: settings for the addresses of direct ingress.
    """
    from ray._common.network_utils import build_address
    from ray._common.tls_utils import add_port_to_grpc_server
    from ray.serve._private import replica
    from ray.serve._private.http_util import start_asgi_http_server

    host = ray.util.get_node_ip_address()
    if not is_loopback(host):
        return

    async def start_http(app: Any, options: Any, **more: Any) -> Any:
        return await start_asgi_http_server(app, options.model_copy(update={"host": host}), **more)

    def add_grpc_port(server: Any, _: str) -> Any:
        return add_port_to_grpc_server(server, build_address(host, 0))

    _replace(replica, "start_asgi_http_server", start_http)
    _replace(replica, "add_port_to_grpc_server", add_grpc_port)


def replace_haproxy_manager(manager: type[Any]) -> None:
    """Let the controller, in whose process this runs, start our manager of HAProxy on each node.

    Without it: a dead or hanging HAProxy is found after half a minute of refused connections.
    Shown by: tests/service/test_deployment.py, which kills and stops HAProxy.
    Next release: how often Serve checks HAProxy, and whether it restarts it alone.
    """
    from ray.serve._private import controller

    _replace(controller, "HAProxyManager", ray.remote(num_cpus=0)(manager))


def start_no_fallback_proxy() -> None:
    """Let the controller start no Python proxy beside HAProxy.

    Without it: requests hang in it until a new replica is up, instead of a 503 with Retry-After; and it takes
    the memory of one more Python process.
    Shown by: tests/service/ray/test_haproxy.py, which finds no such server in the configuration.
    Next release: a setting.
    """
    from ray.serve._private.proxy_state import ProxyStateManager

    _replace(ProxyStateManager, "_start_fallback_proxy_if_needed", lambda *_: None)


def use_haproxy_template(template: str, values: Any) -> None:
    """Let Serve's manager in this process render our template. values: its `config.headroom`.

    The template reads what Serve gives its own: `config`, `backends`, `backends_with_health_config` and
    `route_info`.

    Without it: the statistics page and the metrics port are open to everybody, and each error of HAProxy is a
    plain-text 500.
    Shown by: tests/service/ray/test_haproxy.py.
    Next release: read Serve's haproxy_templates.py, and carry over what is new.
    """
    from ray.serve._private import haproxy

    assert haproxy.HAPROXY_CONFIG_TEMPLATE.startswith("global")
    _replace(haproxy, "HAPROXY_CONFIG_TEMPLATE", template)
    haproxy.HAProxyConfig.headroom = values


def haproxy_manager() -> Any:
    """Return the plain class of Serve's manager of HAProxy. (An actor's class cannot be inherited from.)"""
    from ray.serve._private.haproxy import HAProxyManager

    return HAProxyManager.__ray_metadata__.modified_class.__ray_actor_class__


class HAProxyAccess:
    """The parts of Serve's manager that ours, which inherits from it too, reads and calls.

    Without it: a dead or hanging HAProxy is found after half a minute of refused connections.
    Shown by: tests/service/test_deployment.py, which kills and stops HAProxy.
    Next release: whether HAProxyManager still starts HAProxy in a task and reloads it under one lock.
    """

    event_loop: asyncio.AbstractEventLoop
    _haproxy: Any
    _haproxy_start_task: Any
    _reload_lock: asyncio.Lock

    @property
    def process(self) -> Any:
        """HAProxy's process; None before it is started."""
        return self._haproxy._proc

    @property
    def reload_lock(self) -> asyncio.Lock:
        """Held while HAProxy is started or reloaded."""
        return self._reload_lock

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine on the manager's event loop."""
        return self.event_loop.create_task(work)

    async def until_started(self) -> None:
        """Wait until Serve has started HAProxy for the first time."""
        await self._haproxy_start_task

    async def ask(self) -> None:
        """Wait until HAProxy answers on its socket."""
        await self._haproxy.is_running()

    async def start_process(self) -> None:
        """Start HAProxy, and wait until it answers."""
        self._haproxy._proc = await self._haproxy._start_and_wait_for_haproxy()
