"""What the tests of this folder share. Imports Ray Serve first, since some of its imports warn."""

import warnings
from pathlib import Path
from typing import Any

import yaml

from headroom.service.config import file as config_file
from headroom.service.config.file import ConfigFile, Overrides
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
