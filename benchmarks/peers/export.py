"""`python -m benchmarks.peers.export MODEL OUT`: a transformers checkpoint in the formats of other engines.

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
    """The model with its inputs by position and only its logits out."""

    def __init__(self, model: BertForSequenceClassification) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """(rows, length) int64 each → (rows, labels) float32."""
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).logits


def main(source: Path, out: Path) -> None:
    """Writes everything, and last the file `exported`."""
    out.mkdir(parents=True, exist_ok=True)
    model = BertForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    # Without our calibration temperature, which no other engine would apply: the scores are compared.
    vars(model.config).pop("headroom", None)
    model.save_pretrained(out)
    for file in TOKENIZER:
        shutil.copy(source / file, out)
    export_onnx(source, out)
    example = tuple(torch.ones(2, 16, dtype=torch.int64) for _ in range(3))
    # From the torch module, not by way of ONNX: so attention stays one node, for which OpenVINO has a kernel.
    graph = openvino.convert_model(
        Logits(model), example_input=example, input=[openvino.PartialShape([-1, -1])] * 3
    )
    openvino.save_model(graph, out / "openvino.xml", compress_to_fp16=False)
    export_ctranslate2(model, source, out)
    (out / "exported").touch()


def export_onnx(source: Path, out: Path) -> None:
    """model.onnx, and fused.onnx by onnxruntime's own optimizer.

    The tracing exporter and attention written out are what its optimizer knows the patterns of: it must make
    one Attention node of every layer.
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
    found = fused.get_fused_operator_statistics()["Attention"]
    if found != config.num_hidden_layers:
        raise RuntimeError(f"onnxruntime fused {found} of {config.num_hidden_layers} attention layers")
    fused.save_model_to_file(str(out / "fused.onnx"))


def export_ctranslate2(model: BertForSequenceClassification, source: Path, out: Path) -> None:
    """The encoder with its pooler, which is what CTranslate2 has, and the classifier for the caller."""
    encoder = out / "bert"
    model.bert.config.position_embedding_type = (
        "absolute"  # transformers 5 no longer says so; the converter asks
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
