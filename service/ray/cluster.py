"""A local Ray cluster that runs the application: start it, change its config live, drain it, stop it.

`headroom.service.ray.environment.prepare` must have run before this module is imported.
"""

import contextlib
import copy
import logging
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from pathlib import Path
from typing import Any, TypeVar

import psutil
import ray
from ray import serve
from ray.serve.schema import ApplicationStatus, ServeDeploySchema

from headroom.models.cores import cores
from headroom.service.config.file import ConfigFile
from headroom.service.config.settings import EXPERIMENTS_WAIT
from headroom.service.ray import autoscaling, environment, gpus, mps, patches
from headroom.service.ray.gpus import Gpu, Sharing
from headroom.service.ray.mps import Daemons
from headroom.service.ray.processes import (
    descendants_named,
    ignoring_signals_in_children,
    kill_process_tree,
    run_in_thread,
)
from headroom.service.ray.run_directory import memory

OBJECT_STORE_BYTES = 80 * 1024 * 1024  # the minimum that Ray accepts; no request passes through it
POLL_S = 0.3
"""How often a start asks Serve whether the application runs: as often as Serve's control loop looks. Each
question takes processor time from the replicas that start."""

CHECK_TIMEOUT_S = 60.0
CHECK_POLL_S = 0.5
"""How often a wait for the replicas' answers looks whether the service stops."""

SHOW_S = 5.0
"""How long the replicas may take to show in their metrics that an edit was refused."""

SLOW_START_S = 30.0
"""Seconds of a start after which the operator is shown what Serve waits for. Serve knows it no earlier."""

KILL_AFTER_DRAIN_S = 10.0
"""Seconds beyond `drain_timeout_s` before Serve kills a replica."""

WRITE_S = 8.0
"""Seconds beyond `drain_timeout_s` for the replicas to write exposures and the access log."""

HEARS_S = 5.0
"""Seconds within which this process hears from Serve which replicas there are, if some have just changed."""

SHUTDOWN_S = 1.0
"""How long Ray's library in this process may take to let go of its cluster."""

CLOSE_S = 3.0
"""Seconds after that for HAProxy to close."""

Result = TypeVar("Result")


class DeployError(Exception):
    """The application did not start; the message is the last line of the replica's error."""


class NoAnswer(Exception):
    """Ray or Serve did not answer a call within its limit."""


class Cluster:
    """A local Ray cluster with one Serve application.

    Args:
        run: the directory that was given to `environment.prepare`.
        is_stopping: whether the service was asked to stop; then nothing is waited for.
        ray_timeout_s: limit of every call to Ray and Serve, which would block for ever if the process that
            should answer is gone.
    """

    def __init__(self, run: Path, is_stopping: Callable[[], bool], ray_timeout_s: float) -> None:
        self._run = run
        self.is_stopping = is_stopping
        self._ray_timeout_s = ray_timeout_s
        self._client: Any = None
        self._application = ""
        self._handle: Any = None
        self._gpus: Sequence[Gpu] = ()
        self._sharing: Sharing | None = None
        self._daemons: Daemons | None = None
        self.deployed: ConfigFile | None = None

    def start(self) -> None:
        """Start Ray in processes that receive no stop signals. Raises Ray's own errors."""
        patches.leave_out_idle_programs()
        # Ray puts the current directory first on its workers' path, where a folder may have any name.
        with ignoring_signals_in_children(), contextlib.chdir(self._run):
            ray.init(
                address="local",
                num_cpus=cores(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                object_store_memory=OBJECT_STORE_BYTES,
                _temp_dir=str(self._run / "ray"),
            )
        logging.getLogger("ray.serve").setLevel(logging.ERROR)

    def share_gpus(self, config: ConfigFile, say: Callable[[str], None]) -> None:
        """Choose how many replicas run on each GPU; start CUDA MPS if several do. Call it before `deploy`.

        Does nothing without a GPU. It holds for the whole run: another number would restart replicas.

        say: shows the choice to the operator, one line each. Raises ModelError.
        """
        if not self._count_gpus(config):
            return
        self._gpus = gpus.probe()
        if not self._gpus:  # replicas say that torch sees none
            return
        options = config.deployment.get("ray_actor_options") or {}
        if _is_free(config.deployment) and "num_gpus" not in options:
            self._sharing = gpus.share(self._gpus, cores(), gpus.footprint(config))
            say(gpus.notice(self._gpus, self._sharing))
        deployment = self._on_this_machine(config)["applications"][0]["deployments"][0]
        if 0 < (deployment["ray_actor_options"]["num_gpus"] or 0) < 1:
            if not config.settings.mps:
                say("the replicas of a GPU share it by time slices (mps: false)")
                return
            self._daemons, line = mps.start(self._run, self._gpus)
            say(line)

    def deploy(self, config: ConfigFile, *, may_start: bool = True) -> None:
        """Start Serve if it does not run yet, and give it the config.

        If only `user_config` differs from the running config, Serve reconfigures the replicas one by one and
        restarts none.

        may_start: whether its new experiments start; if not, they do when it is deployed again with True.
        Raises NoAnswer if Serve is silent, which may do it later all the same.
        """
        document = self._on_this_machine(config)
        if not may_start:
            document["applications"][0]["deployments"][0]["user_config"][EXPERIMENTS_WAIT] = True
        schema = ServeDeploySchema.model_validate(document)
        self._application = schema.applications[0].name
        if self._client is None:
            self._client = self._call(patches.start_serve, schema)
        self.deployed = config
        self._call(self._client.deploy_apps, schema)

    def wait_until_running(self, say: Callable[[str], None]) -> bool:
        """Wait until the application runs and the proxy lets requests through.

        say: shows one line to the operator: what Serve waits for, if that takes long.
        Returns False if the service stops first. Raises DeployError if the application cannot run.
        """
        last_shown = ""
        slow_from = time.monotonic() + SLOW_START_S
        while not self.is_stopping():
            application = self.status()
            if application.status == ApplicationStatus.DEPLOY_FAILED:
                raise DeployError(_start_error(application))
            if application.status == ApplicationStatus.RUNNING:
                self._call(self._client.wait_for_proxies_serving)
                self._handle = self._call(serve.get_app_handle, self._application)
                return True
            waits_for = _waits_for(application)
            if waits_for not in ("", last_shown) and time.monotonic() > slow_from:
                last_shown = waits_for
                say(f"still waiting for the replicas: {waits_for}")
            time.sleep(POLL_S)
        return False

    def status(self) -> Any:
        """Return what Serve says about the application that was deployed."""
        return self._call(serve.status).applications[self._application]

    def ask_all(self, method: str, *arguments: Any, limit_s: float | None = None) -> list[Any]:
        """Return the answer of each running replica.

        Raises the first error that a replica raises, or TimeoutError if not all answer within the limit; by
        default within CHECK_TIMEOUT_S and before the service stops.
        """
        deadline = time.monotonic() + (CHECK_TIMEOUT_S if limit_s is None else limit_s)
        responses = self._call(self._handle.broadcast, method, *arguments)
        while True:
            try:
                answers: list[Any] = self._call(responses.results, timeout_s=CHECK_POLL_S)
            except TimeoutError:
                if (limit_s is None and self.is_stopping()) or time.monotonic() > deadline:
                    raise
            else:
                return answers

    def show_refused(self, is_refused: bool) -> None:
        """Show in the replicas' metrics whether the last edit of the config was refused."""
        with contextlib.suppress(Exception):  # none answers
            self.ask_all("show_refused", is_refused, limit_s=SHOW_S)

    def drain(self, drain_timeout_s: float) -> None:
        """Let the replicas answer what they have accepted and refuse the rest, then let HAProxy close.

        HAProxy goes on until then, so every request gets an answer, and closes by its soft stop: it takes no
        new connection, and ends when the last answer is sent. Does nothing before the application runs.
        """
        if self._handle is None:
            return
        deadline = time.monotonic() + drain_timeout_s
        self._drain_all(drain_timeout_s + WRITE_S)
        haproxies = descendants_named(("haproxy",))
        for haproxy in haproxies:
            with contextlib.suppress(psutil.Error):
                haproxy.send_signal(signal.SIGUSR1)
        psutil.wait_procs(haproxies, timeout=max(CLOSE_S, deadline - time.monotonic()))
        if not haproxies:  # Serve's Python proxies
            wait([run_in_thread(serve.shutdown)], CLOSE_S)

    def _drain_all(self, limit_s: float) -> None:
        """Ask the replicas to drain until as many have done so as Serve runs.

        This process's handle hears of changed replicas a moment after they serve: it may not know the newest
        one yet, or ask a dead one and fail.
        """
        deadline = time.monotonic() + limit_s
        hears_until = time.monotonic() + min(HEARS_S, limit_s)
        is_last = False
        while not is_last:
            is_last = time.monotonic() > hears_until
            with contextlib.suppress(Exception):  # HAProxy then waits for the answers
                drained = self.ask_all("drain", limit_s=deadline - time.monotonic())
                if len(drained) >= count_replicas(self.status(), SERVING):
                    return
            time.sleep(POLL_S)

    def end(self) -> None:
        """End every process of this cluster.

        Ray's library in this process ends it with status 1 when it loses its raylet, so it lets go first. It
        would hang if one of Ray's processes is dead, hence the limit.
        """
        wait([run_in_thread(ray.shutdown)], SHUTDOWN_S)
        if self._daemons is not None:
            self._daemons.stop()
        kill_process_tree()

    def _on_this_machine(self, config: ConfigFile) -> dict[str, Any]:
        """Return the document with this run's replicas, their threads and GPUs, and a metrics directory."""
        document = copy.deepcopy(config.document)
        deployment = document["applications"][0]["deployments"][0]
        options = deployment.setdefault("ray_actor_options", {})
        variables = options.setdefault("runtime_env", {}).setdefault("env_vars", {})
        variables["PROMETHEUS_MULTIPROC_DIR"] = str(memory(self._run) / "metrics")
        for name, value in environment.replica_variables().items():
            variables.setdefault(name, value)
        gpu_count = self._count_gpus(config)
        if self._daemons is not None:
            variables |= self._daemons.variables
        initial_replicas, max_replicas = autoscaling.bounds(deployment)
        replicas = config.replicas or initial_replicas
        if _is_free(deployment):
            replicas = autoscaling.replicas(cores(), gpu_count)
            if self._sharing is not None:
                replicas = self._sharing.replicas
                options["num_gpus"] = self._sharing.num_gpus
            deployment["num_replicas"] = replicas
        # Without this, Ray would set a replica's threads to its num_cpus.
        variables.setdefault("OMP_NUM_THREADS", str(autoscaling.threads(cores(), replicas)))
        if gpu_count:
            options.setdefault("num_gpus", autoscaling.gpu_share(replicas, gpu_count))
        cpus = options.get("num_cpus")
        cpus_requested = 1 if cpus is None else float(cpus)
        options["num_cpus"] = autoscaling.cpu_share(cpus_requested, max(replicas, max_replicas), cores())
        # After this time Serve kills a replica that still answers requests. Serve's own default is too short.
        deployment["graceful_shutdown_timeout_s"] = max(
            float(deployment.get("graceful_shutdown_timeout_s", 0)),
            config.settings.drain_timeout_s + KILL_AFTER_DRAIN_S,
        )
        return document

    def _count_gpus(self, config: ConfigFile) -> float:
        """Return the GPUs that replicas of this config may use."""
        if config.settings.device == "cpu":
            return 0.0
        return float(self._call(ray.cluster_resources).get("GPU", 0))

    def _call(self, call: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Return what a call to Ray or Serve returns. Raises what it raises, or NoAnswer after the limit."""
        done = run_in_thread(call, *arguments, **options)
        if not wait([done], self._ray_timeout_s).done:
            raise NoAnswer(f"Ray has not answered in {self._ray_timeout_s:g} s (ray_timeout_s)")
        return done.result()


def _is_free(deployment: Mapping[str, Any]) -> bool:
    """Return whether a deployment leaves the number of its replicas to the machine."""
    return deployment.keys().isdisjoint(("num_replicas", "autoscaling_config"))


SERVING = ("RUNNING", "UPDATING")
"""The states in which Serve lists a replica."""


def count_replicas(application: Any, states: Sequence[str]) -> int:
    """Return the number of replicas in these states. application: what Serve says about it."""
    deployments = application.deployments.values()
    return sum(deployment.replica_states.get(state, 0) for deployment in deployments for state in states)


def _waits_for(application: Any) -> str:
    """Return the sentences of Serve about a deployment that does not run yet, or "" if there are none."""
    messages = (deployment.message for deployment in application.deployments.values())
    # What follows is a traceback, or advice that does not fit.
    return next((re.split(r"\n| Use `ray status`| Error:\n", text)[0] for text in messages if text), "")


def _start_error(application: Any) -> str:
    """Return why the application did not start: the last line of a traceback, without the class."""
    messages = [deployment.message for deployment in application.deployments.values()]
    for message in (*messages, application.message):
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        if lines:
            return re.sub(r"^(?:\w+\.)+\w+: ", "", lines[-1])
    return "the application did not start"
