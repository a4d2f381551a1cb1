"""Small random decoders, with tokenizers of their kinds."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedModel

from tests.checkpoints import WORDS

FAMILIES = ("qwen3", "qwen2", "gemma")
SHAPE = {
    "vocab_size": 500,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1_000,
    "pad_token_id": 0,
}
HEAD_SIZE = {"qwen3": 32, "gemma": 16}
"""Not d_model / h, as in the published models."""

SHORT = "Q: {{ messages[0].content }}\nD: {{ messages[1].content }}\n->"
QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = [*WORDS, *(f"{a} {b}?\n{a}-{b}s: 12" for a in WORDS for b in WORDS[:6]), "Résumé 中文\n\n"] * 4


def model_of(family: str, seed: int = 0, *, causal: bool = False, **shape: Any) -> PreTrainedModel:
    """Return a transformers model whose weights are large enough for heads to matter.

    causal: a language model; else a classifier of `num_labels` labels, one by default.
    """
    own = {"head_dim": HEAD_SIZE[family]} if family in HEAD_SIZE else {}
    labels = {} if causal else {"num_labels": shape.pop("num_labels", 1)}
    config = AutoConfig.for_model(family, **SHAPE | own | labels | shape)
    kind = AutoModelForCausalLM if causal else AutoModelForSequenceClassification
    model = kind.from_config(config).eval()
    config.architectures = [type(model).__name__]
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, part in model.named_parameters():
            part.normal_(std=0.3 if part.ndim == 1 else 1.5 * part.shape[-1] ** -0.5, generator=generator)
            if part.ndim == 1 and name.endswith("norm.weight") and family != "gemma":
                part += 1
    return model


@cache
def qwen_tokenizer() -> str:
    """A small tokenizer.json of Qwen's kind."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=460, initial_alphabet=alphabet, special_tokens=QWEN_TOKENS, show_progress=False
    )
    tokenizer.train_from_iterator([*TEXT, *["yes", "no"] * 99], trainer)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in ("<think>", "</think>")])
    return str(tokenizer.to_str())


@cache
def gemma_tokenizer() -> str:
    """A small tokenizer.json of Gemma's kind: BPE of whole texts, with spaces as letters. As in Gemma's, no
    piece goes on after a space or a line's end, because sentencepiece learnt them within words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    words = [
        pre_tokenizers.Split("▁", "merged_with_next"),
        pre_tokenizers.Split(Regex("\n+|[^\\w▁]"), "isolated"),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(words)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "Yes"]
    trainer = trainers.BpeTrainer(vocab_size=490, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([*TEXT, "A: Yes\nB: No"], trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    raw = json.loads(tokenizer.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["id"] < 4]
    return json.dumps(raw)


def write_tokenizer(directory: Path, family: str) -> None:
    """Write the tokenizer of a family beside a config.json."""
    text = gemma_tokenizer() if family == "gemma" else qwen_tokenizer()
    name = "GemmaTokenizer" if family == "gemma" else "Qwen2Tokenizer"
    options: dict[str, Any] = {"tokenizer_class": name, "model_max_length": 1_000}
    (directory / "tokenizer.json").write_text(text, encoding="utf-8")
    (directory / "tokenizer_config.json").write_text(json.dumps(options), encoding="utf-8")


def write_decoder(
    directory: Path,
    family: str,
    seed: int = 0,
    *,
    causal: bool = True,
    template: str | None = None,
    **shape: Any,
) -> Path:
    """Write a checkpoint of a family as transformers does; by default a language model.

    template: a chat template; SHORT saves time. None: the published prompt.
    """
    model_of(family, seed, causal=causal, **shape).save_pretrained(directory)
    write_tokenizer(directory, family)
    if template is not None:
        (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory
