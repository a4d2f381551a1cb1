"""Finds problems that would make a replica fail, quickly and before Ray starts.

Serve restarts a failing replica again and again, so the same error would otherwise come after minutes.
"""

from __future__ import annotations

import difflib
import errno
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headroom.models.errors import ModelError
from headroom.service.config.file import ConfigFile, ConfigFileError, place_of_setting
from headroom.service.config.key_file import read_api_keys
from headroom.service.config.settings import ENVIRONMENT_PREFIX, InvalidConfig, Settings, variable_of
from headroom.service.loopback import is_loopback

if TYPE_CHECKING:
    from headroom.service.config.check import Findings

OTHER_VARIABLES = re.compile(
    rf"{ENVIRONMENT_PREFIX}(?:API_KEY|URL|ACCESS_LOG_PIPE|LOCATED|NOTICES|(?:PORT|SERVICE)(?:_\w+)?)"
)
"""Variables that are no settings: what other commands read, what our processes tell each other, and what
Kubernetes sets for a service that is called headroom."""


def check(path: Path, config: ConfigFile, say: Callable[[str], None]) -> None:
    """Check device, key file, database, limits and masks against this machine and the model.

    Downloads the checkpoints that the config names and the cache lacks.

    say: shows one line to the operator, for example that a variant is left out.
    Raises ConfigFileError, or UnsupportedCheckpoint for a model that cannot be found.
    """
    try:
        _check_device(config)
    except ModelError as error:
        raise ConfigFileError(str(error)) from None
    _check_keys(path, config)
    _check_database(path, config)
    from headroom.service.config.check import check_models  # imports numpy

    try:
        if config.live.degrade is not None:
            from headroom.models.device import resolve_device

            device = resolve_device(config.settings.device).type
            config.live.check_limits(config.settings.queue_tokens(device))
        found = check_models(config)
    except InvalidConfig as error:
        raise ConfigFileError(f"{path}: user_config.{error}") from None
    if found.faults:
        raise ConfigFileError(f"{path}: user_config.{found.faults[0]}")
    if found.left_out:
        say(f"variants left out: {and_why(found.left_out)}")


def check_anywhere(path: Path, config: ConfigFile, warn: Callable[[str], None]) -> Findings:
    """Check what any machine can: the device is not asked, and the database if it can be reached.

    Downloads the files that describe the checkpoints, and no weights. Imports ray at the end.

    warn: shows the operator what could not be checked. Returns the faults as whole lines.
    """
    from headroom.service.config.check import Findings, check_models, wrong_digests

    faults: list[str] = []
    left_out: dict[str, str] = {}
    try:
        found = check_models(config, weights=False)
        faults += [f"{path}: user_config.{fault}" for fault in found.faults]
        left_out = found.left_out
    except ModelError as error:
        faults.append(f"{path}: args.model: {error}")
    faults += [f"{path}: user_config.{fault}" for fault in wrong_digests(config)]
    for check_part in (_check_limits, _check_keys, _check_database, check_schema):
        try:
            check_part(path, config)
        except ConfigFileError as error:
            faults += error.faults
    if not faults:
        faults += [f"{path}: user_config.{fault}" for fault in _changed_experiments(config, warn)]
    return Findings(faults, left_out)


def and_why(left_out: Mapping[str, str]) -> str:
    """Return the variants that are left out, each with the reason."""
    return ", ".join(f"{name} ({reason})" for name, reason in left_out.items())


def check_port(host: str, port: int) -> None:
    """Raise OSError if the service could not listen on this address."""
    no_such_host = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        is_host = isinstance(error, socket.gaierror) or error.errno in no_such_host
        other = "--host" if is_host else "--port"
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}; choose another {other}") from None


def check_schema(path: Path, config: ConfigFile) -> None:
    """Check the parts of the config that belong to Serve. Raises ConfigFileError.

    Imports ray, so call `environment.prepare` first.
    """
    from headroom.service.ray import serve_schema

    faults = serve_schema.faults(config)
    if faults:
        raise ConfigFileError(*(f"{path}: {fault}" for fault in faults))


def is_open_to_others(config: ConfigFile) -> bool:
    """Return whether anybody who can reach this machine may use the service."""
    return not config.settings.needs_keys and not _is_of_this_machine_alone(config.host)


def unknown_variables(config: ConfigFile) -> list[str]:
    """Return a warning for each variable HEADROOM_… that nobody reads.

    With a misspelled HEADROOM_API_KEYS the service would be open without a word.
    """
    settings = {variable_of(name) for name in Settings.model_fields}
    warnings = []
    for name in sorted(os.environ.keys() - settings):
        is_known = OTHER_VARIABLES.fullmatch(name) and (
            config.settings.needs_keys or not name.endswith("API_KEY")
        )
        if name.startswith(ENVIRONMENT_PREFIX) and not is_known:
            close = difflib.get_close_matches(name, settings, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            warnings.append(f"{name} is no setting{hint}")
    return warnings


def _is_of_this_machine_alone(host: str) -> bool:
    """Return whether nobody else can reach the addresses of a name that the service listens on."""
    addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    return all(map(is_loopback, addresses))


def _check_keys(_: Path, config: ConfigFile) -> None:
    """Raise ConfigFileError if the file of API keys is not there, or holds a wrong entry."""
    if config.settings.api_keys_file is not None:
        try:
            read_api_keys(config.settings.api_keys_file)
        except InvalidConfig as error:
            raise ConfigFileError(str(error)) from None


def _check_database(path: Path, config: ConfigFile) -> None:
    """Raise ConfigFileError if the URL of the experiments' database is wrong, or its driver is missing."""
    if config.settings.database_url is None:
        return
    from headroom.service.experiments.database import connect, parse_url

    try:
        connect(parse_url(config.settings.database_url)).dispose()
    except ValueError as error:
        place = place_of_setting("database_url", config.arguments, path)
        raise ConfigFileError(f"{place}: {str(error).removeprefix('database_url: ')}") from None


def _changed_experiments(config: ConfigFile, warn: Callable[[str], None]) -> list[str]:
    """Return a line about each experiment that began otherwise; none if the database cannot be asked."""
    from headroom.service.config.comparison import changed_since_start
    from headroom.service.errors import DatabaseUnavailable

    try:
        return changed_since_start(config.settings.database_url, config.live.experiments)
    except DatabaseUnavailable as error:
        warn(f"the experiments were not compared with those that run: {error}")
        return []


def _check_limits(path: Path, config: ConfigFile) -> None:
    """Raise ConfigFileError if the brownout begins where each device that it may run on refuses requests."""
    device = "cpu" if config.settings.device == "cpu" else "cuda"
    try:
        config.live.check_limits(config.settings.queue_tokens(device))
    except InvalidConfig as error:
        raise ConfigFileError(f"{path}: user_config.{error}") from None


def _check_device(config: ConfigFile) -> None:
    """Raise ModelError if the device is not there, or cannot do what is asked of it."""
    settings = config.settings
    needs_check = settings.deterministic or settings.dtype == "float16"  # any device can do everything else
    if settings.device != "cuda" and not (settings.device == "auto" and needs_check):
        return  # importing torch takes seconds
    from headroom.models.device import resolve_device, resolve_dtype

    device = resolve_device(settings.device)
    resolve_dtype(settings.dtype, device, deterministic=settings.deterministic)
