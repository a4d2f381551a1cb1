"""Writes docs/settings.md from the fields of the settings: `python -m service.config.reference`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.config.cascades import StageConfig
from service.config.settings import LiveConfig, Settings, variable_of
from service.config.variants import DegradeConfig, VariantConfig
from service.experiments.definition.config import ArmConfig, ExperimentConfig, Guardrails, HoldoutConfig
from service.experiments.definition.metric import Metric

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"

_HEAD = """\
# Settings

`.venv/bin/python -m service.config.reference` writes this page from the code. Do not edit it by hand.

## At the start

Each setting is a field of `args` in the config file (`deploy/serve.yaml`, or another with `--config`) and an
environment variable. A flag of `headroom serve` overrides the file, and the file overrides the environment. A
change applies at the next start.
"""

_LIVE = """
## Live

These are the fields of `user_config` in the config file. While `headroom serve` runs, a change applies when
the file is saved.
Put dates and masks in quotes: YAML reads `2026-11-30` as a date and `2.3` as a number.
"""

_EXAMPLE = """
This sets one key for users, who may send 2,000 pairs a second and 10,000 at once, and one for an admin, who
may call 50 times a second (on each node):

```console
$ export HEADROOM_API_KEYS='k7Qm2vXw9;pairs=2000;burst=10000,Tz4Rb8Yc1;role=admin;rate=50'
$ curl -H 'Authorization: Bearer k7Qm2vXw9' http://127.0.0.1:8000/v1/models
```

In the config file, you may write a key's digest (`printf %s KEY | sha256sum`) instead of the key, so that the
file holds no secret:

```yaml
args:
  api_keys:
    - sha256:1f6c47dff1589718305f9d1e061a6920fc34e6f84393e8cdb3cab33cb1a15eeb
    - Tz4Rb8Yc1;role=admin;rate=50
```
"""

_LIMITS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
_SIZES = {"minLength": "characters", "minItems": "entries", "minProperties": "entries"}


def page() -> str:
    """Return the page's text."""
    lines = [_HEAD, "| setting | variable | value | default | meaning |", "|---|---|---|---|---|"]
    schema = Settings.model_json_schema()["properties"]
    for name, field in schema.items():
        variable = f"`{variable_of(name)}`"
        lines.append(f"| `{name}` | {variable} | {_value(field)} | {_default(field)} | {_meaning(field)} |")
    lines += [_EXAMPLE.rstrip(), _LIVE.rstrip()]
    live: list[tuple[str, type[BaseModel]]] = [
        ("user_config", LiveConfig),
        ("user_config.variants", VariantConfig),
        ("user_config.variants.cascade", StageConfig),
        ("user_config.degrade", DegradeConfig),
        ("user_config.experiments", ExperimentConfig),
        ("user_config.experiments.arms", ArmConfig),
        ("user_config.experiments.guardrails", Guardrails),
        ("user_config.experiments.metrics", Metric),
        ("user_config.holdout", HoldoutConfig),
    ]
    for place, model in live:
        lines += _section(place, model)
    return "\n".join(lines) + "\n"


def _section(place: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"\n### `{place}`\n"
    about = [] if model is LiveConfig else inspect.cleandoc(model.__doc__ or "").split("\n\n")
    yield from (" ".join(part.split()) + "\n" for part in about)
    schema = model.model_json_schema()
    has_meanings = any("description" in field for field in schema["properties"].values())
    yield f"| field | value | default |{' meaning |' if has_meanings else ''}"
    yield f"|---|---|---|{'---|' if has_meanings else ''}"
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field)
        meaning = f" {_meaning(field)} |" if has_meanings else ""
        yield f"| `{name}` | {_value(field)} | {default} |{meaning}"


def _value(field: Mapping[str, Any]) -> str:
    """Return the type and range of a field from its JSON schema."""
    if "anyOf" in field:
        return " or ".join(_value(option) for option in field["anyOf"])
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "$ref" in field:
        return "mapping"
    kind = {"boolean": "`true` or `false`", "integer": "whole number", "object": "mapping", "array": "list"}
    words = [kind.get(field.get("type", ""), field.get("type", "any"))]
    words += [text.format(f"{field[key]:,}") for key, text in _LIMITS.items() if key in field]
    for key, unit in _SIZES.items():
        maximum = field.get(key.replace("min", "max"))
        if maximum is not None:
            minimum = field.get(key, 0)
            words.append(f"{maximum} {unit}" if minimum == maximum else f"{minimum} to {maximum} {unit}")
        elif key in field:
            words.append(f"≥ {field[key]} {unit}")
    if "pattern" in field:
        words.append(f"`{field['pattern']}`".replace("|", "\\|"))
    return ", ".join(words)


def _default(field: Mapping[str, Any]) -> str:
    default = field.get("default")
    if default in (None, [], {}, ""):
        return "unset"
    return f"`{default if isinstance(default, str) else json.dumps(_without_off(default))}`"


def _without_off(value: Any) -> Any:
    """Return a default without the parts that are switched off."""
    if isinstance(value, dict):
        return {name: _without_off(inner) for name, inner in value.items() if inner not in (None, False)}
    return [_without_off(inner) for inner in value] if isinstance(value, list) else value


def _meaning(field: Mapping[str, Any]) -> str:
    return str(field.get("description", "")).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
