"""Reads and checks the config file (deploy/serve.yaml), a Ray Serve config, and applies overrides to it.

The same file works with `serve deploy` and as KubeRay's `serveConfigV2`. This module does not need ray.

YAML is read strictly: no key twice, of which parsers keep the last, and no value that JSON lacks, as which
Serve passes a config on.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson
import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from headroom.models.files import read_bytes
from headroom.service.config.settings import (
    FAULTS,
    ORIGIN_PATTERN,
    REMOVED,
    LiveConfig,
    Settings,
    variable_of,
)
from headroom.service.experiments.definition import ExperimentConfig
from headroom.service.fields import NAME_PATTERN
from headroom.service.sentences import IN_YAML, place_of

DEPLOYMENT = "Relevance"

_SENTENCES = IN_YAML | {
    NAME_PATTERN: "should be 1 to 64 of the characters a-z, 0-9, _ and -",
    ORIGIN_PATTERN: "should be https://NAME or http://NAME, perhaps with :PORT, and without a path",
}
"""Our sentence instead of pydantic's, by the type of the error or by the pattern that was missed."""


class ConfigFileError(Exception):
    """The file cannot be served; the message says in one line where and why.

    faults: the message, and those of the file's other faults that were found with it.
    """

    def __init__(self, *faults: str) -> None:
        super().__init__(faults[0])
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Overrides:
    """Values from the command line; None keeps the file's value."""

    host: str | None = None
    port: int | None = None
    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    replicas: int | None = None
    label_order: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A checked configuration.

    document: the config for Ray Serve, which logs and shows it; so it holds digests of API keys, and no
        password.
    has_live: whether the file has a `user_config`; if not, `live` is the default.
    """

    document: dict[str, Any]
    live: LiveConfig
    settings: Settings
    has_live: bool

    @property
    def host(self) -> str:
        return str(self.document["http_options"]["host"])

    @property
    def port(self) -> int:
        return int(self.document["http_options"]["port"])

    @property
    def url(self) -> str:
        """The URL by which a client on this machine reaches the service."""
        host = f"[{self.host}]" if ":" in self.host else self.host  # IPv6
        return f"http://{host}:{self.port}"

    @property
    def deployment(self) -> dict[str, Any]:
        """The part of `document` that describes our deployment (not a copy)."""
        return _deployment(self.document)

    @property
    def arguments(self) -> dict[str, Any]:
        """The settings that the file and the command line give (not a copy)."""
        arguments: dict[str, Any] = self.document["applications"][0]["args"]
        return arguments

    def with_live(self, user_config: dict[str, Any], live: LiveConfig) -> ConfigFile:
        """Return this config with another `user_config`, the only part that may change while it runs."""
        document = copy.deepcopy(self.document)
        _deployment(document)["user_config"] = user_config
        return replace(self, document=document, live=live)

    @property
    def replicas(self) -> int | None:
        """Number of replicas that the command line or the file asks for.

        None if neither does, or if the file leaves it to Serve's autoscaling (`auto`).
        """
        number = self.deployment.get("num_replicas")
        return number if isinstance(number, int) else None


def load(path: Path, overrides: Overrides) -> ConfigFile:
    """Read the file and apply the command line's values. Raises ConfigFileError."""
    return read(_content(path), path, overrides)


def load_experiment(path: Path) -> ExperimentConfig:
    """Read a file that holds one experiment, or `experiments` with one. Raises ConfigFileError."""
    entry = _values(_content(path), path)
    field = ""
    if isinstance(entry, Mapping) and set(entry) == {"experiments"}:
        listed = entry["experiments"]
        if not isinstance(listed, list) or len(listed) != 1:
            raise ConfigFileError(f"{path}: experiments must hold exactly one experiment")
        entry = listed[0]
        field = "experiments[0]"
    if not isinstance(entry, Mapping):
        raise ConfigFileError(f"{path}: not an experiment (a mapping with `name`, `salt` and `arms`)")
    try:
        return ExperimentConfig.model_validate(entry)
    except ValidationError as error:
        raise ConfigFileError(f"{path}: {first_problem(error, field)}") from None


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise ConfigFileError(f"{path}: {error.strerror or error}") from None


def read(content: bytes, path: Path, overrides: Overrides) -> ConfigFile:
    """Check the content of the file at this path and apply the command line's values.

    Raises ConfigFileError if it is no YAML, has not the shape of a Serve config, or holds a wrong value.
    """
    parsed = _parse(content, path)
    has_live = _deployment(parsed).get("user_config") is not None
    document = _with_overrides(parsed, overrides, path)
    arguments = document["applications"][0]["args"]
    settings, faults = _settings(arguments, overrides, path)
    live, faults_of_live = _live(_deployment(document)["user_config"])
    faults += [f"{path}: {fault}" for fault in faults_of_live]
    if faults or settings is None or live is None:
        raise ConfigFileError(*faults)
    if "api_keys" in arguments:
        arguments["api_keys"] = [key.entry for key in settings.api_keys]
    return ConfigFile(document, live, settings, has_live)


def _settings(
    arguments: dict[str, Any], overrides: Overrides, path: Path
) -> tuple[Settings | None, list[str]]:
    """Return the settings, or None, and a line about each of their faults."""
    try:
        settings = Settings.model_validate(arguments)
    except ValidationError as error:
        return None, [_with_place(line, arguments, overrides, path) for line in problems(error)]
    for name in ("database_url", "score_cache"):
        if name in arguments and urlsplit(getattr(settings, name) or "").password is not None:
            fault = (
                f"{path}: args.{name}: Ray Serve would write the password into its log; write the URL into "
                f"{variable_of(name)} instead"
            )
            return None, [fault]
    return settings, []


def _with_place(line: str, arguments: Mapping[str, Any], overrides: Overrides, path: Path) -> str:
    """Return a line about a setting with the place where its value was given."""
    # What pydantic or one of our validators says begins with the field.
    name, _, problem = line.partition(": ")
    if getattr(overrides, _setting_of(name), None) is not None:
        return f"--{name}: {problem}"
    return f"{place_of_setting(name, arguments, path)}: {problem}"


def place_of_setting(name: str, arguments: Mapping[str, Any], path: Path) -> str:
    """Return where the value of a setting, or of a part of it such as `cors_origins[0]`, was given: in the
    `args` of the file at the path, or in a variable."""
    field = _setting_of(name)
    if field and field not in arguments:
        return variable_of(field) + name.removeprefix(field)
    return f"{path}: args.{name}"


def _setting_of(name: str) -> str:
    """Return the setting that a name such as `cors_origins[0]` is of; "" if there is none."""
    field = re.split(r"[.[]", name)[0]
    return field if field in Settings.model_fields or field in REMOVED else ""


def _live(user_config: Mapping[str, Any]) -> tuple[LiveConfig | None, list[str]]:
    """Return the live config, or None, and a line about each of its faults."""
    context: dict[str, list[str]] = {}
    try:
        live = LiveConfig.model_validate(user_config, context=context)
    except ValidationError as error:
        return None, problems(error, "user_config")
    return live, [f"user_config: {fault}" for fault in context[FAULTS]]


def _values(content: bytes, path: Path) -> Any:
    """Return the YAML's values, all of which JSON has. Raises ConfigFileError."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        raise ConfigFileError(f"{path}: not UTF-8 text") from None
    try:
        document = yaml.load(text, _Loader)
        orjson.dumps(document, option=orjson.OPT_PASSTHROUGH_DATETIME)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f", line {mark.line + 1}"
        problem = f"{getattr(error, 'context', None) or ''} {getattr(error, 'problem', error)}"
        if "'@'" in problem:  # as masks begin
            problem += "; put the value in quotes"
        raise ConfigFileError(f"{path}{where}: {' '.join(problem.split())}") from None
    except (RecursionError, ValueError, LookupError, TypeError) as error:
        raise ConfigFileError(
            f"{path}: nested too deeply, or a value that JSON does not have (put text in quotes): {error}"
        ) from None
    return document


def _parse(content: bytes, path: Path) -> dict[str, Any]:
    document = _values(content, path)
    if not isinstance(document, Mapping):
        raise ConfigFileError(f"{path}: not a Ray Serve config (a mapping with `applications`)")
    applications = document.get("applications")
    if not isinstance(applications, list) or [type(entry) for entry in applications] != [dict]:
        raise ConfigFileError(f"{path}: applications must hold exactly one application")
    deployments = applications[0].get("deployments")
    listed = deployments if isinstance(deployments, list) else []
    if [entry.get("name") if isinstance(entry, Mapping) else None for entry in listed] != [DEPLOYMENT]:
        raise ConfigFileError(f"{path}: applications[0].deployments must hold {DEPLOYMENT}, and it alone")
    return dict(document)


class _Loader(yaml.SafeLoader):
    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Take "=" and "<<" as text, as YAML 1.2 does."""
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith((":value", ":merge")):
            return node.value
        return super().construct_object(node, deep)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse a key that stands twice."""
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            name = (key.tag, str(key.value))
            if name in keys:
                problem = f"the key {key.value!r} stands twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            keys.add(name)
        return node


# YAML 1.2's numbers without a point or a sign in the exponent. Helm writes 1e-05, which is text to YAML 1.1.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\.\d+|\d+(?:\.\d*)?)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _with_overrides(document: Mapping[str, Any], overrides: Overrides, path: Path) -> dict[str, Any]:
    """Return the document with its defaults and with the values of the command line."""
    merged = copy.deepcopy(dict(document))
    http = _mapping(merged, "http_options", path)
    http.setdefault("host", "127.0.0.1")
    http.setdefault("port", 8000)
    application = merged["applications"][0]
    application.setdefault("name", "headroom")
    if application.setdefault("route_prefix", "/") != "/":
        raise ConfigFileError(
            f"{path}: applications[0].route_prefix: should be /, because the service answers at the root "
            "alone; let a proxy before it take the prefix off"
        )
    arguments = _mapping(application, "args", path)
    deployment = _deployment(merged)
    _mapping(deployment, "user_config", path)
    options = deployment
    for name in ("ray_actor_options", "runtime_env", "env_vars"):  # each lies in the one before
        if name not in options:
            break
        options = _mapping(options, name, path)
    _override(http, overrides, "host", "port")
    _override(arguments, overrides, "model", "device", "dtype")
    if overrides.label_order is not None:
        arguments["label_order"] = list(overrides.label_order)  # JSON has no tuples
    if overrides.replicas is not None:
        deployment.pop("autoscaling_config", None)  # Serve takes one of the two
        deployment["num_replicas"] = overrides.replicas
    _check_address(http, overrides, path)
    return merged


def _mapping(parent: dict[str, Any], name: str, path: Path) -> dict[str, Any]:
    """Return the mapping of this name; put an empty one there if it is missing or has no value."""
    if parent.get(name) is None:
        parent[name] = {}
    mapping = parent[name]
    if not isinstance(mapping, dict):
        raise ConfigFileError(
            f"{path}: {name} must be a mapping (name: value), not a {type(mapping).__name__}"
        )
    return mapping


def _override(values: dict[str, Any], overrides: Overrides, *names: str) -> None:
    """Replace the values of these names that the command line has."""
    for name in names:
        value = getattr(overrides, name)
        if value is not None:
            values[name] = value


def _check_address(http: Mapping[str, Any], overrides: Overrides, path: Path) -> None:
    if overrides.host == "":
        raise ConfigFileError("--host must be an address such as 127.0.0.1")
    if not isinstance(http["host"], str) or not http["host"]:
        raise ConfigFileError(f"{path}: http_options.host must be an address in quotes, such as 127.0.0.1")
    if type(http["port"]) is not int or not 1 <= http["port"] <= 65_535:
        raise ConfigFileError(f"{path}: http_options.port must be a whole number from 1 to 65535")


def _deployment(document: Mapping[str, Any]) -> dict[str, Any]:
    deployment: dict[str, Any] = document["applications"][0]["deployments"][0]
    return deployment


def first_problem(error: ValidationError, root: str = "") -> str:
    """Return one line about the first problem, with its place below `root` and without the value."""
    return problems(error, root)[0]


def problems(error: ValidationError, root: str = "") -> list[str]:
    """Return one line about each problem, with its place below `root` and without the value."""
    messages: dict[str, str] = {}
    found = error.errors(include_url=False)
    inner = {details["loc"][:depth] for details in found for depth in range(len(details["loc"]))}
    for details in found:
        if details["type"] == "too_short" and details["loc"] in inner:
            continue  # only its right items are counted
        place, message = _problem(details, root)
        messages.setdefault(place, message)  # each branch of a union has an error of its own
    return [f"{place}: {message}".removeprefix(": ") for place, message in messages.items()]


def _problem(details: ErrorDetails, root: str) -> tuple[str, str]:
    """Return the place and the message of one of pydantic's errors."""
    kind = details.get("ctx", {}).get("pattern", details["type"])
    message = _SENTENCES.get(kind, details["msg"].removeprefix("Value error, "))
    message = message.replace("Tuple should", "List should").replace(" after validation", "")
    location = list(details["loc"])
    if details["type"] == "string_type" and isinstance(details["input"], bool | int | float):
        message += "; put it in quotes"
    if location[-1:] == ["[key]"]:
        location.pop()
        message = f"as a name: {message}"
    if location[1:] and location[-1] in ("str", "int", "dict[str,any]"):  # a branch of a union
        location.pop()
    return place_of([root, *location] if root else location), message
