"""Prints the variables that each node of a Ray cluster needs before `ray start`, one NAME=value a line.

    python -m headroom.service.ray.cluster_variables > ray.env

kubectl (`--from-env-file`), Docker (`--env-file`) and systemd (`EnvironmentFile`) read this form. `headroom
serve` sets the same for the Ray that it starts (`environment`).
"""

from collections.abc import Mapping

from headroom.service.config.settings import Settings
from headroom.service.observe.access_log import PIPE
from headroom.service.ray import environment
from headroom.service.ray.notices import NOTICES

LAUNCHER = "/app/haproxy/launch-haproxy"
"""HAProxy's launcher in the image. `headroom.service.ray.haproxy_files` writes another one."""

OUTPUT = "/proc/1/fd/1"
"""Standard output of a container's first process, which `kubectl logs` shows."""

OF_ONE_MACHINE = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_memory_monitor_refresh_ms")
"""What `headroom serve` sets because its Ray has one machine, and that for itself."""

DRAIN_S = 50
"""Seconds that Ray gives a node which stops: more than `graceful_shutdown_timeout_s` of deploy/serve.yaml."""


def variables() -> Mapping[str, str]:
    """Return the variables, by the defaults of the settings."""
    defaults = Settings.model_construct()
    of_ray = {name: value for name, value in environment.RAY.items() if name not in OF_ONE_MACHINE}
    return {
        **of_ray,
        **environment.UNLESS_SET,
        **environment.SERVE,
        **environment.haproxy_variables(defaults.request_timeout_s),
        "RAY_SERVE_HAPROXY_BINARY_PATH": LAUNCHER,
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_MAXCONN": "30000",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": str(DRAIN_S),
        NOTICES: OUTPUT,
        PIPE: OUTPUT,
    }


if __name__ == "__main__":
    for name, value in variables().items():
        print(f"{name}={value}")
