"""`headroom serve`: the service on this machine, on a Ray of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from service.deployment import config_file, environment, last_good
from service.deployment.processes import STOP_SIGNALS, family, kill

if TYPE_CHECKING:
    from service.deployment.cluster import Cluster
    from service.deployment.config_file import ConfigFile, Overrides

DEFAULT_CONFIG = Path(__file__).parents[2] / "deploy" / "serve.yaml"
WATCH_S = 0.5


def command(
    host: Annotated[str | None, typer.Option(help="Address to listen on.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port.  [default: 8000]")] = None,
    model: Annotated[
        str | None, typer.Option(help="Checkpoint directory or hub id.  [default: the shipped model]")
    ] = None,
    config: Annotated[Path, typer.Option(help="Ray Serve config file; watched.")] = DEFAULT_CONFIG,
    replicas: Annotated[int | None, typer.Option(min=1, max=64, help="Number of replicas.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, mps, cuda or cuda:N.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
) -> None:
    """Start the service; Ctrl-C or SIGTERM answers what was accepted, then stops it.

    Flags win over the config file. While it runs, edits under user_config in that file are applied live.

    Example: headroom serve --port 8080 --model ./my-checkpoint
    """
    if model is not None and Path(model).exists():
        model = str(Path(model).resolve())  # the replica's working directory is not ours to rely on
    overrides = config_file.Overrides(host, port, model, device, dtype, replicas)
    run(config.resolve(), overrides)


def run(path: Path, overrides: Overrides) -> None:
    """Serves until a signal comes.

    Raises:
        ConfigFileError, OSError, DeployError: it did not start.
    """
    content = _content(path)
    config = _load(path, overrides)
    _check_port(config.host, config.port)
    stop = StopSignal()
    stop.install()
    directory = Path(tempfile.mkdtemp(prefix="headroom-", dir="/tmp"))  # short: Unix sockets go into it
    try:
        _serve(path, content, overrides, config, directory, stop)
    except Exception:
        _say(f"it failed; Ray's logs are in {directory}/ray/session_latest/logs")
        raise
    shutil.rmtree(directory, ignore_errors=True)


def _load(path: Path, overrides: Overrides) -> ConfigFile:
    """The config of the file; where that is wrong, what it was when it was last served, if it ever was."""
    try:
        return _checked(path, overrides)
    except config_file.ConfigFileError as error:
        try:
            config = _checked(last_good.copy_of(path), overrides)
        except config_file.ConfigFileError:
            raise error from None
        _say(f"config refused, the last good one ({config.live.version}) is served: {error}")
        return config


def _checked(path: Path, overrides: Overrides) -> ConfigFile:
    config = config_file.load(path, overrides)
    _check_model(path, config)
    return config


def _serve(
    path: Path,
    content: bytes | None,
    overrides: Overrides,
    config: ConfigFile,
    directory: Path,
    stop: StopSignal,
) -> None:
    environment.prepare(directory, request_timeout_s=config.settings.request_timeout_s)
    _say("starting Ray")
    # Ray tells its own errors on the standard output, where our one line belongs.
    with (directory / "ray.out").open("w") as ray_out, contextlib.redirect_stdout(ray_out):
        from service.deployment.cluster import Cluster

        cluster = Cluster(directory)
        try:
            cluster.start(config)
            _say("loading the model")
            cluster.deploy(config)
            if cluster.wait_until_running(stop.is_set):
                print(f"headroom is ready at {_url(config)}", file=sys.__stdout__, flush=True)
                _watch(path, content, overrides, config, cluster, stop)
            _say("stopping: answering what was accepted (again to stop at once)")
        finally:
            cluster.stop(config.settings.drain_timeout_s)


class StopSignal:
    """SIGINT or SIGTERM: the first asks to stop, the second stops at once."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.is_set = self._event.is_set
        self.wait = self._event.wait

    def install(self) -> None:
        for number in STOP_SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if self._event.is_set():
            kill(family())
            os._exit(130)
        self._event.set()


def _watch(
    path: Path,
    seen: bytes | None,
    overrides: Overrides,
    config: ConfigFile,
    cluster: Cluster,
    stop: StopSignal,
) -> None:
    """Applies good edits of the config file until the stop signal; refuses wrong ones in one line.

    seen: the file's content when it was loaded.
    """
    running = config
    last_good.keep(path, config.text)
    while not stop.wait(WATCH_S):
        for line in cluster.notices():
            _say(line)
        content = _content(path)
        if content == seen:
            continue
        seen = content
        try:
            edited = config_file.load(path, overrides)
        except config_file.ConfigFileError as error:
            _say(f"config refused, the last good one stays: {error}")
            continue
        wanted = running.with_live_of(edited)
        if wanted.document != edited.document:
            _say("config: what was changed outside user_config applies at the next start")
        if wanted.live == running.live:
            continue
        reason = cluster.apply(wanted)
        if reason is None:
            running = wanted
            last_good.keep(path, edited.text)
            _say(f"config applied: version {wanted.live.version}")
        else:
            _say(f"config refused, the last good one stays: {path}: {reason}")


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _check_port(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another --port"
            ) from None


def _check_model(path: Path, config: ConfigFile) -> None:
    """Finds out in a moment what a replica would say after Ray has started."""
    from models.config import read_config, read_stored_masks
    from models.hub import locate
    from service.settings import InvalidConfig, resolve_masks, resolve_variant

    directory = locate(config.settings.model)
    own = read_config(directory)
    shape = {"layers": own.num_layers, "heads": own.num_heads}
    try:
        masks = resolve_masks(config.live, **shape, stored=read_stored_masks(directory, own))
        for variant in config.live.variants:
            if variant.checkpoint is None:
                mask = resolve_variant(config.live, variant.name, **shape, masks=masks)
                if mask is None:
                    _say(f"variant {variant.name} is left out: the model has no mask {variant.head_mask}")
    except InvalidConfig as error:
        raise config_file.ConfigFileError(f"{path}: user_config.{error}") from None


def _url(config: ConfigFile) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{config.port}"


def _say(line: str) -> None:
    print(f"headroom: {line}", file=sys.stderr, flush=True)
