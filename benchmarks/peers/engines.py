"""Engines in their own environments: `python -m benchmarks.peers.engines ADAPTER MODEL WORKLOAD`.

It writes and reads JSON lines. First it sends {"engines": [...], "versions": {...}} or {"error": "..."}. It
answers each {"engine", "batch", "calls"} with {"seconds": [...], "logits": [...]}, the last call's logits.
An environment lacks the other engines' packages, so each function imports its own.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import sys
import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.batch import Batch, Engine, Engines, padded


def threads() -> int:
    """Return the threads of an engine: those of its process, which a server divides by its workers."""
    return int(os.environ.get("OMP_NUM_THREADS", "2"))


def transformers_engine(directory: Path, dtype: str, attention: str) -> Engine:
    """Return transformers' own classifier in PyTorch, in fp32 or bf16."""
    import torch
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(
        directory,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype],
        attn_implementation=attention,
    ).eval()

    def call(batch: Batch) -> np.ndarray:
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(array) for name, array in batch._asdict().items()}
            logits: torch.Tensor = model(**inputs).logits
            return logits.float().numpy()

    return call


def transformers_engines(directory: Path) -> Engines:
    """Return engines in fp32 and, if oneDNN can, bf16, each with every attention that it has."""
    import torch
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig

    network = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(AutoConfig.from_pretrained(directory))]
    ways = ("sdpa", "eager") if network._supports_sdpa else ("eager",)
    # Without oneDNN, bfloat16 is many times slower than float32.
    dtypes = ("fp32", "bf16") if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ("fp32",)
    return {
        f"transformers {dtype} [{attention}]": transformers_engine(directory, dtype, attention)
        for dtype in dtypes
        for attention in ways
    }


def transformers_serving(directory: Path, dtype: str) -> Engine:
    """Return the engine with the attention that is faster on a full batch of titles of the mean length."""
    batch = padded([(np.arange(25) + 1000, 6)] * 64)
    both = [transformers_engine(directory, dtype, attention) for attention in ("sdpa", "eager")]
    return min(both, key=lambda call: min(timeit.repeat(lambda: call(batch), number=1, repeat=4)))


def openvino_serving(directory: Path, dtype: str) -> Engine:
    """Return OpenVINO on the CPU in f32 or bf16: one stream of all threads, one batch at a time."""
    import openvino

    model = openvino.Core().compile_model(
        directory / "openvino.xml",
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": dtype,
            "INFERENCE_NUM_THREADS": threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": False,  # with it, two processes of one thread each share a core
        },
    )
    request = model.create_infer_request()

    def call(batch: Batch) -> np.ndarray:
        request.infer([*batch], share_inputs=True)
        return np.array(request.get_output_tensor(0).data, np.float32)

    return call


def openvino_engines(directory: Path) -> Engines:
    """Return engines in float32 and bfloat16; it cannot do the latter when oneDNN is limited to AVX2."""
    dtypes = {"fp32": "f32"} | ({} if "ONEDNN_MAX_CPU_ISA" in os.environ else {"bf16": "bf16"})
    return {f"OpenVINO {name}": openvino_serving(directory, dtype) for name, dtype in dtypes.items()}


def ctranslate2_serving(directory: Path, dtype: str) -> Engine:
    """Return CTranslate2's encoder with its pooler; numpy computes the classifier's small product."""
    import ctranslate2

    encoder = ctranslate2.Encoder(
        str(directory / "ctranslate2"), "cpu", compute_type=dtype, intra_threads=threads()
    )
    head = np.load(directory / "classifier.npz")
    weight = head["weight"]
    bias = head["bias"]

    def call(batch: Batch) -> np.ndarray:
        output = encoder.forward_batch(
            ctranslate2.StorageView.from_array(batch.input_ids.astype(np.int32)),
            ctranslate2.StorageView.from_array(batch.lengths.astype(np.int32)),
            token_type_ids=batch.token_type_ids.tolist(),
        )
        return np.asarray(np.array(output.pooler_output) @ weight.T + bias, np.float32)

    return call


def onnxruntime_engines(directory: Path) -> Engines:
    """Return engines in fp32 (as exported, and with fused attention and LayerNorm) and int8."""
    import onnxruntime

    def engine(file: str) -> Engine:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        session = onnxruntime.InferenceSession(
            str(directory / file), options, providers=["CPUExecutionProvider"]
        )
        names = [given.name for given in session.get_inputs()]  # DeBERTa's network takes no token types
        return lambda batch: np.asarray(session.run(None, {name: getattr(batch, name) for name in names})[0])

    files = {
        "onnxruntime fp32 [as exported]": "model.onnx",
        "onnxruntime fp32 [fused]": "fused.onnx",
        "onnxruntime int8 [dynamic, fused]": "int8.onnx",
    }
    return {name: engine(file) for name, file in files.items() if (directory / file).exists()}


def ours(directory: Path) -> Engines:
    """Return our engines."""
    from benchmarks.peers.ours import engines

    return engines(directory)


ADAPTERS: dict[str, tuple[Callable[[Path], Engines], tuple[str, ...]]] = {
    "ours": (ours, ("torch",)),
    "transformers": (transformers_engines, ("transformers", "torch")),
    "onnxruntime": (onnxruntime_engines, ("onnxruntime",)),
    "openvino": (openvino_engines, ("openvino",)),
    "ctranslate2": (lambda path: {"CTranslate2 int8": ctranslate2_serving(path, "int8")}, ("ctranslate2",)),
}
"""By name: the engines of an exported checkpoint's directory, and the packages whose versions are told."""

SERVING: dict[str, Callable[[Path, str], Engine]] = {
    "transformers": transformers_serving,
    "openvino": openvino_serving,
    "ctranslate2": ctranslate2_serving,
}
"""The engine of a server, by name, from a directory and a number format."""


def read_workload(file: Path) -> list[Batch]:
    """Return the batches of a JSON file: a list of batches of [ids, length of the first segment]."""
    return [
        padded([(np.array(ids), first) for ids, first in batch])
        for batch in json.loads(file.read_text(encoding="utf-8"))
    ]


def main(adapter: str, model: str, workload: str) -> None:
    """Load the adapter, then answer until the pipe is closed. Any error goes into the table."""
    # Libraries print to standard output, but only our lines may reach the pipe.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    engines: Engines = {}
    batches: list[Batch] = []
    for line in itertools.chain([""], sys.stdin):
        try:
            if line:
                answer = run(engines, batches, **json.loads(line))
            else:
                make, packages = ADAPTERS[adapter]
                engines = make(Path(model))
                batches = read_workload(Path(workload))
                versions = {name: importlib.metadata.version(name) for name in packages}
                answer = {"engines": list(engines), "versions": versions}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def run(engines: Engines, batches: list[Batch], engine: str, batch: int, calls: int) -> dict[str, Any]:
    """Return the seconds of each call and the last call's logits."""
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        logits = engines[engine](batches[batch])
        seconds.append(time.perf_counter() - started)
    return {"seconds": seconds, "logits": logits.tolist()}


if __name__ == "__main__":
    main(*sys.argv[1:])
