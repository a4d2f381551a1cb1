"""OpenVINO on the CPU, in the number format of INFERENCE_PRECISION_HINT."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino

from benchmarks.peers.batch import Batch, Engine, Engines, threads_of_worker

PACKAGES = ("openvino",)


def engines(directory: Path) -> Engines:
    """Return engines in float32 and bfloat16; it cannot do the latter when oneDNN is limited to AVX2."""
    bf16 = {} if "ONEDNN_MAX_CPU_ISA" in os.environ else {"OpenVINO bf16": serving(directory, "bf16")}
    return {"OpenVINO fp32": serving(directory, "f32")} | bf16


def serving(directory: Path, name: str) -> Engine:
    """Return an engine with one stream of all threads, which runs one batch at a time."""
    model = openvino.Core().compile_model(
        directory / "openvino.xml",
        "CPU",
        {
            "INFERENCE_PRECISION_HINT": name,
            "INFERENCE_NUM_THREADS": threads_of_worker(),
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
