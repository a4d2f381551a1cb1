"""Fills metrics, and reads them as a scrape gives them; imports little, for processes that a test starts."""

import math

from prometheus_client.parser import text_string_to_metric_families

from headroom.service.observe.metrics import Metrics


def samples(text: bytes) -> dict[str, float]:
    """Every sample of a scrape as `name{label="value",…}`, labels sorted."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def feed(metrics: Metrics) -> None:
    metrics.request("/v1/score", 200, 0.012)
    metrics.request("/v1/score", 422, 0.001)
    metrics.count("shed_total", "queue_full")
    metrics.stages(tokenize=0.0002, queue=0.0004, inference=0.0061, respond=0.0001)
    metrics.stages(tokenize=0.0002, queue=0.0004, inference=1.5, respond=0.0001)
    metrics.scored("full", pairs=1000, seconds=0.25, grades=[900, 0, 50, 40, 10], truncated=3)
    metrics.scored("custom", pairs=1, seconds=0.01, arm="pruned", grades=[0, 1])
    metrics.scored("full", pairs=0, seconds=0.1)
    metrics.batch(pairs=40, tokens=800, budget=1024)
    for name, value in (
        ("queue_tokens", 512),
        ("queue_oldest_seconds", 0.125),
        ("in_flight_pairs", 40),
        ("unread_characters", 9000),
        ("ready", True),
    ):
        metrics.set_gauge(name, value)
    metrics.count("device_failures_total", "cuda")
    metrics.out_of_memory()
    metrics.config("0123456789ab", {"full": 144, "pruned20": 115})
    metrics.set_gauge("build_info", 1, "0.1.0", "2.13", "m", "cpu", "bfloat16")


def check(found: dict[str, float], processes: int = 1) -> None:
    """What `feed` leaves behind, counters and sums that many times."""
    expected = {
        'headroom_requests_total{route="/v1/score",status="200"}': 1,
        'headroom_requests_total{route="/v1/score",status="422"}': 1,
        'headroom_request_seconds_count{route="/v1/score"}': 2,
        'headroom_request_seconds_bucket{le="0.001",route="/v1/score"}': 1,
        'headroom_shed_total{reason="queue_full"}': 1,
        'headroom_shed_total{reason="deadline"}': 0,
        'headroom_stage_seconds_count{stage="inference"}': 2,
        'headroom_stage_seconds_count{stage="respond"}': 2,
        'headroom_pairs_total{arm="",variant="full"}': 1000,
        'headroom_pairs_total{arm="pruned",variant="custom"}': 1,
        'headroom_pair_seconds_count{arm="",variant="full"}': 1000,
        'headroom_pair_seconds_bucket{arm="",le="0.2",variant="full"}': 0,
        'headroom_pair_seconds_bucket{arm="",le="0.3",variant="full"}': 1000,
        'headroom_pair_seconds_sum{arm="",variant="full"}': 250.0,
        'headroom_grade_total{grade="0",variant="full"}': 900,
        'headroom_grade_total{grade="4",variant="full"}': 10,
        'headroom_grade_total{grade="1",variant="custom"}': 1,
        "headroom_truncated_total": 3,
        "headroom_batch_pairs_count": 1,
        "headroom_batch_tokens_sum": 800,
        'headroom_batch_fill_ratio_bucket{le="0.7"}': 0,
        'headroom_batch_fill_ratio_bucket{le="0.8"}': 1,
        'headroom_device_failures_total{kind="cuda"}': 1,
        "headroom_out_of_memory_total": 1,
        "headroom_queue_tokens": 512,
        "headroom_in_flight_pairs": 40,
        "headroom_unread_characters": 9000,
        "headroom_ready": 1,
    }
    for name, value in expected.items():
        assert math.isclose(found[name], value * processes, rel_tol=1e-6), (name, found[name])
    assert found["headroom_queue_oldest_seconds"] == 0.125
    assert found['headroom_heads_on{variant="pruned20"}'] == 115
    labels = 'device="cpu",dtype="bfloat16",model="m",torch="2.13",version="0.1.0"'
    assert found[f"headroom_build_info{{{labels}}}"] == 1
    assert 'headroom_grade_total{grade="1",variant="full"}' not in found
