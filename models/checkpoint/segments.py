"""Places where a long text may be cut without changing its tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from tokenizers import Tokenizer, normalizers, pre_tokenizers

BERT_CUT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""ASCII whitespace and punctuation end a word for BertPreTokenizer, and never combine with what precedes."""

_SPACE_CUT = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")
"""A single space belongs to the word after it, for GPT-2's pattern and for Metaspace."""


def cut_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return where a text may be cut without changing its tokens; None if that is not known."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        return BERT_CUT if isinstance(splitter, pre_tokenizers.BertPreTokenizer) else None
    plain = normalizer is None or isinstance(normalizer, normalizers.Precompiled)
    if plain and isinstance(splitter, pre_tokenizers.ByteLevel):
        return _SPACE_CUT
    if plain and isinstance(splitter, pre_tokenizers.Sequence):
        parts = json.loads(splitter.__getstate__())["pretokenizers"]
        if [part["type"] for part in parts] == ["WhitespaceSplit", "Metaspace"]:
            return _SPACE_CUT
    return None


def word_segments(text: str, characters: int, cut: re.Pattern[str] = BERT_CUT) -> Iterator[str]:
    """Cut a text into segments of about `characters`, only before what `cut` matches: where a word ends."""
    start = 0
    while start < len(text):
        end = cut.search(text, start + characters)
        stop = end.start() if end else len(text)
        yield text[start:stop]
        start = stop
