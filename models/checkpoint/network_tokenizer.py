"""Loads the tokenizer of a checkpoint for its network; refuses what transformers would score otherwise."""

from __future__ import annotations

from pathlib import Path

from models.checkpoint.config import ModelConfig
from models.checkpoint.tokenizer import PairTokenizer
from models.checkpoint.tokenizer_options import check_types, read_window
from models.errors import UnsupportedCheckpoint


def load_tokenizer(directory: Path, config: ModelConfig, *, cache_size: int = 65_536) -> PairTokenizer:
    """Load a checkpoint's tokenizer, with the window that its files and its network allow.

    Raises UnsupportedCheckpoint, which names the file and says what is wrong with it.
    """
    tokenizer = PairTokenizer.load(
        directory,
        max_tokens=read_window(directory, config),
        vocab_size=config.vocab_size,
        cache_size=cache_size,
    )
    if config.type_vocab_size > 1 and tokenizer.template.two_segments:
        check_types(directory)
    if config.skipped_positions:
        _check_padding(config.skipped_positions - 1, tokenizer)
    return tokenizer


def _check_padding(pad: int, tokenizer: PairTokenizer) -> None:
    """Refuse a padding token, after which positions begin, that occurs in the sequences themselves.

    transformers gives such a token no position of its own.
    """
    if tokenizer.may_occur(pad):
        raise UnsupportedCheckpoint(
            f"config.json: pad_token_id is {pad}, which the tokenizer puts into pairs or makes of a text: it "
            "would need positions that leave this token out"
        )
