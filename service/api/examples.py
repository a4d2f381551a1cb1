"""An example answer of each route for the OpenAPI document. The shipped model computed the scores."""

from __future__ import annotations

import math
from typing import Any

_ALL_UNITS = {"units_on": 36_864, "units": 36_864, "layers_on": 12, "layers": 12}
_FULL = {"id": "20e5ffaa4b14", "spec": "none", "heads_on": 144, "heads": 144, **_ALL_UNITS}
_UPPER_OFF = {"id": "1e5d0679001a", "spec": "6-11.*", "heads_on": 72, "heads": 144, **_ALL_UNITS}
_TIMING = {"tokenize": 0.2, "queue": 0.4, "inference": 6.1, "total": 7.0}


def _result(index: int, probabilities: list[float], expected_grade: float, tokens: int) -> dict[str, Any]:
    return {
        "index": index,
        "grade": 2,
        "label": "partial",
        "expected_grade": expected_grade,
        "score": round(expected_grade / 4, 4),
        "probabilities": probabilities,
        "tokens": tokens,
        "unknown_tokens": 0,
        "truncated": False,
        "raw_score": round(math.log(expected_grade / (4 - expected_grade)), 4),
        "empty": False,
        "chunk": None,
        "stage": None,
    }


_SCORE = {
    "model": "headroom-default",
    "variant": "full",
    "head_mask": {"id": "6fe97cd857db", "spec": "2.3,7.*", "heads_on": 131, "heads": 144, **_ALL_UNITS},
    "assignment": None,
    "degraded": False,
    "results": [
        _result(0, [0.055, 0.2622, 0.2851, 0.177, 0.2207], 2.2463, 13),
        _result(1, [0.126, 0.1698, 0.3899, 0.227, 0.0872], 1.9796, 8),
    ],
    "usage": {"pairs": 2, "tokens": 21},
    "timing_ms": _TIMING,
    "stages": None,
}

_COMPARE = {
    "model": "headroom-default",
    "columns": [
        {
            "head_mask": _FULL,
            "variant": "full",
            "results": [_result(0, [0.0551, 0.2728, 0.2949, 0.1732, 0.2039], 2.1979, 13)],
            "stages": None,
            "degraded": False,
        },
        {
            "head_mask": _UPPER_OFF,
            "variant": "full",
            "results": [_result(0, [0.0565, 0.2696, 0.2816, 0.1703, 0.2219], 2.2315, 13)],
            "stages": None,
            "degraded": False,
        },
    ],
    "usage": {"pairs": 2, "tokens": 26},
    "timing_ms": _TIMING,
}

_ATTENTION = {
    "model": "headroom-default",
    "variant": "full",
    "head_mask": _FULL,
    "tokens": ["[CLS]", "steel", "bracket", "[SEP]", "angle", "bracket", "[SEP]"],
    "segments": [0, 0, 0, 0, 1, 1, 1],
    "heads": [
        {
            "layer": 2,
            "head": 3,
            "probabilities": [
                [0.184, 0.04, 0.535, 0.114, 0.019, 0.084, 0.025],
                [0.071, 0.781, 0.015, 0.098, 0.009, 0.006, 0.019],
                [0.053, 0.023, 0.715, 0.109, 0.021, 0.061, 0.017],
                [0.043, 0.023, 0.602, 0.271, 0.01, 0.03, 0.021],
                [0.227, 0.22, 0.155, 0.189, 0.053, 0.079, 0.078],
                [0.189, 0.108, 0.334, 0.13, 0.048, 0.138, 0.054],
                [0.078, 0.057, 0.479, 0.241, 0.023, 0.075, 0.046],
            ],
        }
    ],
    "timing_ms": _TIMING,
}

_CONDENSE = {
    "model": "headroom-default",
    "variant": "full",
    "head_mask": _FULL,
    "method": "greedy",
    "measure": "jensen_shannon",
    "condensed": "steel angle bracket",
    "loss": 0.0874,
    "words": [
        {"word": "a", "form": "a", "kept": False, "importance": 0.0102},
        {"word": "steel", "form": "steel", "kept": True, "importance": 0.0621},
        {"word": "angle", "form": "angle", "kept": True, "importance": 0.0955},
        {"word": "bracket", "form": "bracket", "kept": True, "importance": 0.1433},
    ],
    "path": [
        {"words": 4, "query": "a steel angle bracket", "left_out": None, "loss": 0.0, "measured": True},
        {"words": 3, "query": "steel angle bracket", "left_out": 0, "loss": 0.0102, "measured": True},
    ],
    "note": None,
    "usage": {"pairs": 20, "tokens": 262},
    "timing_ms": _TIMING,
}

_MODELS = {
    "models": [
        {
            "name": "headroom-default",
            "repository": None,
            "commit": None,
            "family": "bert",
            "layers": 12,
            "heads": 12,
            "hidden_size": 192,
            "intermediate_size": 768,
            "vocab_size": 16_000,
            "max_tokens": 128,
            "grades": ["irrelevant", "related", "partial", "close", "exact"],
            "score_activation": "softmax",
            "parameters": 8_473_733,
            "bytes": 17_023_508,
            "sliced_bytes": 0,
            "device": "cpu",
            "dtype": "bfloat16",
            "deterministic": False,
            "processor": ["avx512_bf16"],
            "kernels": "avx512_bf16",
            "kernels_skipped": [],
            "int8_input_bits": None,
            "quality": {"accuracy": 0.542, "qwk": 0.635, "ndcg10": 0.83},
        }
    ]
}

_VARIANTS = {
    "config_version": "0123456789ab",
    "variants": [
        {
            "name": "full",
            "model": "headroom-default",
            "head_mask": _FULL,
            "sliced": False,
            "parameters": 8_473_733,
            "default": True,
            "cascade": None,
        }
    ],
}

_MASKS = {"masks": [{"name": "upper", "source": "config", "head_mask": _UPPER_OFF}]}

_HEADS = {
    "model": "headroom-default",
    "layers": 12,
    "heads": 12,
    "study": {
        "schema": 1,
        "weights": "0123456789abcdef",
        "shape": [12, 12],
        "data": "data/sample/calibration.jsonl.gz",
        "pairs": 1627,
        "queries": 81,
        "number_format": "bfloat16",
        "baseline": {"qwk": 0.648, "ndcg10": 0.775, "accuracy": 0.494},
        "heads": [
            {
                "layer": 0,
                "head": 8,
                "delta": {"qwk": -0.012, "ndcg10": -0.003, "accuracy": -0.004},
                "interval": {"qwk": [-0.03, 0.006], "ndcg10": [-0.01, 0.004], "accuracy": [-0.02, 0.01]},
                "p_adjusted": 1.0,
                "roles": {"term_match": 0.43},
            }
        ],
    },
}

_METRICS = """\
# HELP headroom_requests_total Requests answered.
# TYPE headroom_requests_total counter
headroom_requests_total{route="/v1/score",status="200"} 1027.0
"""

_OUTCOMES = {"accepted": 1, "duplicates": 0, "unknown": 0, "pending": 0}

_EXPERIMENT = {
    "name": "prune20",
    "status": "running",
    "traffic": 0.2,
    "next_step": None,
    "started": 1_795_000_000.0,
    "slots": [0, 10_000],
    "where": {},
    "shadow": 0.05,
    "arms": [
        {"name": "control", "variant": "full", "weight": 50, "control": True, "exposures": 4021},
        {"name": "pruned", "variant": "pruned20", "weight": 50, "control": False, "exposures": 3987},
    ],
    "rolled_back": [],
    "shipped": None,
    "sample_ratio_p": 1.0,
    "guardrails": [
        {"arm": "pruned", "requests": 812, "error_rate": 0.0, "p99_ms": 41.0, "score_shift": 0.004}
    ],
}

_EXPERIMENTS = {"config_version": "0123456789ab", "state_version": 1, "experiments": [_EXPERIMENT]}

_DETAIL = _EXPERIMENT | {
    "history": [
        {
            "experiment": "prune20",
            "time": 1_795_000_000.0,
            "kind": "start",
            "arm": None,
            "traffic": None,
            "actor": "schedule",
            "reason": "",
            "detail": "salt 2026-11; arms control=full:50, pruned=pruned20:50",
            "seen": None,
        }
    ],
    "report": None,
}

_COURSE = {
    "experiment": "prune20",
    "looks": [
        {
            "time": 1_795_003_600.0,
            "metrics": [
                {
                    "arm": "pruned",
                    "metric": "click",
                    "kind": "proportion",
                    "units": 401,
                    "control_units": 411,
                    "value": 0.304,
                    "control_value": 0.308,
                    "p_value": 1.0,
                    "margin": None,
                    "margin_relative": True,
                    "better": "higher",
                    "variance_explained": None,
                    "decision": "undecided",
                    "text": "pruned on click is undecided: between 0.11 worse and 0.102 better.",
                    "early": 0,
                    "control_early": 0,
                    "difference": -0.004,
                    "low": -0.11,
                    "high": 0.102,
                    "relative": -0.013,
                    "relative_low": -0.29,
                    "relative_high": 0.4,
                }
            ],
        }
    ],
    "complete": True,
}

ANSWERS: dict[str, Any] = {
    "score": _SCORE,
    "compare": _COMPARE,
    "attention": _ATTENTION,
    "condense": _CONDENSE,
    "models": _MODELS,
    "variants": _VARIANTS,
    "masks": _MASKS,
    "heads": _HEADS,
    "live": {"status": "live"},
    "ready": {"status": "ready"},
    "metrics": _METRICS,
    "outcomes": _OUTCOMES,
    "experiments": _EXPERIMENTS,
    "experiment": _DETAIL,
    "course": _COURSE,
    "ramp": _DETAIL,
    "stop": _DETAIL,
    "ship": _DETAIL,
}
"""The example answers by operation id."""
