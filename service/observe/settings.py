"""The settings of the access log and of traces."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

from models.errors import how_to_install

_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"
_EXPORTER = "opentelemetry.exporter.otlp.proto.http"


class TelemetrySettings(BaseSettings):
    """Settings of what follows requests. Each is off by default, and costs nothing then."""

    access_log: Literal["off", "console", "json"] = Field(
        "off",
        description="Write one line per request to standard output, for people (`console`) or programs "
        "(`json`). It holds neither texts nor headers nor API keys.",
    )
    tracing: bool = Field(
        False,
        description="Send traces by OTLP over HTTP (extra `[otel]`). OpenTelemetry's own variables say the "
        "rest: `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_TRACES_SAMPLER`, `OTEL_SERVICE_NAME` …",
    )
    log_queries: bool = Field(
        False,
        description="Also write each request's query, cut to 200 characters, into its line of the access log "
        "and its trace. Titles are never written.",
    )

    @field_validator("access_log", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # how YAML reads an off without quotes

    @field_validator("tracing")
    @classmethod
    def _can_export(cls, value: bool) -> bool:
        if value:
            check_exporter()
        return value


def check_exporter() -> None:
    """Raise ValueError if traces cannot be sent: the extra is missing, or another protocol is asked for."""
    try:
        is_installed = importlib.util.find_spec(_EXPORTER) is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise ValueError(f"needs OpenTelemetry's exporter: {how_to_install('otel')}")
    for variable in _PROTOCOL:
        if (protocol := os.environ.get(variable)) not in (None, "", "http/protobuf"):
            raise ValueError(f"{variable} is {protocol}; traces can only be sent as http/protobuf")
