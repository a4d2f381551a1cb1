"""Tokenizers of the tokenizers library, written into checkpoints and loaded from them."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from headroom.models.checkpoint.tokenizer import PairTokenizer
from tests.checkpoints import VOCABULARY, write_checkpoint

SIZE = len(VOCABULARY)


def library_tokenizer(**normalizer: Any) -> Tokenizer:
    """The tokenizers library's own BERT pipeline, as a tokenizer.json holds it."""
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(VOCABULARY[:5])
    return tokenizer


def write(directory: Path, tokenizer: Tokenizer, config: dict[str, Any] | None = None) -> Path:
    write_checkpoint(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").unlink()
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory


def write_vocab_txt(directory: Path) -> None:
    """Replace tokenizer.json by the older file."""
    (directory / "tokenizer.json").unlink()
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")


def load(directory: Path, max_tokens: int = 64, vocab_size: int = SIZE) -> PairTokenizer:
    return PairTokenizer.load(directory, max_tokens=max_tokens, vocab_size=vocab_size)
