"""`python -m benchmarks.peers.export MODEL OUT` converts a transformers checkpoint for other engines.

OUT gets the checkpoint's own files and those of OpenVINO, CTranslate2 and onnxruntime.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import ctranslate2
import numpy as np
import onnx
import openvino
import torch
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from transformers import AutoModelForSequenceClassification, PreTrainedModel

from benchmarks.peers.batch import Batch

INPUTS = Batch._fields
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
EXAMPLE = tuple(torch.full((2, 16), value) for value in (5, 1, 0))
"""Inputs to trace a model with, in the order of INPUTS."""


class Logits(torch.nn.Module):
    """The model with positional inputs, and the logits as its only output."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """Return logits (rows, labels) float32 of inputs (rows, length) int64."""
        inputs = dict(zip(INPUTS, (ids, mask, types), strict=True))
        logits: torch.Tensor = self.model(**inputs).logits
        return logits


def main(source: Path, out: Path) -> None:
    """Write all formats, and last the file `exported`."""
    out.mkdir(parents=True, exist_ok=True)
    model = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    # Without our calibration temperature, which no other engine applies, so that scores can be compared.
    vars(model.config).pop("headroom", None)
    model.save_pretrained(out)
    for file in TOKENIZER:
        shutil.copy(source / file, out)
    # From torch, not ONNX, so that attention stays one node, for which OpenVINO has a kernel.
    shapes = [openvino.PartialShape([-1, -1])] * len(INPUTS)
    graph = openvino.convert_model(Logits(model), example_input=EXAMPLE, input=shapes)
    openvino.save_model(graph, out / "openvino.xml", compress_to_fp16=False)
    if model.config.model_type == "bert":
        export_ctranslate2(model, out)
    export_onnx(model, out)
    (out / "exported").touch()


def export_ctranslate2(model: PreTrainedModel, out: Path) -> None:
    """Write the encoder with its pooler for CTranslate2, and the classifier for its caller."""
    encoder = model.base_model
    last = model.classifier
    # transformers 5 leaves this out, and the converter needs it.
    encoder.config.position_embedding_type = "absolute"
    directory = out / "encoder"
    encoder.save_pretrained(directory)
    for file in TOKENIZER:
        shutil.copy(out / file, directory)
    ctranslate2.converters.TransformersConverter(str(directory)).convert(str(out / "ctranslate2"), force=True)
    shutil.rmtree(directory)
    np.savez(out / "classifier.npz", weight=last.weight.detach().numpy(), bias=last.bias.detach().numpy())


def export_onnx(model: PreTrainedModel, out: Path) -> None:
    """Write model.onnx; for BERT also fused.onnx, with one node per layer for attention, and int8.onnx."""
    model.set_attn_implementation("eager")  # the optimizer knows its pattern, and the tracing exporter's
    torch.onnx.export(
        Logits(model),
        EXAMPLE,
        out / "model.onnx",
        input_names=list(INPUTS),
        output_names=["logits"],
        dynamo=False,
        dynamic_axes={name: {0: "rows", 1: "length"} for name in INPUTS},
    )
    config = model.config
    if config.model_type != "bert":  # the optimizer knows no other attention
        return
    fused = optimize_model(str(out / "model.onnx"), "bert", config.num_attention_heads, config.hidden_size)
    layers = fused.get_fused_operator_statistics()["Attention"]
    if layers != config.num_hidden_layers:
        raise RuntimeError(f"onnxruntime fused {layers} of {config.num_hidden_layers} attention layers")
    fused.save_model_to_file(str(out / "fused.onnx"))
    # reduce_range: 7 bits a weight, as its documentation advises: without VNNI, 16-bit sums overflow with 8.
    # DefaultTensorType: it cannot infer the types of fused nodes.
    types = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    source = out / "fused.onnx"
    target = out / "int8.onnx"
    quantize_dynamic(source, target, per_channel=True, reduce_range=True, extra_options=types)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
