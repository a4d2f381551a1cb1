"""`python -m benchmarks.peers.export MODEL OUT` converts a transformers checkpoint for other engines.

OUT gets the checkpoint's own files, model.onnx and fused.onnx, openvino.xml, ctranslate2/ and classifier.npz.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import ctranslate2
import numpy as np
import openvino
import torch
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from transformers import BertForSequenceClassification

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


class Logits(torch.nn.Module):
    """The model with positional inputs, and the logits as its only output."""

    def __init__(self, model: BertForSequenceClassification) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """Return logits (rows, labels) float32 of inputs (rows, length) int64."""
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).logits


def main(source: Path, out: Path) -> None:
    """Write all formats, and last the file `exported`."""
    out.mkdir(parents=True, exist_ok=True)
    model = BertForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    # Without our calibration temperature, which no other engine applies, so that scores can be compared.
    vars(model.config).pop("headroom", None)
    model.save_pretrained(out)
    for file in TOKENIZER:
        shutil.copy(source / file, out)
    export_onnx(source, out)
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in range(3))
    # From torch instead of ONNX, so that attention stays one node, for which OpenVINO has a kernel.
    graph = openvino.convert_model(
        Logits(model), example_input=example, input=[openvino.PartialShape([-1, -1])] * 3
    )
    openvino.save_model(graph, out / "openvino.xml", compress_to_fp16=False)
    export_ctranslate2(model, source, out)
    (out / "exported").touch()


def export_onnx(source: Path, out: Path) -> None:
    """Write model.onnx, and fused.onnx by onnxruntime's optimizer.

    The optimizer knows the patterns of the tracing exporter and of eager attention. It must make one
    Attention node of every layer.
    """
    model = BertForSequenceClassification.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        Logits(model),
        tuple(torch.ones(2, 16, dtype=torch.int64) for _ in range(3)),
        out / "model.onnx",
        input_names=names,
        output_names=["logits"],
        dynamo=False,
        opset_version=18,
        dynamic_axes={name: {0: "rows", 1: "length"} for name in names},
    )
    config = model.config
    fused = optimizer.optimize_model(
        str(out / "model.onnx"),
        "bert",
        num_heads=config.num_attention_heads,
        hidden_size=config.hidden_size,
        optimization_options=FusionOptions("bert"),
    )
    fused_layers = fused.get_fused_operator_statistics()["Attention"]
    if fused_layers != config.num_hidden_layers:
        raise RuntimeError(f"onnxruntime fused {fused_layers} of {config.num_hidden_layers} attention layers")
    fused.save_model_to_file(str(out / "fused.onnx"))


def export_ctranslate2(model: BertForSequenceClassification, source: Path, out: Path) -> None:
    """Write the encoder with its pooler for CTranslate2, and the classifier for its caller."""
    encoder = out / "bert"
    model.bert.config.position_embedding_type = (
        "absolute"  # transformers 5 leaves this out, and the converter needs it
    )
    model.bert.save_pretrained(encoder)
    for file in TOKENIZER:
        shutil.copy(source / file, encoder)
    ctranslate2.converters.TransformersConverter(str(encoder)).convert(str(out / "ctranslate2"), force=True)
    shutil.rmtree(encoder)
    np.savez(
        out / "classifier.npz",
        weight=model.classifier.weight.detach().numpy(),
        bias=model.classifier.bias.detach().numpy(),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
