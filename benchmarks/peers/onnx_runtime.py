"""onnxruntime on the CPU. Its x86 kernels know float32 and int8, not bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.peers.batch import Batch, Engine, Engines

PACKAGES = ("onnxruntime",)


def engines(directory: Path) -> Engines:
    """Return engines as exported, and with attention and LayerNorm fused, and int8, if the export could."""
    files = {
        "onnxruntime fp32 [as exported]": "model.onnx",
        "onnxruntime fp32 [fused]": "fused.onnx",
        "onnxruntime int8 [dynamic, fused]": "int8.onnx",
    }
    return {name: engine(directory / file) for name, file in files.items() if (directory / file).exists()}


def engine(file: Path, threads: int = 2) -> Engine:
    """Return an engine with all graph optimisations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # By default, its threads spin after a run, which would slow the next engine.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    names = [each.name for each in session.get_inputs()]

    def call(batch: Batch) -> np.ndarray:
        return np.asarray(session.run(None, {name: batch.inputs[name] for name in names})[0])

    return call
