"""The reference of the HTTP interface, from the OpenAPI document that the service itself gives out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from headroom.service.api.app import create_app
from headroom.service.config.settings import Settings
from headroom.service.observe.metrics import Metrics

Schema = Mapping[str, Any]

_SHAPES = """\
# HTTP shapes

The objects in requests and answers of the [HTTP interface](http.md).
"""


def openapi() -> dict[str, Any]:
    """Return the document of a service with default settings and an API key, so that 401 is in it."""
    return create_app(Settings(api_keys="key"), Metrics()).openapi()


def as_json(document: Schema) -> str:
    """Return the document as a file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def operations_page(document: Schema) -> str:
    """Return the page of what can be called: request fields, an example, the answer and its statuses."""
    lines = ["# HTTP interface\n", document["info"]["description"], ""]
    lines.append(
        "A running service shows this at `/docs`, where requests can be tried, and at `/openapi.json` "
        "([this document with default settings](openapi.json)).\n"
    )
    operations = [
        (operation["tags"][0], f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    for tag, members in groupby(operations, key=lambda entry: entry[0]):
        lines.append(f"## {tag[0].upper()}{tag[1:]}\n")
        for _, name, operation in members:
            lines += _operation(name, operation, document["components"]["schemas"])
    return "\n".join(lines) + "\n"


def shapes_page(document: Schema) -> str:
    """Return the page of all objects, one table each."""
    lines = [_SHAPES]
    for name, schema in document["components"]["schemas"].items():
        lines += [f"## {name}\n", f"{_one_line(schema.get('description', ''))}\n"]
        lines += [*_fields(schema, here=True), ""]
    return "\n".join(lines) + "\n"


def _operation(name: str, operation: Schema, schemas: Schema) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{operation.get('description', '')}\n"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "| parameter | in | value | meaning |\n|---|---|---|---|"
        for parameter in parameters:
            value, meaning = _value(parameter["schema"]), _one_line(parameter.get("description", ""))
            yield f"| `{parameter['name']}` | {parameter['in']} | {value} | {meaning} |"
        yield ""
    if body := operation.get("requestBody"):
        yield from _body(body["content"], schemas)
    yield from _answers(operation["responses"])


def _body(content: Schema, schemas: Schema) -> Iterator[str]:
    media = content.get("application/json") or next(iter(content.values()))
    schema = media.get("schema", {})
    names = [_named(option) for option in schema.get("anyOf", [schema]) if "$ref" in option]
    if len(names) == 1:
        yield from _fields(schemas[names[0]], here=False)
    else:
        yield f"The body is one of: {', '.join(map(_link, names))}."
    yield ""
    for title, example in media.get("examples", {}).items():
        yield _code(f"Example: {title}" if len(media["examples"]) > 1 else "Example", example["value"])


def _answers(responses: Schema) -> Iterator[str]:
    good = next(response for status, response in responses.items() if status.startswith("2"))
    media = next(iter(good.get("content", {}).values()), {})
    shape = _value(media.get("schema", {})) if "schema" in media else "text"
    yield f"Answer: {shape}.\n" if media else "Answer: no body.\n"
    example = media.get("example")
    if isinstance(example, str):
        yield f"```text\n{example.rstrip()}\n```\n"
    elif example is not None:
        yield _code("Example of an answer", example)
    yield "| status | when |\n|---|---|"
    for status, response in sorted(responses.items()):
        if not status.startswith("2"):
            yield f"| {status} | {_one_line(response['description'])} |"
    yield ""


def _code(title: str, value: Any) -> str:
    """Return an example that folds: answers are long."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return f"<details markdown><summary>{title}</summary>\n\n```json\n{text}\n```\n\n</details>\n"


def _fields(schema: Schema, here: bool) -> Iterator[str]:
    """Yield the table of an object's fields. `here`: links to other objects stay on this page."""
    fields = schema.get("properties", {})
    if not fields:
        yield "Free fields." if schema.get("type") == "object" else _value(schema, here)
        return
    yield "| field | value | default | meaning |\n|---|---|---|---|"
    for name, field in fields.items():
        default = "required" if name in schema.get("required", ()) else ""
        if field.get("default") is not None:
            default = f"`{json.dumps(field['default'], ensure_ascii=False)}`"
        yield f"| `{name}` | {_value(field, here)} | {default} | {_one_line(field.get('description', ''))} |"


_LIMITS = {"minimum": "≥ {}", "exclusiveMinimum": "> {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}


def _value(schema: Schema, here: bool = False) -> str:
    """Return the type and the limits of a value in words."""
    if "$ref" in schema:
        return _link(_named(schema), here)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(dict.fromkeys(_value(option, here) for option in schema[key]))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "any")
    if kind == "array":
        if "prefixItems" in schema:
            return "[" + ", ".join(_value(item, here) for item in schema["prefixItems"]) + "]"
        return f"list{_size(schema, 'Items')} of {_value(schema.get('items', {}), here)}"
    if kind == "object" and "title" in schema and schema.get("properties"):
        return "`{" + ", ".join(f'"{name}": …' for name in schema["properties"]) + "}`"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"object of {_value(schema['additionalProperties'], here)}"
    limits = [text.format(f"{schema[key]:,g}") for key, text in _LIMITS.items() if key in schema]
    return ", ".join([kind + _size(schema, "Length"), *limits])


def _size(schema: Schema, of: str) -> str:
    least, most = schema.get(f"min{of}", 0), schema.get(f"max{of}")
    if most is None:
        size = f"at least {least:,}" if least else ""
    else:
        size = f"{most:,}" if least == most else f"{least:,} to {most:,}" if least else f"up to {most:,}"
    unit = " characters" if of == "Length" else ""
    return f" ({size}{unit})" if size else ""


def _named(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _link(name: str, here: bool = False) -> str:
    return f"[{name}]({'' if here else 'http-shapes.md'}#{name.lower()})"


def _one_line(text: str) -> str:
    """Return a text as the cell of a table; in code, the site's Markdown takes a bar as it is."""
    return re.sub(r"(`[^`]*`)|\|", lambda found: found[1] or "\\|", " ".join(text.split()))
