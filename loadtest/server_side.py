"""Reads /metrics before and after a run, and the list of served models."""

from __future__ import annotations

import http.client
import json
import os
import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.plan import Plan

Sample = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Sample, float]

TIMEOUT_S = 5.0
MOST_COUNTERS = 300
PREFIX = "headroom_"


def fetch(plan: Plan, path: str) -> bytes | None:
    """Return the body of a GET, or None if the server does not answer with 200."""
    request = urllib.request.Request(plan.url.rstrip("/") + path)
    key = os.environ.get(plan.traffic[0].api_key_env)
    if key:
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(16 * 2**20)
            return body
    except (OSError, http.client.HTTPException):
        return None


def is_ready(url: str) -> bool:
    """Return whether /health/ready answers yes."""
    try:
        with urllib.request.urlopen(url.rstrip("/") + "/health/ready", timeout=TIMEOUT_S) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def metrics(plan: Plan) -> Samples | None:
    """Return the counters of the Prometheus text at /metrics; None if there is none."""
    body = fetch(plan, "/metrics")
    if body is None:
        return None
    samples: Samples = {}
    try:
        for family in text_string_to_metric_families(body.decode("utf-8", "replace")):
            for sample in family.samples:
                if sample.name.startswith(PREFIX) and sample.name.endswith(("_total", "_sum", "_count")):
                    samples[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    except ValueError:
        return None
    return samples or None


def difference(before: Samples | None, after: Samples | None) -> dict[str, Any] | None:
    """Return how much the counters grew during a run, warm-up included; None if one end is missing."""
    if before is None or after is None:
        return None
    grown = {sample: after[sample] - before.get(sample, 0.0) for sample in after}
    stages = {}
    for (name, labels), count in grown.items():
        if name == f"{PREFIX}stage_seconds_count" and count > 0:
            total = grown.get((f"{PREFIX}stage_seconds_sum", labels), 0.0)
            stages[dict(labels).get("stage", "")] = total / count * 1000
    counters = {
        written(name, dict(labels)): round(value, 6)
        for (name, labels), value in sorted(grown.items())
        if value and name.endswith("_total")
    }
    return {
        "stage_mean_ms": stages,
        "counters": dict(list(counters.items())[:MOST_COUNTERS]),
        "restarted": any(value < 0 for value in grown.values()),
    }


def models(plan: Plan) -> Any:
    """Return the answer of /v1/models, or None if there is none."""
    body = fetch(plan, "/v1/models")
    try:
        return None if body is None else json.loads(body)
    except ValueError:
        return None


def written(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
