"""What the tests of this folder share. Imports Ray Serve first, since some of its imports warn."""

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from headroom.service.config import file as config_file
from headroom.service.config.file import ConfigFile, Overrides
from headroom.service.config.settings import InvalidConfig, LiveConfig
from tests.service.running import DEPLOY

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from headroom.service.ray.actor import Relevance

ON_A_CPU = Overrides(device="cpu")


def shipped(directory: Path, live: Any, overrides: Overrides = ON_A_CPU, **fields: Any) -> ConfigFile:
    """Return deploy/serve.yaml with this user_config and more fields of the deployment; None removes one."""
    document = yaml.safe_load(DEPLOY.read_text())
    deployment = document["applications"][0]["deployments"][0] | {"user_config": live} | fields
    kept = {name: value for name, value in deployment.items() if value is not None}
    document["applications"][0]["deployments"][0] = kept
    path = directory / "serve.yaml"
    path.write_text(yaml.safe_dump(document))
    return config_file.load(path, overrides)


def without_serve(replica: Any) -> Any:
    """Return the class that Serve makes replicas of, with a fake replica under it."""
    deployment: Any = Relevance
    ours = deployment.func_or_class.__mro__[1]
    # Serve awaits `__del__`; the garbage collector cannot.
    actor = type("Actor", (ours,), {"__del__": lambda _: None})({})
    actor._replica = replica
    return actor


class FakeReplica:
    """Holds a config, and takes every one but those with a mask called `wrong`.

    started: the last config whose experiments might start.
    """

    def __init__(self) -> None:
        self.config = LiveConfig()
        self.started = self.config
        self.failure: str | None = None
        self.config_is_refused = False
        self.is_drained = False

    @property
    def catalog(self) -> SimpleNamespace:
        return SimpleNamespace(config=self.config)

    @property
    def config_version(self) -> str:
        return self.config.version

    def check(self, config: LiveConfig) -> None:
        if "wrong" in config.masks:
            raise InvalidConfig("masks.wrong: no")

    def apply(self, config: LiveConfig, *, may_start: bool) -> None:
        self.check(config)
        self.config = config
        if may_start:
            self.started = config

    async def drain(self) -> None:
        self.is_drained = True
