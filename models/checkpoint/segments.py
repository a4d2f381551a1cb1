"""Places where a long text may be cut without changing its tokens."""

from __future__ import annotations

import json
import re

from tokenizers import Tokenizer, normalizers, pre_tokenizers

BERT_CUT = re.compile(r"[\t\n\r !-/:-@\[-`{-~]")
"""ASCII whitespace and punctuation end a word for BertPreTokenizer, and never combine with what precedes."""

CHINESE = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Chinese characters, for a character class; in the last range others, too."""

BERT_CHINESE_CUT = re.compile(
    BERT_CUT.pattern[:-1] + "\u3000-\u3002\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0002a6df]"
)
"""For a BertNormalizer that makes each Chinese character a word. Those of Japanese sentence marks, too."""

_SPACE_CUT = re.compile(r"(?<=[A-Za-z0-9]) (?=[A-Za-z0-9])")
"""A single space belongs to the word after it, for GPT-2's pattern and for Metaspace."""


def cut_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return where a text may be cut without changing its tokens; None if that is not known."""
    normalizer, splitter = tokenizer.normalizer, tokenizer.pre_tokenizer
    if isinstance(normalizer, normalizers.BertNormalizer):
        if not isinstance(splitter, pre_tokenizers.BertPreTokenizer):
            return None
        return BERT_CHINESE_CUT if normalizer.handle_chinese_chars else BERT_CUT
    plain = normalizer is None or isinstance(normalizer, normalizers.Precompiled)
    if plain and isinstance(splitter, pre_tokenizers.ByteLevel):
        return _SPACE_CUT
    if plain and isinstance(splitter, pre_tokenizers.Sequence):
        parts = json.loads(splitter.__getstate__())["pretokenizers"]
        if [part["type"] for part in parts] == ["WhitespaceSplit", "Metaspace"]:
            return _SPACE_CUT
    return None
