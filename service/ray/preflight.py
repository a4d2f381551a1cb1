"""Finds problems that would make a replica fail, quickly and before Ray starts.

Serve restarts a failing replica again and again, so the same error would otherwise come after minutes.
"""

from __future__ import annotations

import difflib
import errno
import ipaddress
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from models.errors import ModelError
from service.config.file import ConfigFile, ConfigFileError, first_problem
from service.config.settings import ENVIRONMENT_PREFIX, Settings, variable_of
from service.ray import autoscaling

OTHER_VARIABLES = re.compile(
    rf"{ENVIRONMENT_PREFIX}(?:API_KEY|URL|ACCESS_LOG_PIPE|HAPROXY\w*|LOCATED|NOTICES|(?:PORT|SERVICE)(?:_\w+)?)"
)
"""Variables that are no settings: what other commands read, what our processes tell each other, and what
Kubernetes sets for a service that is called headroom."""


def check(path: Path, config: ConfigFile, say: Callable[[str], None]) -> None:
    """Check device, database and masks against this machine and the model.

    Downloads the checkpoints that the config names and the cache lacks.

    say: shows one line to the operator, for example that a variant is left out.
    Raises ConfigFileError, or UnsupportedCheckpoint for a model that cannot be found.
    """
    _check_device(config)
    _check_limits(path, config)
    _check_database(config)
    _check_model(path, config, say)


def check_checkpoints(config: ConfigFile) -> None:
    """Check the variants' own checkpoints; download what the cache lacks. Raises ConfigFileError."""
    from models.checkpoint.config import read_config
    from models.checkpoint.hub import locate

    for variant in config.live.variants:
        if variant.checkpoint is not None:
            try:
                read_config(locate(variant.checkpoint))
            except ModelError as error:
                raise ConfigFileError(f"variants.{variant.name}.checkpoint: {error}") from None


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
    warnings = []
    settings = {variable_of(name) for name in Settings.model_fields}
    for name in sorted(os.environ):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in settings:
            continue
        if OTHER_VARIABLES.fullmatch(name) and (
            config.settings.api_keys or name != f"{ENVIRONMENT_PREFIX}API_KEY"
        ):
            continue
        close = difflib.get_close_matches(name, settings, 1)
        warnings.append(f"{name} is no setting" + (f"; did you mean {close[0]}?" if close else ""))
    return warnings


def _is_loopback(host: str) -> bool:
    addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    return all(ipaddress.ip_address(address).is_loopback for address in addresses)


def _check_device(config: ConfigFile) -> None:
    device = config.settings.device
    if device == "auto":
        _resolve_auto(config.settings)
    if not device.startswith("cuda"):
        return
    gpus = (config.deployment.get("ray_actor_options") or {}).get("num_gpus", 1)
    if isinstance(gpus, int | float) and int(device.partition(":")[2] or 0) >= max(1, gpus):
        raise ConfigFileError(
            f"device: a replica has {gpus:g} GPU, which it sees as cuda, so there is no {device}; "
            "choose the machine's GPU with CUDA_VISIBLE_DEVICES"
        )
    from models.device import resolve_device

    try:
        resolve_device("cuda")
    except ModelError as error:
        raise ConfigFileError(f"device: {error}") from None


def _resolve_auto(settings: Settings) -> None:
    """Refuse what the device that is here cannot do."""
    if not settings.deterministic and settings.dtype != "float16":
        return  # every device can; finding out which it is imports torch, which takes seconds
    from models.device import resolve_device, resolve_dtype

    try:
        resolve_dtype(settings.dtype, resolve_device("auto"), deterministic=settings.deterministic)
    except ModelError as error:
        field = "device" if settings.deterministic else "dtype"
        raise ConfigFileError(f"{field}: {error}") from None


def _check_limits(path: Path, config: ConfigFile) -> None:
    if config.live.degrade is None:
        return
    from models.device import resolve_device
    from service.config.settings import InvalidConfig

    try:
        device = resolve_device(config.settings.device).type
        config.live.check_limits(config.settings.queue_tokens(device))
    except InvalidConfig as error:
        raise ConfigFileError(f"{path}: user_config.{error}") from None


def _check_database(config: ConfigFile) -> None:
    if config.settings.database_url is None:
        return
    from service.experiments.storage.connection import connect, parse_url

    try:
        connect(parse_url(config.settings.database_url)).dispose()
    except ValueError as error:
        raise ConfigFileError(str(error)) from None


def _check_model(path: Path, config: ConfigFile, say: Callable[[str], None]) -> None:
    from models.checkpoint.config import read_config, read_stored_masks
    from models.checkpoint.hub import locate
    from service.config.masks import check_cascade, left_out_because, resolve_masks, resolve_variant
    from service.config.settings import InvalidConfig

    directory = locate(config.settings.model)
    model_config = read_config(directory)
    layers, heads, units = model_config.num_layers, model_config.num_heads, model_config.intermediate_size
    try:
        stored = read_stored_masks(directory, model_config)
        masks = resolve_masks(config.live, layers=layers, heads=heads, units=units, stored=stored)
        variants = config.live.variants
        present = {
            variant.name
            for variant in variants
            if variant.cascade is None
            and (
                variant.checkpoint is not None
                or resolve_variant(config.live, variant, layers=layers, heads=heads, masks=masks) is not None
            )
        }
        for variant in variants:
            if variant.cascade is not None and check_cascade(config.live, variant, present):
                continue
            if variant.name not in present:
                say(f"variant {variant.name} is left out: {left_out_because(variant)}")
    except InvalidConfig as error:
        raise ConfigFileError(f"{path}: user_config.{error}") from None
    try:
        check_checkpoints(config)
    except ConfigFileError as error:
        raise ConfigFileError(f"{path}: user_config.{error}") from None
