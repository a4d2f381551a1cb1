"""Reads /metrics before and after a run, and the list of served models."""

from __future__ import annotations

import http.client
import json
import os
import urllib.request
from collections.abc import Mapping
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from loadtest.plan import API_KEY_VARIABLE

Sample = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Sample, float]

TIMEOUT_S = 5.0
PREFIX = "headroom_"


def fetch(url: str, path: str) -> bytes | None:
    """Return the body of a GET with the API key, or None if the server does not answer with 200."""
    request = urllib.request.Request(url.rstrip("/") + path)
    if key := os.environ.get(API_KEY_VARIABLE):
        request.add_header("authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(16 * 2**20)
            return body
    except (OSError, http.client.HTTPException):
        return None


def metrics(url: str) -> Samples | None:
    """Return the counters of the Prometheus text at /metrics; None if there is none."""
    body = fetch(url, "/metrics")
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
    counters = {
        written(name, dict(labels)): round(value, 6)
        for (name, labels), value in sorted(grown.items())
        if value and name.endswith("_total")
    }
    return {"counters": counters, "restarted": any(value < 0 for value in grown.values())}


def models(url: str) -> Any:
    """Return the answer of /v1/models, or None if there is none."""
    body = fetch(url, "/v1/models")
    try:
        return None if body is None else json.loads(body)
    except ValueError:
        return None


def written(name: str, labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
