"""`python -m benchmarks.peers.export MODEL OUT` converts a transformers checkpoint for other engines.

OUT gets the checkpoint's own files, model.onnx, fused.onnx and int8.onnx, openvino.xml, ctranslate2/ and
classifier.npz. For ModernBERT there is no fused.onnx or int8.onnx, because onnxruntime's optimizer has no
pattern for it, and nothing for CTranslate2, which cannot convert it.
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
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers import optimizer
from onnxruntime.transformers.fusion_options import FusionOptions
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel

from benchmarks.peers.batch import inputs_of

TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")


class Logits(torch.nn.Module):
    """The model with positional inputs, and the logits as its only output."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return logits (rows, labels) float32 of inputs (rows, length) int64."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **types)
        logits: torch.Tensor = output.logits
        return logits


def main(source: Path, out: Path) -> None:
    """Write all formats, and last the file `exported`."""
    out.mkdir(parents=True, exist_ok=True)
    model = AutoModelForSequenceClassification.from_pretrained(source, dtype=torch.float32).eval()
    # Without our calibration temperature, which no other engine applies, so that scores can be compared.
    vars(model.config).pop("headroom", None)
    model.save_pretrained(out)
    copy_tokenizer(source, out)
    export_onnx(source, out)
    inputs = inputs_of(model)
    # From torch instead of ONNX, so that attention stays one node, for which OpenVINO has a kernel.
    graph = openvino.convert_model(
        Logits(model), example_input=example(inputs), input=[openvino.PartialShape([-1, -1])] * len(inputs)
    )
    openvino.save_model(graph, out / "openvino.xml", compress_to_fp16=False)
    if model.config.model_type != "modernbert":
        export_ctranslate2(model, source, out)
    (out / "exported").touch()


def example(names: list[str]) -> tuple[torch.Tensor, ...]:
    """Return inputs to trace a model with; every vocabulary has a word 5, and every model a token type 0."""
    values = {"input_ids": 5, "attention_mask": 1, "token_type_ids": 0}
    return tuple(torch.full((2, 16), values[name]) for name in names)


def export_onnx(source: Path, out: Path) -> None:
    """Write model.onnx, and fused.onnx by onnxruntime's optimizer.

    The optimizer knows the patterns of the tracing exporter and of eager attention. It must make one
    Attention node of every layer.
    """
    model = AutoModelForSequenceClassification.from_pretrained(
        source, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    names = inputs_of(model)
    torch.onnx.export(
        Logits(model),
        example(names),
        out / "model.onnx",
        input_names=names,
        output_names=["logits"],
        dynamo=False,
        opset_version=18,
        dynamic_axes={name: {0: "rows", 1: "length"} for name in names},
    )
    config = model.config
    if config.model_type == "modernbert":
        return
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
    # With 7 bits a weight, as its documentation advises: without VNNI, its 16-bit sums overflow with 8.
    quantize_dynamic(
        out / "fused.onnx",
        out / "int8.onnx",
        per_channel=True,
        reduce_range=True,
        weight_type=QuantType.QInt8,
        extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},  # it cannot infer those of fused nodes
    )


def export_ctranslate2(model: PreTrainedModel, source: Path, out: Path) -> None:
    """Write the encoder with its pooler for CTranslate2, and the classifier for its caller."""
    encoder, last = model.base_model, model.classifier
    if model.config.model_type == "roberta":
        # The classifier's dense layer and tanh are what the converter knows as RobertaModel's pooler.
        encoder = AutoModel.from_config(model.config)
        encoder.load_state_dict(model.base_model.state_dict(), strict=False)
        encoder.pooler.dense, last = model.classifier.dense, model.classifier.out_proj
    # transformers 5 leaves this out, and the converter needs it.
    encoder.config.position_embedding_type = "absolute"
    directory = out / "encoder"
    encoder.save_pretrained(directory)
    copy_tokenizer(source, directory)
    ctranslate2.converters.TransformersConverter(str(directory)).convert(str(out / "ctranslate2"), force=True)
    shutil.rmtree(directory)
    np.savez(out / "classifier.npz", weight=last.weight.detach().numpy(), bias=last.bias.detach().numpy())


def copy_tokenizer(source: Path, target: Path) -> None:
    """Copy the tokenizer's files that the checkpoint has."""
    for file in TOKENIZER:
        if (source / file).exists():
            shutil.copy(source / file, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
