"""`headroom serve` runs the service on this machine, in a Ray cluster that it starts itself."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from headroom.service.config.edits import FileState, LiveEdits, pinned, read_state
from headroom.service.config.file import ConfigFile, Overrides, load
from headroom.service.config.settings import InvalidConfig
from headroom.service.ray import environment, preflight
from headroom.service.ray.notices import AccessLogCopier, Notices
from headroom.service.ray.processes import StopSignal, Watchdog, adopt_orphans, end_run, run_in_thread
from headroom.service.ray.run_directory import RunDirectory

if TYPE_CHECKING:
    from headroom.service.ray.cluster import Cluster

DEFAULT_CONFIG = Path(__file__).with_name("serve.yaml").resolve()
"""The shipped config file: deploy/serve.yaml in a clone, a file of the package in a wheel."""

WATCH_S = 0.5
CHECK_S = 0.1
STOP_S = 13.0
"""Seconds beyond `drain_timeout_s` before a stop ends everything at once."""


def command(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.  [default: the file's, or 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port.  [default: the file's, or 8000]")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Checkpoint directory or hub id (NAME@REVISION).  [default: the file's, or the shipped one]"
        ),
    ] = None,
    config: Annotated[Path, typer.Option(help="Ray Serve config file; watched for edits.")] = DEFAULT_CONFIG,
    replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=64,
            help="Number of replicas.  [default: the file's, or one per GPU, or one per core, at most 8]",
        ),
    ] = None,
    device: Annotated[
        Literal["auto", "cpu", "cuda"] | None,
        typer.Option(help="Device; CUDA_VISIBLE_DEVICES says which GPUs.  [default: the file's, or auto]"),
    ] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None,
        typer.Option(help="Number format of the weights.  [default: the file's, or auto]"),
    ] = None,
) -> None:
    """Start the service. Ctrl-C or SIGTERM stops it after every accepted request is answered.

    Flags override the config file. While the service runs, edits of user_config in that file apply live.

    Example: headroom serve --port 8080 --model ./my-checkpoint
    """
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())  # a replica has another working directory
    overrides = Overrides(host, port, model, device, dtype, replicas)
    run(config.absolute(), overrides)


def run(path: Path, overrides: Overrides) -> None:
    """Serve until a signal comes. Raises ConfigFileError, OSError or DeployError if it cannot start."""
    seen = read_state(path)
    config = pinned(load(path, overrides))
    preflight.check(path, config, _say)
    for warning in preflight.unknown_variables(config):
        _say(f"warning: {warning}")
    preflight.check_port(config.host, config.port)
    if preflight.is_open_to_others(config):
        _say(
            f"warning: everybody who can reach {config.url} may use it: no API keys are set "
            "(HEADROOM_API_KEYS, see docs/operations.md)"
        )
    stop = StopSignal()
    stop.install()
    directory = RunDirectory()
    try:
        _serve(path, seen, overrides, config, directory, stop)
    except Exception:
        if directory.logs.exists():
            _say(f"the start failed; Ray's logs are in {directory.logs}")
            directory.keep_logs()
        else:
            directory.remove()
        raise
    directory.remove()


def _serve(
    path: Path,
    seen: FileState,
    overrides: Overrides,
    config: ConfigFile,
    directory: RunDirectory,
    stop: StopSignal,
) -> None:
    run = directory.path
    drain_timeout_s = config.settings.drain_timeout_s
    settings = config.settings
    environment.prepare(
        run, request_timeout_s=settings.request_timeout_s, body_timeout_s=settings.body_timeout_s
    )
    access_log = AccessLogCopier(run) if config.settings.access_log != "off" else None
    notices = Notices(run)
    _say("starting Ray")
    adopt_orphans()
    watchdog = Watchdog(partial(end_run, directory), stop.is_set, drain_timeout_s + STOP_S)
    stop.before_end = watchdog.close
    # Ray prints errors to standard output, which must hold only our line that the service is ready.
    with (run / "ray.out").open("w") as ray_out, contextlib.redirect_stdout(ray_out):
        from headroom.service.ray.cluster import Cluster

        preflight.check_schema(path, config)
        cluster = Cluster(run, stop.is_set)
        # An edit can take a minute, and what replicas tell the operator must be shown meanwhile.
        shown = threading.Thread(target=_watch_notices, args=(notices, stop), daemon=True)
        status = 1
        try:
            cluster.start()
            _say("loading the model")
            cluster.deploy(config)
            if cluster.wait_until_running(_say):
                _print(f"headroom is ready at {config.url}", sys.__stdout__)
                if access_log is not None:
                    access_log.start()
                apply = partial(_apply, cluster, run, stop, path)
                edits = LiveEdits(
                    path, seen, overrides, config, apply=apply, say=_say, show_refused=cluster.show_refused
                )
                shown.start()
                while not stop.wait(WATCH_S):
                    edits.look()
            _say("stopping after the accepted requests are answered (repeat to stop at once)")
            status = 0
        finally:
            cluster.drain(drain_timeout_s)
            if shown.ident is not None:  # it was started
                shown.join(2 * WATCH_S)
                _show_notices(notices)  # what was written until the replicas ended
            watchdog.close()
            cluster.end()
            if access_log is not None:
                access_log.stop()
            # Instead of Ray's own handlers, which talk to processes that are gone.
            atexit.register(os._exit, status)


def _apply(cluster: Cluster, directory: Path, stop: StopSignal, path: Path, config: ConfigFile) -> str | None:
    """Download what an edited config needs, and apply it. Return why it is refused, or None.

    A download that hangs holds up no later edit: it is given up as soon as the file at `path` changes again.
    """
    edited = read_state(path)
    checked = run_in_thread(preflight.check_checkpoints, config)
    while not wait([checked], CHECK_S).done:
        if stop.is_set():
            return "the service stops before its checkpoints are here"
        if read_state(path) != edited:
            return "it was edited again before its checkpoints were here"
    try:
        checked.result()
    except InvalidConfig as error:
        return str(error)
    environment.share_checkpoints(directory)
    from headroom.service.ray import rollout  # imports ray

    return rollout.apply(cluster, config)


def _watch_notices(notices: Notices, stop: StopSignal) -> None:
    """Show what the run's processes tell the operator, until the service stops."""
    while not stop.is_set():
        _show_notices(notices)
        time.sleep(WATCH_S)


def _show_notices(notices: Notices) -> None:
    for line in notices.read():
        _say(line)


def _say(line: str) -> None:
    _print(f"headroom: {line}", sys.stderr)


def _print(line: str, stream: TextIO | None) -> None:
    """Print a line. The service goes on after the pipe's reader ends (`headroom serve 2>&1 | head -2`)."""
    with contextlib.suppress(OSError):
        print(line, file=stream, flush=True)
