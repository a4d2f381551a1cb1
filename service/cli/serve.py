"""`headroom serve` runs the service on this machine, in a Ray cluster that it starts itself."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import wait
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TextIO

import typer

from headroom.models.commands import options
from headroom.service.cli.messages import message_of
from headroom.service.config.edits import FileState, LiveEdits, pinned, read_state
from headroom.service.config.file import ConfigFile, Overrides, load
from headroom.service.config.settings import InvalidConfig, LogFormat
from headroom.service.observe.access_log import timestamp
from headroom.service.ray import environment, preflight
from headroom.service.ray.notices import AccessLogCopier, Notices, text_of
from headroom.service.ray.processes import (
    StopSignal,
    Watchdog,
    adopt_orphans,
    end_run,
    run_in_thread,
    start_again,
)
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
            help="Number of replicas.  [default: the file's, or up to 4 per GPU, or one per core, at most 8]",
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
    label_order: options.LabelOrder = None,
) -> None:
    """Start the service. Ctrl-C or SIGTERM stops it after every accepted request is answered.

    Flags override the config file. While the service runs, edits of user_config in that file apply live.

    Example: headroom serve --port 8080 --model ./my-checkpoint
    """
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())  # a replica has another working directory
    order = options.label_names(label_order)
    overrides = Overrides(host, port, model, device, dtype, replicas, order)
    run(config.absolute(), overrides)


def run(path: Path, overrides: Overrides) -> None:
    """Serve until a signal comes. Raises ConfigFileError, OSError or DeployError if it cannot start."""
    seen = read_state(path)
    config = pinned(load(path, overrides))
    try:
        _check_and_serve(path, seen, overrides, config)
    except Exception as error:
        if config.settings.log_format == "text":
            raise
        _say(message_of(error), "json", "ERROR")
        raise typer.Exit(1) from error


def _check_and_serve(path: Path, seen: FileState, overrides: Overrides, config: ConfigFile) -> None:
    say, warn = _voices(config.settings.log_format)
    preflight.check(path, config, say)
    for warning in preflight.unknown_variables(config):
        warn(f"warning: {warning}")
    preflight.check_port(config.host, config.port)
    if preflight.is_open_to_others(config):
        warn(
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
            warn(f"the start failed; Ray's logs are in {directory.logs}")
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
    say, warn = _voices(settings.log_format)
    fail = partial(_say, form=settings.log_format, level="ERROR")
    variables = dict(os.environ)
    environment.prepare(run, request_timeout_s=settings.request_timeout_s)
    access_log = AccessLogCopier(run) if settings.access_log != "off" else None
    notices = Notices(run)
    say("starting Ray")
    adopt_orphans()
    is_ready = threading.Event()

    def end(reason: str) -> None:
        if is_ready.is_set() or stop.is_set():
            end_run(directory, reason, fail)
        start_again(directory, reason, variables, fail)

    watchdog = Watchdog(end, stop.is_set, drain_timeout_s + STOP_S)
    stop.before_end = watchdog.close
    # Ray prints errors to standard output, which must hold only our line that the service is ready.
    with (run / "ray.out").open("w") as ray_out, contextlib.redirect_stdout(ray_out):
        from headroom.service.ray.cluster import Cluster

        preflight.check_schema(path, config)
        cluster = Cluster(run, stop.is_set, settings.ray_timeout_s)
        # An edit can take a minute, and what replicas tell the operator must be shown meanwhile.
        show = partial(_show_notices, notices, settings.log_format)
        shown = _watcher(show, stop)
        status = 1
        try:
            if _start(cluster, config, say):
                is_ready.set()
                _print_ready(config)
                if access_log is not None:
                    access_log.start()
                apply = partial(_apply, cluster, run, stop, path)
                edits = LiveEdits(
                    path,
                    seen,
                    overrides,
                    config,
                    apply=apply,
                    say=say,
                    warn=warn,
                    show_refused=cluster.show_refused,
                )
                shown.start()
                while not stop.wait(WATCH_S):
                    edits.look()
            say("stopping after the accepted requests are answered (repeat to stop at once)")
            status = 0
        finally:
            cluster.drain(drain_timeout_s)
            if shown.ident is not None:  # it was started
                shown.join(2 * WATCH_S)
                show()  # what was written until the replicas ended
            watchdog.close()
            cluster.end()
            if access_log is not None:
                access_log.stop()
            # Instead of Ray's own handlers, which talk to processes that are gone.
            atexit.register(os._exit, status)


def _start(cluster: Cluster, config: ConfigFile, say: Callable[[str], None]) -> bool:
    """Start Ray and the replicas. Return False if the service stops first."""
    cluster.start()
    cluster.share_gpus(config, say)
    say("loading the model")
    cluster.deploy(config)
    return cluster.wait_until_running(say)


def _apply(cluster: Cluster, directory: Path, stop: StopSignal, path: Path, config: ConfigFile) -> str | None:
    """Download what an edited config needs, and apply it. Return why it is refused, or None.

    A download that hangs holds up no later edit: it is given up as soon as the file at `path` changes again.
    """
    from headroom.service.config.check import check_checkpoints  # imports numpy

    edited = read_state(path)
    checked = run_in_thread(check_checkpoints, config)
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


def _watcher(show: Callable[[], None], stop: StopSignal) -> threading.Thread:
    """Return a thread that shows what the run's processes tell the operator, until the service stops."""

    def watch() -> None:
        while not stop.is_set():
            show()
            time.sleep(WATCH_S)

    return threading.Thread(target=watch, daemon=True)


def _show_notices(notices: Notices, form: LogFormat) -> None:
    for notice in notices.read():
        if form == "json":
            _print(json.dumps(notice), sys.stderr)
        else:
            for line in text_of(notice).splitlines():
                _say(line)


def _print_ready(config: ConfigFile) -> None:
    """Print the line that says where the service is: the only one of this process on standard output."""
    line = f"headroom is ready at {config.url}"
    _print(_json(line, "INFO") if config.settings.log_format == "json" else line, sys.__stdout__)


def _voices(form: LogFormat) -> tuple[Callable[[str], None], Callable[[str], None]]:
    """Return what shows a line to the operator, and what shows one that asks for attention."""
    return partial(_say, form=form), partial(_say, form=form, level="WARNING")


def _say(line: str, form: LogFormat = "text", level: str = "INFO") -> None:
    _print(_json(line, level) if form == "json" else f"headroom: {line}", sys.stderr)


def _json(line: str, level: str) -> str:
    """Return a line of this process as JSON."""
    return json.dumps({"time": timestamp(time.time()), "level": level, "message": line})


def _print(line: str, stream: TextIO | None) -> None:
    """Print a line. The service goes on after the pipe's reader ends (`headroom serve 2>&1 | head -2`)."""
    with contextlib.suppress(OSError):
        print(line, file=stream, flush=True)
