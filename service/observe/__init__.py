"""Metrics of all requests, and the access log and traces, if the operator asks for them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from headroom.models.errors import how_to_install, one_line

if TYPE_CHECKING:
    from headroom.service.observe.traces import Traces

COLLECTORS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's variables for the address of a collector."""


def open_traces(instance: str, notify_operator: Callable[[str], None]) -> Traces | None:
    """Return this process's traces; None, without an import, if the environment names no collector.

    None, too, if the environment switches traces off (https://opentelemetry.io/docs/specs/otel/configuration/
    sdk-environment-variables), or if they cannot be recorded: the operator is told why, and requests are
    served without them.
    """
    variable = next((name for name in COLLECTORS if os.environ.get(name)), None)
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    if variable is None or is_disabled or exporter == "none":
        return None
    if exporter != "otlp":
        notify_operator("there are no traces: OTEL_TRACES_EXPORTER: should be otlp, or none")
        return None
    try:
        from headroom.service.observe.traces import Traces

        return Traces(instance, notify_operator)
    except ImportError:
        notify_operator(f"{variable} is set, but traces need more packages: {how_to_install('otel')}")
    except ValueError as error:
        notify_operator(f"there are no traces: {one_line(error)}")
    return None
