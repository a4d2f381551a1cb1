"""Compares the network alone with other engines: same weights and pairs, in turns batch by batch."""

import statistics
import sys
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks import checkpoints, environments
from benchmarks.environments import Worker
from benchmarks.measure import ratio
from benchmarks.peers.engines import read_workload
from benchmarks.report import Report, Row, kind_of, not_measured, times_as_fast
from benchmarks.workload import BERT_SHAPES, SHAPES, useful_flops
from headroom.models.cores import processor_features

ROUNDS = 6
ADAPTERS = {
    "ours": "ours",
    "transformers": "ours",
    "onnxruntime": "engines",
    "openvino": "engines",
    "ctranslate2": "engines",
}
"""Environment by adapter of benchmarks.peers.engines."""

REFERENCE = "transformers fp32"
GEMM = "GEMM"
BF16 = "ours bf16"
FP32 = "ours fp32"
INT8 = "ours int8"
OPENVINO = ("OpenVINO bf16",)
CTRANSLATE2 = ("CTranslate2 int8",)
FP32_PEERS = ("onnxruntime fp32", "OpenVINO fp32", REFERENCE)
INT8_PEERS = (*CTRANSLATE2, "onnxruntime int8")
MAX_ERROR = 0.5
"""Error, relative to the spread of the logits, above which an engine counts as wrong."""

DEBERTA_TARGETS = {
    ("deberta", texts): ((FP32, (REFERENCE,), 1.3), (FP32, ("onnxruntime fp32",), 1.1))
    for texts in checkpoints.TEXTS
}

TARGETS = {
    ("base", "titles"): ((BF16, (REFERENCE,), 4.5), (BF16, OPENVINO, 1.10), (INT8, CTRANSLATE2, 1.5)),
    ("base", "documents"): ((BF16, OPENVINO, 1.10),),
    ("shipped", "titles"): ((BF16, OPENVINO, 1.05),),
    ("shipped", "documents"): ((BF16, OPENVINO, 1.05),),
    **DEBERTA_TARGETS,
}
"""Our engine, peers, and how many times as fast as the best ours must be, by shape and texts."""

AVX2_TARGETS = {
    (shape, "titles"): ((FP32, FP32_PEERS, 1.35), (INT8, INT8_PEERS, 1.1)) for shape in BERT_SHAPES
} | DEBERTA_TARGETS
"""Those of a processor with AVX2 alone. `int8` has the one of our int8 against our fp32."""


def measure(
    rounds: int,
    shapes: Sequence[str] = (*BERT_SHAPES, "deberta"),
    texts: Sequence[str] = tuple(checkpoints.TEXTS),
    adapters: Mapping[str, str] = ADAPTERS,
) -> Report:
    """Measure every shape with every kind of texts. adapters: with their environments."""
    report = Report("")
    versions: dict[str, str] = {}
    for shape in shapes:
        for kind in texts:
            versions |= compare(report, shape, kind, rounds, adapters)
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    report.about = (
        f"{rounds} rounds; sorted, in batches of 64. {packages}. *GEMM limit*: bf16, or fp32 on a processor "
        f"without. *Error*: of the logits against {REFERENCE}, over those logits' own spread."
    )
    return report


def compare(
    report: Report, shape: str, texts: str, rounds: int, adapters: Mapping[str, str]
) -> dict[str, str]:
    """Add the rows and the table of one shape and kind of texts; return the packages' versions."""
    model = checkpoints.exported(shape)
    file = checkpoints.workload(texts, shape)
    checkpoints.quantized(shape)
    if SHAPES[shape].family != "bert":  # CTranslate2 has no other network of these
        adapters = {name: adapters[name] for name in adapters if name != "ctranslate2"}
    batches = read_workload(file)
    with environments.started(adapters, model, file) as (running, missing):
        sides = {name: worker for worker in running.values() for name in worker.engines}
        versions = {k: v for worker in running.values() for k, v in worker.versions.items()}
        seconds, logits = all_rounds(sides, len(batches), rounds, shape, texts)
    where = f"{SHAPES[shape].name}, {checkpoints.TEXTS[texts]}"
    report.notes += [f"Not measured ({where}): {name}: {reason}." for name, reason in missing.items()]
    lengths = np.concatenate([batch.lengths for batch in batches])
    add(report, shape, where, lengths, seconds, logits)
    targets = AVX2_TARGETS if kind_of(processor_features()) == "avx2" else TARGETS
    report.rows += [target(f"{where}: ", seconds, *three) for three in targets.get((shape, texts), ())]
    return versions


def add(
    report: Report,
    shape: str,
    where: str,
    lengths: np.ndarray,
    seconds: dict[str, list[float]],
    logits: dict[str, np.ndarray],
) -> None:
    """Add a table, and take the products and the engines that compute something else out of `seconds`."""
    errors = errors_against(logits)
    for name in [name for name, error in errors.items() if error > MAX_ERROR]:
        report.notes.append(f"Wrong ({where}): the error of {name} is {errors[name]:.0%}.")
        del seconds[name]
    products = [name for name in seconds if name.startswith(GEMM)]
    gemms = {name: statistics.median(seconds.pop(name)) for name in products}
    limit = float(logits[next(iter(gemms))].sum()) / min(gemms.values())
    report.tables[where] = lines_of(shape, lengths, seconds, errors, limit)


def lines_of(
    shape: str, lengths: np.ndarray, seconds: dict[str, list[float]], errors: dict[str, float], limit: float
) -> list[dict[str, str]]:
    """Return the table of engines, the fastest first. limit: FLOPs/s of the fastest product."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    flops = useful_flops(SHAPES[shape], lengths)
    return [
        {
            "engine": name,
            "pairs/s": f"{len(lengths) / medians[name]:.0f}",
            "share of the GEMM limit": f"{flops / medians[name] / limit:.0%}",
            **{
                f"{ours} is ×": ratio(seconds, ours, name).text() if ours in seconds else ""
                for ours in (BF16, FP32, INT8)
            },
            "error": f"{errors[name]:.1%}",
        }
        for name in sorted(seconds, key=medians.__getitem__)
    ]


def target(
    where: str, seconds: dict[str, list[float]], ours: str, peers: Sequence[str], minimum: float
) -> Row:
    """Return the row that compares ours with the best of peers; it says so if one was not measured."""
    others = {without_setting(name): name for name in seconds}
    missing = [name for name in (ours, *peers) if name not in others]
    if missing:
        return not_measured(f"{where}{ours} × {' or '.join(peers)}", missing, minimum)
    best = min(peers, key=lambda peer: statistics.median(seconds[others[peer]]))
    return times_as_fast(f"{where}{ours} × {best}", ratio(seconds, ours, others[best]), minimum)


def all_rounds(
    sides: dict[str, Worker], batches: int, rounds: int, shape: str, texts: str
) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
    """Return each engine's seconds by round, with its fastest setting, and its logits of the last round."""
    chosen = fastest_settings(sides, batches)
    calls = 1 if SHAPES[shape].hidden > 400 else 4
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    logits: dict[str, np.ndarray] = {}
    for number in range(rounds):
        print(f"engines: {shape}, {texts}: round {number + 1}", file=sys.stderr, flush=True)
        taken, logits = one_round(sides, chosen, batches, calls)
        for name in chosen:
            seconds[name].append(taken[name])
    return seconds, logits


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


def fastest_settings(sides: dict[str, Worker], batches: int) -> list[str]:
    """Return the engines to measure: each with its fastest setting on all batches together, and all GEMMs."""
    seconds = dict.fromkeys(sides, 0.0)
    for batch in range(batches):
        for name in sides:
            seconds[name] += min(sides[name].call(name, batch, 2)[0])
    chosen: list[str] = []
    for engine in dict.fromkeys(map(without_setting, sides)):
        alike = [side for side in sides if without_setting(side) == engine]
        chosen += alike if engine.startswith(GEMM) else [min(alike, key=seconds.__getitem__)]
    return chosen


def errors_against(logits: dict[str, np.ndarray]) -> dict[str, float]:
    """Return the distance of each engine's logits from REFERENCE's, over their spread."""
    right = next(values for name, values in logits.items() if name.startswith(REFERENCE))
    spread = np.sqrt(((right - right.mean(axis=0)) ** 2).mean())
    return {
        name: float(np.sqrt(((values - right) ** 2).mean()) / spread)
        for name, values in logits.items()
        if not name.startswith(GEMM)
    }


def without_setting(name: str) -> str:
    """Return `A` of `A [B]`."""
    return name.partition(" [")[0]
