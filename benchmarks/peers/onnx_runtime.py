"""onnxruntime on the CPU. Its x86 kernels know float32 and int8, not bfloat16."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime

from benchmarks.peers.batch import Engine, Engines, threads_of_worker

PACKAGES = ("onnxruntime",)


def engines(directory: Path) -> Engines:
    """Return engines in fp32, as exported and with attention and LayerNorm fused, and in int8."""
    return {
        "onnxruntime fp32 [as exported]": engine(directory / "model.onnx"),
        "onnxruntime fp32 [fused]": engine(directory / "fused.onnx"),
        "onnxruntime int8 [dynamic, fused]": engine(directory / "int8.onnx"),
    }


def engine(file: Path) -> Engine:
    """Return an engine with all graph optimisations, which are the default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads_of_worker()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return lambda batch: np.asarray(session.run(None, batch._asdict())[0])
