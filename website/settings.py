"""Writes docs/settings.md from the fields of the settings: `python -m website.settings`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headroom.service.config.settings import LiveConfig, Settings
from headroom.service.config.variants import DegradeConfig, StageConfig, VariantConfig
from headroom.service.experiments.definition import ArmConfig, ExperimentConfig, Guardrails, Metric

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
INTRODUCTION = """\
# Settings

`.venv/bin/python -m website.settings` writes this page from the code. Do not edit it by hand.

## At the start

Each setting is a field of `args` in the config file (`deploy/serve.yaml`, or another with `--config`) and an
environment variable: `max_pairs` is `HEADROOM_MAX_PAIRS`. A flag of `headroom serve` overrides the file, and
the file overrides the environment. A change applies at the next start.
"""
LIVE_INTRODUCTION = """\
## Live

These are the fields of `user_config` in the config file. While `headroom serve` runs, a change applies when
the file is saved. Put dates and masks in quotes: YAML reads `2026-11-30` as a date and `2.3` as a number.
"""
LIVE: Mapping[str, type[BaseModel]] = {
    "user_config": LiveConfig,
    "user_config.variants": VariantConfig,
    "user_config.variants.cascade": StageConfig,
    "user_config.degrade": DegradeConfig,
}
EXPERIMENTS_INTRODUCTION = """\
## A/B tests

Only [experiments](experiments.md) need these fields of `user_config`; they apply live too.
"""
EXPERIMENTS: Mapping[str, type[BaseModel]] = {
    "user_config.experiments": ExperimentConfig,
    "user_config.experiments.arms": ArmConfig,
    "user_config.experiments.guardrails": Guardrails,
    "user_config.experiments.metrics": Metric,
}
_RANGE = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
_TYPES = {"boolean": "`true` or `false`", "integer": "integer", "object": "mapping", "array": "list"}


def page() -> str:
    """Return the page's text."""
    lines = [INTRODUCTION, *_table(Settings), ""]
    for introduction, models in ((LIVE_INTRODUCTION, LIVE), (EXPERIMENTS_INTRODUCTION, EXPERIMENTS)):
        lines.append(introduction)
        for place, model in models.items():
            about = inspect.cleandoc(model.__doc__ or "")
            lines += [f"### `{place}`\n", f"{about}\n", *_table(model), ""]
    return "\n".join(lines)


def _table(model: type[BaseModel]) -> Iterator[str]:
    schema = model.model_json_schema()
    yield "| field | value | default | meaning |"
    yield "|---|---|---|---|"
    for name, field in schema["properties"].items():
        default = "required" if name in schema.get("required", ()) else _default(field.get("default"))
        meaning = field.get("description", "").replace("\n", " ").replace("|", "\\|")
        yield f"| `{name}` | {_value(field)} | {default} | {meaning} |"


def _value(field: Mapping[str, Any]) -> str:
    """Return the type and range of a field from its JSON schema."""
    if "anyOf" in field:
        return " or ".join(_value(option) for option in field["anyOf"] if option != {"type": "null"})
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    kind = field.get("type", "object" if "$ref" in field else "any")
    limits = [text.format(f"{field[key]:,}") for key, text in _RANGE.items() if key in field]
    return ", ".join([_TYPES.get(kind, kind), *limits])


def _default(value: Any) -> str:
    if value in (None, [], {}, ""):
        return "unset"
    if isinstance(value, str):
        return f"`{value}`"
    return "`full`" if value == [VariantConfig(name="full").model_dump()] else f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
