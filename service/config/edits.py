"""Applies good edits of the config file while it is served, and refuses wrong ones in one line."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from headroom.models.checkpoint.files import bytes_of_weights, check_files, digest_of
from headroom.models.checkpoint.hub import locate
from headroom.models.errors import UnsupportedCheckpoint, one_line
from headroom.models.files import read_bytes
from headroom.service.config.file import ConfigFile, ConfigFileError, Overrides, load, read
from headroom.service.config.settings import LiveConfig

SETTLE_S = 1.0
"""Seconds for which a changed file must stay the same before the edit counts. Some editors write a file in
parts, and its first part may be a valid config that lacks the experiments of the rest."""

SHOW_AGAIN_S = 15.0
"""Seconds between two notices of a refused edit. Replicas that started since the edit do not know of it."""

FileState = tuple[int, bytes] | None
"""A file's modification time and content, so that saving it unchanged counts; None if it is unreadable."""


def read_state(path: Path) -> FileState:
    """Return the file's modification time and content, or None if it cannot be read."""
    try:
        return path.stat().st_mtime_ns, read_bytes(path)
    except OSError:
        return None


class Unsettled(Exception):
    """An edit failed, and some replicas may have it; the message says why."""


@dataclass
class LiveEdits:
    """Watches the file of the served config. Call `look` regularly.

    Args:
        seen: the state of the file that was judged last; at first, of the file that was loaded.
        running: the config that is served now.
        apply: applies a config; returns why it was refused, or None; raises Unsettled.
        say: shows one line to the operator; warn: one that asks for attention.
        show_refused: is called with whether the file's last edit was refused.
        is_refused: whether the last edit was. is_settled: whether all replicas have the running config.
        clock: returns seconds that only grow.
    """

    path: Path
    seen: FileState
    overrides: Overrides
    running: ConfigFile
    apply: Callable[[ConfigFile], str | None]
    say: Callable[[str], None]
    warn: Callable[[str], None]
    show_refused: Callable[[bool], None]
    is_refused: bool = False
    is_settled: bool = True
    clock: Callable[[], float] = time.monotonic
    _state: FileState = field(init=False)  # of the file at the last look
    _changed_at: float = field(init=False, default=0.0)  # when a look first saw that state
    _shown: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._state = self.seen

    def look(self) -> None:
        """Apply or refuse an edit once it is complete: two looks, SETTLE_S apart, saw the same file.

        Any error refuses the edit, because the service must not end because of one.
        """
        state = read_state(self.path)
        if state != self._state:
            self._state = state
            self._changed_at = self.clock()
        if state == self.seen or self.clock() - self._changed_at < SETTLE_S:
            if self.is_refused and self.clock() - self._shown >= SHOW_AGAIN_S:
                self._show()
            return
        self.seen = state
        result = "config refused, the last good one stays"
        try:
            reason = self._judge(state)
        except Unsettled as error:
            self.is_settled = False
            result = "config refused, but some replicas may have it; save the file again"
            reason = f"{self.path}: {error}"
        except ConfigFileError as error:
            reason = str(error)
        except Exception as error:
            reason = f"{self.path}: {one_line(error)}"
        self.is_refused = reason is not None
        self._show()
        if reason is not None:
            self.warn(f"{result}: {reason}")

    def _show(self) -> None:
        self.show_refused(self.is_refused)
        self._shown = self.clock()

    def _judge(self, state: FileState) -> str | None:
        """Apply the edit and return None, or return why it is refused. Raises if it is no config."""
        if state is None:
            load(self.path, self.overrides)  # raises an error that says why it is unreadable
            return None  # it has become readable; the next looks will find it
        edited = pinned(read(state[1], self.path, self.overrides), self.running)
        if self.running.has_live and not edited.has_live:
            return (
                f"{self.path}: applications[0].deployments[0].user_config is missing; is the file complete?"
            )
        new_config = self.running.with_live(edited.deployment["user_config"], edited.live)
        if new_config.document != edited.document:
            self.say("config: what was changed outside user_config applies at the next start")
        if new_config.live != self.running.live or not self.is_settled:
            reason = self.apply(new_config)
            if reason is not None:
                return f"{self.path}: {reason}"
            if (taken_out := experiments_taken_out(self.running.live, new_config.live)) is not None:
                self.warn(taken_out)
            self.running = new_config
            self.is_settled = True
        elif not self.is_refused:
            return None
        self.say(f"config applied: version {new_config.live.version}")
        return None


def experiments_taken_out(previous: LiveConfig, config: LiveConfig) -> str | None:
    """Return what an edit takes out, as a line for the operator; None if each experiment is still there."""
    names = {experiment.name for experiment in config.experiments}
    missing = [experiment.name for experiment in previous.experiments if experiment.name not in names]
    if not missing:
        return None
    return (
        f"config {config.version} takes out the experiments {', '.join(missing)}: their units get the "
        "default until an edit brings them back"
    )


def pinned(config: ConfigFile, running: ConfigFile | None = None) -> ConfigFile:
    """Return the config with the digests of its checkpoints that are directories, as they are now.

    A replica that is restarted reads the files again. If somebody has replaced them meanwhile, two models
    would answer under one version. The hub's checkpoints are pinned by their commits.

    running: the config in force. Its digests stay, because its checkpoints are loaded and later edits must
    still apply.
    """
    served = config if running is None else running
    model = served.settings.model
    checkpoints = {"": model}  # by their names in `digests`
    for variant in config.live.variants:
        if variant.checkpoint is not None:
            checkpoints[variant.checkpoint] = variant.checkpoint
    digests = dict(config.live.digests)
    for name, checkpoint in checkpoints.items():
        if name in digests or not _is_directory(checkpoint):
            continue
        with contextlib.suppress(OSError, UnsupportedCheckpoint):  # the check of the checkpoint says why
            directory = locate(checkpoint, model)
            check_files(directory)
            if bytes_of_weights(directory):
                digests[name] = served.live.digests.get(name) or digest_of(directory, masks=True)
    user_config = config.deployment["user_config"] | {"digests": digests}
    return config.with_live(user_config, LiveConfig.model_validate(user_config))


def _is_directory(checkpoint: str | None) -> bool:
    """Return whether a checkpoint's files are on this machine, and not in the hub's cache."""
    return checkpoint is None or checkpoint.startswith("@") or Path(checkpoint).expanduser().is_dir()
