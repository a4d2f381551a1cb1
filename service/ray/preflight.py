"""Finds problems that would make a replica fail, quickly and before Ray starts.

Serve restarts a failing replica again and again, so the same error would otherwise come after minutes.
"""

import difflib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from headroom.models.errors import ModelError
from headroom.service.config.file import ConfigFile, ConfigFileError, first_problem
from headroom.service.config.settings import ENVIRONMENT_PREFIX, InvalidConfig, Settings, variable_of
from headroom.service.ray import autoscaling

OTHER_VARIABLES = re.compile(
    rf"{ENVIRONMENT_PREFIX}(?:API_KEY|URL|ACCESS_LOG_PIPE|LOCATED|NOTICES|(?:PORT|SERVICE)(?:_\w+)?)"
)
"""Variables that are no settings: what other commands read, what our processes tell each other, and what
Kubernetes sets for a service that is called headroom."""


def check(path: Path, config: ConfigFile, say: Callable[[str], None]) -> None:
    """Check device, database, limits and masks against this machine and the model.

    Downloads the checkpoints that the config names and the cache lacks.

    say: shows one line to the operator, for example that a variant is left out.
    Raises ConfigFileError, or UnsupportedCheckpoint for a model that cannot be found.
    """
    try:
        _check_device(config)
    except ModelError as error:
        raise ConfigFileError(str(error)) from None
    if config.settings.database_url is not None:
        from headroom.service.experiments.database import connect, parse_url

        try:
            connect(parse_url(config.settings.database_url)).dispose()
        except ValueError as error:
            raise ConfigFileError(str(error)) from None
    try:
        if config.live.degrade is not None:
            from headroom.models.device import resolve_device

            device = resolve_device(config.settings.device).type
            config.live.check_limits(config.settings.queue_tokens(device))
        _check_masks(config, say)
        check_checkpoints(config)
    except InvalidConfig as error:
        raise ConfigFileError(f"{path}: user_config.{error}") from None


def check_checkpoints(config: ConfigFile) -> None:
    """Check the variants' own checkpoints; download what the cache lacks. Raises InvalidConfig."""
    from headroom.models.checkpoint.config import read_config
    from headroom.models.checkpoint.hub import locate
    from headroom.service.config.masks import lacks_network

    for variant in config.live.variants:
        if variant.checkpoint is not None:
            try:
                model = locate(config.settings.model) if variant.checkpoint.startswith("@") else None
                if not lacks_network(variant, model):
                    read_config(locate(variant.checkpoint, model))
            except ModelError as error:
                raise InvalidConfig(f"variants.{variant.name}.checkpoint: {error}") from None


def check_port(host: str, port: int) -> None:
    """Raise OSError if the service could not listen on this address."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            is_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            other = "--host" if is_host else "--port"
            raise OSError(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another {other}"
            ) from None


def check_schema(path: Path, config: ConfigFile) -> None:
    """Check the parts of the config that belong to Serve. Raises ConfigFileError.

    Imports ray, so call `environment.prepare` first.
    """
    from ray.serve.schema import ServeDeploySchema

    place = ""
    try:
        ServeDeploySchema.model_validate(config.document)
        place = "applications[0].deployments[0].autoscaling_config"
        autoscaling.bounds(config.deployment)
    except ValidationError as error:
        raise ConfigFileError(f"{path}: {first_problem(error, place)}") from None


def is_open_to_others(config: ConfigFile) -> bool:
    """Return whether anybody who can reach this machine may use the service."""
    return not config.settings.api_keys and not _is_loopback(config.host)


def unknown_variables(config: ConfigFile) -> list[str]:
    """Return a warning for each variable HEADROOM_… that nobody reads.

    With a misspelled HEADROOM_API_KEYS the service would be open without a word.
    """
    settings = {variable_of(name) for name in Settings.model_fields}
    warnings = []
    for name in sorted(os.environ.keys() - settings):
        is_known = OTHER_VARIABLES.fullmatch(name) and (
            config.settings.api_keys or not name.endswith("API_KEY")
        )
        if name.startswith(ENVIRONMENT_PREFIX) and not is_known:
            close = difflib.get_close_matches(name, settings, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            warnings.append(f"{name} is no setting{hint}")
    return warnings


def _is_loopback(host: str) -> bool:
    addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def _check_device(config: ConfigFile) -> None:
    """Raise ModelError if the device is not there, or cannot do what is asked of it."""
    settings = config.settings
    needs_check = settings.deterministic or settings.dtype == "float16"  # any device can do everything else
    if settings.device != "cuda" and not (settings.device == "auto" and needs_check):
        return  # importing torch takes seconds
    from headroom.models.device import resolve_device, resolve_dtype

    device = resolve_device(settings.device)
    resolve_dtype(settings.dtype, device, deterministic=settings.deterministic)


def _check_masks(config: ConfigFile, say: Callable[[str], None]) -> None:
    from headroom.models.checkpoint.config import read_config, read_stored_masks
    from headroom.models.checkpoint.hub import locate
    from headroom.service.config.masks import lacks_network, left_out, resolve_masks

    directory = locate(config.settings.model)
    model = read_config(directory)
    _, variant_masks = resolve_masks(config.live, model, read_stored_masks(directory, model))
    elsewhere = {
        entry.name
        for entry in config.live.variants
        if entry.checkpoint is not None and not lacks_network(entry, directory)
    }
    reasons = left_out(config.live, variant_masks.keys() | elsewhere)
    if reasons:
        variants = ", ".join(f"{name} ({reason})" for name, reason in reasons.items())
        say(f"variants left out: {variants}")
