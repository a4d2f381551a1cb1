"""Compares the network alone with other engines: same weights and pairs, in turns batch by batch."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks import checkpoints, document, workers
from benchmarks.measure import machine, ratio
from benchmarks.peers.pipe import read_workload
from benchmarks.workers import Worker
from benchmarks.workload import BERT_SHAPES, SHAPES, useful_flops
from models.device import processor_features

ROUNDS = 6
ADAPTERS = {
    "ours": "ours",
    "torch_transformers": "ours",
    "cross_encoder": "engines",
    "onnx_runtime": "engines",
    "open_vino": "engines",
    "c_translate2": "engines",
}
"""Environment by module of benchmarks.peers."""

REFERENCE = "transformers fp32"
BF16, FP32, INT8 = "ours bf16", "ours fp32", "ours int8"
OPENVINO, CTRANSLATE2, ONNXRUNTIME = "OpenVINO bf16", "CTranslate2 int8", "onnxruntime int8"
GEMM = "GEMM bf16"
MAX_ERROR = 0.5
"""Error, relative to the spread of the logits, above which an engine counts as wrong."""

TARGETS = (
    ("base", BF16, OPENVINO, 1.10),
    ("base", BF16, REFERENCE, 4.5),
    ("shipped", BF16, OPENVINO, 1.05),
    ("base", INT8, CTRANSLATE2, 1.5),
)
"""Targets on titles: shape, our engine, peer, how many times faster."""

AVX2_TARGETS = tuple(
    (shape, ours, peer, target)
    for shape in BERT_SHAPES
    for ours, peer, target in (
        (INT8, FP32, 1.6),
        (INT8, CTRANSLATE2, 1.1),
        (INT8, ONNXRUNTIME, 1.1),
        (FP32, "onnxruntime fp32", 1.35),
        (FP32, REFERENCE, 1.35),
    )
)
"""Those on a processor with AVX2 alone."""


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one engine on one shape and workload.

    share_of_limit: FLOPs per second of real tokens, over the run's bf16 GEMM rate; None with heads off.
    error: root mean square of the logits' differences from transformers fp32, over the spread of its logits.
    bf16_over_it, int8_over_it: how many times faster ours is, as [median, low, high] of the rounds' ratios.
    """

    shape: str
    workload: str
    engine: str
    setting: str
    pairs_per_second: float
    share_of_limit: float | None
    error: float | None
    bf16_over_it: list[float] | None
    int8_over_it: list[float] | None


def measure(
    rounds: int,
    shapes: Mapping[str, dict[str, str]] = dict.fromkeys(BERT_SHAPES, ADAPTERS),
    workloads: Sequence[str] = tuple(checkpoints.WORKLOADS),
) -> dict[str, Any]:
    """Measure every shape with every workload. shapes: adapters, with their environments, by shape."""
    rows: list[Row] = []
    missing: dict[str, str] = {}
    versions: dict[str, str] = {}
    for shape, adapters in shapes.items():
        for workload in workloads:
            new_rows, new_missing, new_versions = measure_one(shape, workload, rounds, adapters)
            rows += new_rows
            missing |= new_missing
            versions |= new_versions
    return {
        "machine": machine(),
        "rounds": rounds,
        "versions": versions,
        "rows": [asdict(row) for row in rows],
        "missing": missing,
    }


def measure_one(
    shape: str, workload: str, rounds: int, adapters: dict[str, str]
) -> tuple[list[Row], dict[str, str], dict[str, str]]:
    """Return the rows, the reason for each adapter that cannot run, and the packages' versions."""
    model, file = checkpoints.exported(shape), checkpoints.workload(workload, shape)
    checkpoints.quantized(shape)
    with workers.started(adapters, model, file) as (running, missing):
        batches = read_workload(file)
        sides = {name: worker for worker in running.values() for name in worker.engines}
        versions = {k: v for worker in running.values() for k, v in worker.versions.items()}
        chosen = warm_up(sides, len(batches))
        seconds: dict[str, list[float]] = {name: [] for name in chosen}
        logits: dict[str, np.ndarray] = {}
        calls = 1 if SHAPES[shape].hidden > 400 else 4
        for number in range(rounds):
            print(f"engines: {shape}, {workload}: round {number + 1}", file=sys.stderr, flush=True)
            taken, logits = one_round(sides, chosen, len(batches), calls)
            for name in chosen:
                seconds[name].append(taken[name])
    errors = errors_against(logits)
    wrong = {name for name, error in errors.items() if error > MAX_ERROR}
    missing |= {
        f"{name} ({SHAPES[shape].name}, {workload})": (
            f"its logits are wrong by {errors[name]:.0%} of their spread"
        )
        for name in sorted(wrong)
    }
    lengths = np.concatenate([batch.lengths for batch in batches])
    gemms = [name for name in chosen if name.startswith(GEMM)]
    rate = logits[gemms[0]].sum() / min(statistics.median(seconds[name]) for name in gemms)
    right = {name: times for name, times in seconds.items() if not is_of(wrong, name) and name not in gemms}
    return rows_of(shape, workload, lengths, right, errors, float(rate)), missing, versions


def rows_of(
    shape: str,
    workload: str,
    lengths: np.ndarray,
    seconds: dict[str, list[float]],
    errors: dict[str, float],
    rate: float,
) -> list[Row]:
    """Return rows of engines by their `seconds` for all sequences in each round. rate: highest FLOPs/s."""
    plain = {without_setting(name): times for name, times in seconds.items()}
    rows = []
    for name, times in seconds.items():
        taken, engine = statistics.median(times), without_setting(name)
        share = useful_flops(SHAPES[shape], lengths) / taken / rate
        rows.append(
            Row(
                shape=SHAPES[shape].name,
                workload=workload,
                engine=engine,
                setting=setting(name),
                pairs_per_second=len(lengths) / taken,
                share_of_limit=None if "head off" in name else share,
                error=errors.get(name),
                bf16_over_it=faster(plain, BF16, engine),
                int8_over_it=faster(plain, INT8, engine),
            )
        )
    return rows


def one_round(
    sides: dict[str, Worker], names: list[str], batches: int, calls: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Return seconds and logits of each engine for all batches, taken in turns batch by batch.

    calls: number of calls per batch; of several, the first does not count because its caches are cold.
    """
    seconds = dict.fromkeys(names, 0.0)
    logits: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for batch in range(batches):
        for name in names:
            taken, batch_logits = sides[name].call(name, batch, calls)
            seconds[name] += statistics.fmean(taken[1:] or taken)
            logits[name].append(batch_logits)
    return seconds, {name: np.concatenate(parts) for name, parts in logits.items()}


def warm_up(sides: dict[str, Worker], batches: int) -> list[str]:
    """Return the engines to measure: each with its fastest setting on all batches together, and all GEMMs."""
    seconds = dict.fromkeys(sides, 0.0)
    for batch in range(batches):
        for name in sides:
            # Two calls, because a mask is prepared when it is used a second time.
            seconds[name] += min(sides[name].call(name, batch, 2)[0])
    chosen: list[str] = []
    for engine in dict.fromkeys(map(without_setting, sides)):
        alike = [side for side in sides if without_setting(side) == engine]
        chosen += alike if engine == GEMM else [min(alike, key=seconds.__getitem__)]
    return chosen


def errors_against(logits: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the distance of each engine's logits from REFERENCE's, over their spread; all heads on."""
    wanted = next(values for name, values in logits.items() if name.startswith(REFERENCE))
    spread = np.sqrt(((wanted - wanted.mean(axis=0)) ** 2).mean())
    return {
        name: float(np.sqrt(((values - wanted) ** 2).mean()) / spread)
        for name, values in logits.items()
        if not name.startswith(GEMM) and "mask" not in name and "head off" not in name
    }


def is_of(engines: set[str], name: str) -> bool:
    """Return whether a name is one of the engines, or one with heads off, whose logits are unknown."""
    return name in engines or name.partition(", ")[0] in map(without_setting, engines)


def faster(seconds: dict[str, list[float]], ours: str, other: str) -> list[float] | None:
    """Return how many times faster ours is: median, lowest and highest of the rounds; None without ours."""
    if ours not in seconds or ours == other:
        return None
    faster = ratio(seconds, ours, other)
    return [faster.median, faster.low, faster.high]


def without_setting(name: str) -> str:
    """Return `A` of `A [B]`."""
    return re.sub(r" \[.*\]$", "", name)


def setting(name: str) -> str:
    """Return `B` of `A [B]`."""
    match = re.search(r" \[(.*)\]$", name)
    return match[1] if match else ""


def as_markdown(result: dict[str, Any]) -> str:
    """Return one table per shape and workload."""
    lines = [
        f"{result['machine']}; {result['rounds']} rounds; sorted, in batches of 64. "
        + ", ".join(f"{name} {version}" for name, version in sorted(result["versions"].items()))
        + ". *Error*: of the logits against transformers fp32, over those logits' own spread.",
    ]
    for shape, workload in dict.fromkeys((row["shape"], row["workload"]) for row in result["rows"]):
        lines += [
            "",
            f"**{shape}**; {checkpoints.WORKLOADS[workload]}",
            "",
            "| engine | pairs/s | share of the bf16 GEMM limit | ours bf16 is × | ours int8 is × | error |",
            "|---|---|---|---|---|---|",
        ]
        rows = [row for row in result["rows"] if (row["shape"], row["workload"]) == (shape, workload)]
        for row in sorted(rows, key=lambda row: -row["pairs_per_second"]):
            name = row["engine"] + (f" ({row['setting']})" if row["setting"] else "")
            speed, share = f"{row['pairs_per_second']:.0f}", percent(row["share_of_limit"], 0)
            ratios = f"{times(row['bf16_over_it'])} | {times(row['int8_over_it'])}"
            lines.append(f"| {name} | {speed} | {share} | {ratios} | {percent(row['error'], 1)} |")
    lines += [""] * bool(result["missing"])
    lines += [f"Not measured: {name}: {reason}." for name, reason in result["missing"].items()]
    return "\n".join(lines)


def percent(share: float | None, digits: int) -> str:
    """Return a share as text for a table."""
    return "" if share is None else f"{share:.{digits}%}"


def times(ratios: Iterable[float] | None) -> str:
    """Return text such as `1.20 (1.10 to 1.30)`."""
    return "" if ratios is None else "{:.2f} ({:.2f} to {:.2f})".format(*ratios)


def missed(result: dict[str, Any]) -> list[str]:
    """Return one line for each target that was missed or could not be measured."""
    lines = []
    for shape, ours, peer, target in targets():
        rows = {
            row["engine"]: row
            for row in result["rows"]
            if (row["shape"], row["workload"]) == (SHAPES[shape].name, "titles")
        }
        if peer not in rows or ours not in rows:
            lines.append(f"{SHAPES[shape].name}: {ours} against {peer} was not measured")
            continue
        field = {BF16: "bf16_over_it", INT8: "int8_over_it"}.get(ours)
        rates = [rows[name]["pairs_per_second"] for name in (ours, peer)]
        speed = rows[peer][field][0] if field else rates[0] / rates[1]
        if speed < target:
            lines.append(f"{SHAPES[shape].name}: {ours} is {speed:.2f} × {peer}, target {target:g}")
    return lines


def targets() -> tuple[tuple[str, str, str, float], ...]:
    """Return the targets of a processor like this one."""
    return AVX2_TARGETS if document.kind_of(processor_features()) == "avx2" else TARGETS
