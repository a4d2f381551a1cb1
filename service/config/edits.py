"""Applies good edits of the config file while it is served, and refuses wrong ones in one line."""

import contextlib
from collections.abc import Callable
from pathlib import Path

from models.checkpoint.files import bytes_of_weights, check_files, digest_of
from models.checkpoint.hub import locate
from models.errors import UnsupportedCheckpoint
from models.files import read_bytes
from service.config.file import ConfigFile, ConfigFileError, Overrides, load, read
from service.config.settings import LiveConfig

Glance = tuple[int, bytes] | None
"""A file's modification time and content, so that saving it unchanged counts; None if it is unreadable."""


def glance(path: Path) -> Glance:
    """Return the file's modification time and content, or None if it cannot be read."""
    try:
        return path.stat().st_mtime_ns, read_bytes(path)
    except OSError:
        return None


class Unsettled(Exception):
    """An edit failed, and some replicas may have it; the message says why."""


class LiveEdits:
    """Watches the file of the served config. Call `look` regularly.

    Args:
        config: the config that is served now.
        seen: the result of `glance` when the file was loaded.
        apply: applies a config; returns why it was refused, or None; raises Unsettled.
        say: shows one line to the operator.
        refused: is told whether the file's last edit was refused.
    """

    def __init__(
        self,
        path: Path,
        seen: Glance,
        overrides: Overrides,
        config: ConfigFile,
        *,
        apply: Callable[[ConfigFile], str | None],
        say: Callable[[str], None],
        refused: Callable[[bool], None],
    ) -> None:
        self._path = path
        self._judged = seen
        self._before = seen  # result of the previous look
        self._overrides = overrides
        self._running = config
        self._apply = apply
        self._say = say
        self._refused = refused
        self._is_refused = False
        self._is_settled = True  # whether all replicas have the running config

    def look(self) -> None:
        """Apply or refuse an edit once it is complete, which means that two looks in a row saw the same file.

        Any error refuses the edit, because the service must not end because of one.
        """
        seen = glance(self._path)
        before, self._before = self._before, seen
        if seen == self._judged or seen != before:
            return
        self._judged = seen
        result = "config refused, the last good one stays"
        try:
            reason = self._judge(seen)
        except Unsettled as error:
            self._is_settled = False
            result = "config refused, but some replicas may have it; save the file again"
            reason = f"{self._path}: {error}"
        except ConfigFileError as error:
            reason = str(error)
        except Exception as error:
            message = " ".join(str(error).split()) or type(error).__name__
            reason = f"{self._path}: {message}"
        self._is_refused = reason is not None
        self._refused(self._is_refused)
        if reason is not None:
            self._say(f"{result}: {reason}")

    def _judge(self, seen: Glance) -> str | None:
        """Apply the edit and return None, or return why it is refused. Raises if it is no config."""
        if seen is None:
            load(self._path, self._overrides)  # raises an error that says why it is unreadable
            return None  # it has become readable; the next looks will find it
        edited = pinned(read(seen[1], self._path, self._overrides), self._running)
        if self._running.has_live and not edited.has_live:
            return (
                f"{self._path}: applications[0].deployments[0].user_config is missing; is the file complete?"
            )
        wanted = self._running.with_live(edited.deployment["user_config"], edited.live)
        if wanted.document != edited.document:
            self._say("config: what was changed outside user_config applies at the next start")
        if wanted.live != self._running.live or not self._is_settled:
            reason = self._apply(wanted)
            if reason is not None:
                return f"{self._path}: {reason}"
            self._running = wanted
            self._is_settled = True
        elif not self._is_refused:
            return None
        self._say(f"config applied: version {wanted.live.version}")
        return None


def pinned(config: ConfigFile, running: ConfigFile | None = None) -> ConfigFile:
    """Return the config with the digests of its checkpoints that are directories, as they are now.

    A replica that is restarted reads the files again. If somebody has replaced them meanwhile, two models
    would answer under one version. The hub's checkpoints are pinned by their commits.

    running: the config in force, whose digests stay: its checkpoints are loaded, and other edits must go on
    to apply.
    """
    settings, known = (config.settings, {}) if running is None else (running.settings, running.live.digests)
    paths = {"": settings.model} | {v.checkpoint: v.checkpoint for v in config.live.variants if v.checkpoint}
    digests = dict(config.live.digests)
    for name, path in paths.items():
        if name not in digests and (path is None or name[:1] == "@" or Path(path).expanduser().is_dir()):
            with contextlib.suppress(OSError, UnsupportedCheckpoint):  # the check of the checkpoint says why
                directory = locate(path, settings.model)
                check_files(directory)
                if bytes_of_weights(directory):
                    digests[name] = known.get(name) or digest_of(directory, masks=True)
    user_config = config.deployment["user_config"] | {"digests": digests}
    return config.with_live(user_config, LiveConfig.model_validate(user_config))
