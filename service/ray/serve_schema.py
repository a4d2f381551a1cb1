"""Checks the parts of a config file that belong to Ray Serve.

Serve ignores what it does not know, so that `num_cpuz: 4` would run one CPU without a word. Importing this
module imports ray: call `environment.prepare` first.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ray.runtime_env import RuntimeEnv
from ray.serve.schema import ServeDeploySchema

from headroom.service.config.file import ConfigFile, problems
from headroom.service.ray import autoscaling
from headroom.service.sentences import IN_YAML, place_of

DEPLOYMENT = "applications[0].deployments[0]"

POLICIES = f"{autoscaling.__name__}:"
"""What the name of a policy of ours begins with."""


def faults(config: ConfigFile) -> list[str]:
    """Return a line about each wrong value and each unknown name, which begins with its place in the file."""
    found = list(_unknown(ServeDeploySchema, config.document, ()))
    place = ""  # what the second check below is about
    try:
        ServeDeploySchema.model_validate(config.document)
        place = f"{DEPLOYMENT}.autoscaling_config"
        autoscaling.bounds(config.deployment)
    except ValidationError as error:
        found += [line for line in problems(error, place) if not line.endswith(IN_YAML["extra_forbidden"])]
    except (ImportError, AttributeError) as error:  # Serve imports what is named, such as a policy
        found.append(f"{DEPLOYMENT}: {_policy_fault(config) or error}")
    return found


def _unknown(kind: Any, value: Any, place: tuple[str | int, ...]) -> Iterator[str]:
    """Yield a line about each name in a value, and in all that it holds, that its type has no field for."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _unknown(kind, entry, (*place, index))
        return
    fields = _fields(kind, place)
    if fields is None or not isinstance(value, Mapping):
        return
    for name, entry in value.items():
        if name in fields:
            yield from _unknown(fields[name], entry, (*place, name))
        else:
            close = difflib.get_close_matches(str(name), fields, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield f"{place_of((*place, str(name)))}: {IN_YAML['extra_forbidden']}{hint}"


def _fields(kind: Any, place: tuple[str | int, ...]) -> Mapping[str, Any] | None:
    """Return the fields of a type, each with its own type; None if it takes any name."""
    if place[-1:] == ("runtime_env",):
        return dict.fromkeys(sorted(RuntimeEnv.known_fields))
    model = _model(kind)
    return None if model is None else {name: field.annotation for name, field in model.model_fields.items()}


def _model(kind: Any) -> type[BaseModel] | None:
    """Return the model that a type is, or may be; None if there is none."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    if get_origin(kind) is dict:
        return None
    return next((model for part in get_args(kind) if (model := _model(part)) is not None), None)


def _policy_fault(config: ConfigFile) -> str | None:
    """Return a sentence about an autoscaling policy of ours that there is not; None for anything else."""
    scaling = config.deployment.get("autoscaling_config") or {}
    name = str((scaling.get("policy") or {}).get("policy_function"))
    if not name.startswith(POLICIES):
        return None
    return (
        f"autoscaling_config.policy.policy_function: there is no policy {name.removeprefix(POLICIES)}; write "
        f"{POLICIES}{autoscaling.ByLoad.__name__}"
    )
