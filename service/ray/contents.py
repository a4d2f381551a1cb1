"""Pins the content of the checkpoints that a config names, so that all replicas serve the same weights.

A replica that is restarted reads the files again. If somebody has replaced them meanwhile, two models would
answer under one version.
"""

from __future__ import annotations

import contextlib
import copy
from pathlib import Path

from models.checkpoint.digest import bytes_of_weights, digest_of
from models.checkpoint.hub import locate
from models.checkpoint.hub_files import check_files
from models.errors import UnsupportedCheckpoint
from service.config.settings import LiveConfig
from service.ray.config_file import ConfigFile


def pinned(config: ConfigFile, running: ConfigFile | None = None) -> ConfigFile:
    """Return the config with the digests of its checkpoints that are directories, as they are now.

    The hub's are pinned by their commits. running: the config in force, whose digests stay: its checkpoints
    are loaded, and other edits must go on to apply.
    """
    settings, known = (config.settings, {}) if running is None else (running.settings, running.live.digests)
    paths = {"": settings.model} | {v.checkpoint: v.checkpoint for v in config.live.variants if v.checkpoint}
    digests = dict(config.live.digests)
    for name, path in paths.items():
        if name not in digests and (path is None or Path(path).expanduser().is_dir()):
            with contextlib.suppress(OSError, UnsupportedCheckpoint):  # the check of the checkpoint says why
                directory = locate(path)
                check_files(directory)
                if bytes_of_weights(directory):
                    digests[name] = known.get(name) or digest_of(directory, masks=True)
    document = copy.deepcopy(config.document)
    of_deployment = document["applications"][0]["deployments"][0]
    of_deployment["user_config"] |= {"digests": digests}
    live = LiveConfig.model_validate(of_deployment["user_config"])
    return ConfigFile(document, live, config.settings, config.has_live)
