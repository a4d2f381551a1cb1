"""The one configuration: a Ray Serve config file (deploy/serve.yaml), read, checked and overridden.

The same file works with `serve deploy` and as KubeRay's `serveConfigV2`. Nothing here needs ray.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from service.settings import LiveConfig, Settings

DEPLOYMENT = "Relevance"


class ConfigFileError(Exception):
    """The file cannot be served; the message says where and why, in one line."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the command line says; None leaves the file's word."""

    host: str | None = None
    port: int | None = None
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    replicas: int | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A checked configuration. `document` is what Ray Serve gets; `text` is the file it was read from."""

    document: dict[str, Any]
    live: LiveConfig
    settings: Settings
    text: str = ""

    @property
    def host(self) -> str:
        return str(self.document["http_options"]["host"])

    @property
    def port(self) -> int:
        return int(self.document["http_options"]["port"])

    @property
    def deployment(self) -> dict[str, Any]:
        """The part of `document` that describes our deployment; changing it changes the document."""
        return _deployment(self.document)

    def with_live_of(self, other: ConfigFile) -> ConfigFile:
        """This configuration with the other's `user_config`, which is all that may change while it runs."""
        document = copy.deepcopy(self.document)
        _deployment(document)["user_config"] = other.deployment["user_config"]
        return ConfigFile(document, other.live, self.settings, other.text)

    @property
    def replicas(self) -> int | None:
        """How many replicas the command line or the file asks for; None where that is left to the machine, or
        to Serve's autoscaling (`auto`)."""
        asked = self.deployment.get("num_replicas")
        return asked if isinstance(asked, int) else None


def load(path: Path, overrides: Overrides) -> ConfigFile:
    """Reads the file and lays the command line over it.

    Raises ConfigFileError: unreadable, not YAML, not the shape of a Serve config, or wrong live values.
    """
    text = _read(path)
    document = _with_overrides(_parse(text, path), overrides)
    try:
        settings = Settings.model_validate(document["applications"][0]["args"])
    except ValidationError as error:
        raise ConfigFileError(f"{path}: args.{first_problem(error)}") from None
    try:
        live = LiveConfig.model_validate(_deployment(document)["user_config"])
    except ValidationError as error:
        raise ConfigFileError(f"{path}: user_config.{first_problem(error)}") from None
    return ConfigFile(document, live, settings, text)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ConfigFileError(f"{path}: not UTF-8 text") from None


def _parse(text: str, path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise ConfigFileError(f"{path}{where}: {problem}") from None
    if not isinstance(document, Mapping):
        raise ConfigFileError(f"{path}: not a Ray Serve config (a mapping with `applications`)")
    applications = document.get("applications")
    if not isinstance(applications, list) or [type(entry) for entry in applications] != [dict]:
        raise ConfigFileError(f"{path}: applications must hold exactly one application")
    deployments = applications[0].get("deployments")
    names = [entry.get("name") for entry in deployments or [] if isinstance(entry, Mapping)]
    if names != [DEPLOYMENT]:
        raise ConfigFileError(f"{path}: applications[0].deployments must hold {DEPLOYMENT}, and it alone")
    return dict(document)


def _with_overrides(document: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    merged = copy.deepcopy(dict(document))
    http = merged["http_options"] = {"host": "127.0.0.1", "port": 8000} | (merged.get("http_options") or {})
    application = merged["applications"][0]
    application.setdefault("name", "headroom")
    application.setdefault("route_prefix", "/")
    arguments = application["args"] = dict(application.get("args") or {})
    deployment = _deployment(merged)
    deployment["user_config"] = deployment.get("user_config") or {}
    for target, names in ((http, ("host", "port")), (arguments, ("model", "device", "dtype"))):
        target.update({name: value for name in names if (value := getattr(overrides, name)) is not None})
    if overrides.replicas is not None:
        deployment["num_replicas"] = overrides.replicas
    return merged


def _deployment(document: Mapping[str, Any]) -> dict[str, Any]:
    deployment: dict[str, Any] = document["applications"][0]["deployments"][0]
    return deployment


def first_problem(error: ValidationError) -> str:
    """One line about the first thing wrong, with its place."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    return f"{place.removeprefix('.')}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
