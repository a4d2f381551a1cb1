"""Writes small random ModernBERT checkpoints, as transformers and as sentence-transformers publish them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE
from torch import Tensor
from transformers import PreTrainedModel

from tests.checkpoints import SHAPE, WORDS, random_classifier

SPECIAL = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
VOCABULARY_SIZE = 320
LIKE_OTHERS = {"num_hidden_layers": 3, "max_position_embeddings": 64, "initializer_range": 0.2}
"""The shape of the other families' small checkpoints."""


def random_modernbert(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a transformers classifier whose weights are large enough for heads to matter."""
    options: dict[str, Any] = {
        "vocab_size": VOCABULARY_SIZE,
        **SHAPE,
        "num_hidden_layers": 4,
        "intermediate_size": 24,
        "max_position_embeddings": 128,
        "local_attention": 16,
        "initializer_range": 0.3,
        "attn_implementation": "eager",
        **{f"{name}_token_id": SPECIAL.index(f"[{name.upper()}]") for name in ("pad", "cls", "sep")},
        "bos_token_id": SPECIAL.index("[CLS]"),
        "eos_token_id": SPECIAL.index("[SEP]"),
    }
    model = random_classifier("modernbert", seed, **options | overrides)
    for name, parameter in model.named_parameters():  # norms of ones and zeros would hide a swapped one
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.2)
        elif parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model


def write_tokenizer(directory: Path) -> None:
    """ModernBERT's kind of tokenizer: NFC, byte-level BPE, [CLS] query [SEP] title [SEP]."""
    tokenizer = Tokenizer(BPE(unk_token=None))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(WORDS)] * 3, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, SPECIAL.index(name)) for name in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128}
    config |= {f"{name[1:-1].lower()}_token": name for name in SPECIAL}
    _write(directory / "tokenizer_config.json", config)


def write_modernbert(directory: Path, seed: int = 0, **overrides: Any) -> Path:
    random_modernbert(seed, **overrides).save_pretrained(directory)
    write_tokenizer(directory)
    return directory


def write_ettin(
    directory: Path,
    seed: int = 0,
    *,
    dense: str = "torch.nn.modules.activation.GELU",
    pooling: dict[str, Any] | None = None,
    **overrides: Any,
) -> tuple[Path, PreTrainedModel, Tensor]:
    """A directory as cross-encoder/ettin-reranker-* are: the encoder alone in the root, the classifier in
    modules. Returns it, a model that has the same weights, and the bias of LayerNorm, which that has not."""
    model = random_modernbert(seed, num_labels=1, **overrides)
    hidden, (norm_bias, last_bias) = model.config.hidden_size, (torch.randn(size) for size in (32, 1))
    assert hidden == 32
    model.classifier.bias.data = last_bias
    model.model.save_pretrained(directory)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    for name in ("id2label", "label2id"):
        config.pop(name, None)
    _write(directory / "config.json", config)
    write_tokenizer(directory)
    base = "sentence_transformers.base.modules"
    own = "sentence_transformers.sentence_transformer.modules"
    kinds = {
        "": f"{base}.transformer.Transformer",
        "1_Pooling": f"{own}.pooling.Pooling",
        "2_Dense": f"{base}.dense.Dense",
        "3_LayerNorm": f"{own}.layer_norm.LayerNorm",
        "4_Dense": f"{base}.dense.Dense",
    }
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds.items())
    ]
    (directory / "modules.json").write_text(json.dumps(modules), encoding="utf-8")
    _write(
        directory / "config_sentence_transformers.json",
        {
            "__version__": {"sentence_transformers": "5.5.0"},
            "activation_fn": "torch.nn.modules.linear.Identity",
            "default_prompt_name": None,
            "model_type": "CrossEncoder",
            "prompts": {},
        },
    )
    of_dense = {"in_features": hidden, "module_input_name": "sentence_embedding"}
    head = model.head
    parts: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
        "1_Pooling": (pooling or {"embedding_dimension": hidden, "pooling_mode": "cls"}, {}),
        "2_Dense": (
            of_dense | {"out_features": hidden, "bias": False, "activation_function": dense},
            {"linear.weight": head.dense.weight.data},
        ),
        "3_LayerNorm": (
            {"dimension": hidden},
            {"norm.weight": head.norm.weight.data, "norm.bias": norm_bias},
        ),
        "4_Dense": (
            of_dense
            | {
                "out_features": 1,
                "bias": True,
                "activation_function": "torch.nn.modules.linear.Identity",
                "module_output_name": "scores",
            },
            {"linear.weight": model.classifier.weight.data, "linear.bias": last_bias},
        ),
    }
    for folder, (config, tensors) in parts.items():
        (directory / folder).mkdir()
        _write(directory / folder / "config.json", config)
        if tensors:
            save_file(tensors, directory / folder / "model.safetensors")
    return directory, model, norm_bias


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")
