"""Says where the ids of a text are those of its words, one after the other."""

import json
import re
import unicodedata
from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer

from headroom.models.files import Json

_BY_CHARACTER = {
    "BertNormalizer",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Nmt",
    "Precompiled",
    "Strip",
    "StripAccents",
}
"""Kinds of normalizers that read a character, or one with its marks, whatever the other characters are."""
_are_characters = re.compile(r"\[[^\[\]]*\]\+?| \{2,\}").fullmatch
"""Match a pattern of one character, or of a run of such."""
_METASPACE = {"type": "Metaspace", "replacement": "▁", "split": True}
"""SentencePiece's splitter: a space becomes the mark of the word after it."""
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Qwen's words. GPT-2's is in the library."""
_COMPOSE = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
"""Kinds of normalizers that change nothing before a space and nothing of the space."""
_JOIN_A_SPACE_BEFORE = {"Mn", "Mc", "Me", "Sk", "Cf", "Cn", "Co"}
"""Categories of characters that may be one grapheme with a space before them: marks, skin tones, joiners."""
_JOIN_A_SPACE_AFTER = {"Cf", "Cn"}
_LETTERS_THAT_JOIN_BEFORE = frozenset("\u0e33\u0eb3\uff9e\uff9f")
_LETTERS_THAT_JOIN_AFTER = frozenset(
    "\u0d4e\U000111c2\U000111c3\U000113d1\U0001193f\U00011941\U00011a3a\U00011d46\U00011f02"
) | {chr(code) for code in range(0x11A84, 0x11A8A)}
"""Letters that do so, too: those of Grapheme_Cluster_Break SpacingMark, Extend and Prepend in Unicode 17."""


words_apart = methodcaller("split", " ")
"""Return what stands between the spaces of a text."""
words_with_spaces = re.compile(r"(?<=\S)(?= \S)").split
"""Return the words of a text, each with the single space before it; other white space stays within one."""


Way = Literal["BERT", "XLM-RoBERTa", "SentencePiece", "bytes"]
"""A way in which a tokenizer reads a text word by word; `way_of_words` says what each is."""


def way_of_words(tokenizer: Tokenizer) -> Way | None:
    """Return in which way a tokenizer reads a text word by word; None: it reads across spaces.

    "BERT", "XLM-RoBERTa": it splits at each space, and its normalizer changes nothing across one.
    "SentencePiece": so it does where each word stands alone (`stands_alone`). "bytes": it splits before each
    single space, which is a part of the word after it (`words_with_spaces`).
    """
    normalizers = _steps(tokenizer.normalizer)
    splitters = _steps(tokenizer.pre_tokenizer)
    added = tokenizer.get_added_tokens_decoder().values()
    kinds = {step["type"] for step in normalizers}
    if _splits_before_spaces(splitters):
        return "bytes" if kinds <= _COMPOSE and all(map(_is_found_in_words, added)) else None
    keeps = tokenizer.normalizer is None or tokenizer.normalizer.normalize_str("a b") == "a b"
    are_special = all(token.special for token in added)
    if not keeps or not are_special or not all(map(_reads_characters, normalizers)):
        return None
    if splitters == [{"type": "BertPreTokenizer"}]:
        return None if "Precompiled" in kinds else "BERT"
    if not splitters or not _METASPACE.items() <= splitters[-1].items():
        return None
    scheme = splitters[-1].get("prepend_scheme")
    if splitters[:-1] == [{"type": "WhitespaceSplit"}] and scheme == "always":
        return "SentencePiece" if "Precompiled" in kinds else "XLM-RoBERTa"
    return "SentencePiece" if len(splitters) == 1 and scheme in ("always", "first") else None


def _splits_before_spaces(splitters: Sequence[Json]) -> bool:
    """Return whether GPT-2's or Qwen's pattern finds the words."""
    if not splitters or splitters[-1]["type"] != "ByteLevel":
        return False
    if splitters[-1].get("use_regex", True):
        return len(splitters) == 1
    pattern = {"type": "Split", "pattern": {"Regex": _QWEN}, "behavior": "Isolated", "invert": False}
    return splitters[:-1] == [pattern]


def _is_found_in_words(token: AddedToken) -> bool:
    """Return whether an added token is found in a text where it is found in one of `words_with_spaces`."""
    if token.special:  # it is read as text
        return True
    reaches_out = token.lstrip or token.rstrip or token.single_word
    return not reaches_out and len(words_with_spaces(f".{token.content}.")) == 1


def _steps(part: Any) -> list[Json]:
    """Return the steps of a normalizer or splitter of the library, as tokenizer.json has them."""
    if part is None:
        return []
    state: Json = json.loads(part.__getstate__())
    steps: list[Json] = state.get("normalizers") or state.get("pretokenizers") or [state]
    return steps


def _reads_characters(step: Json) -> bool:
    """Return whether a step of a normalizer reads a character, or a run of some, whatever the others are."""
    if step["type"] == "Replace":
        return bool(_are_characters(step["pattern"].get("Regex", "")))
    return step["type"] in _BY_CHARACTER


def stands_alone(word: str, normal: str) -> bool:
    """Return whether SentencePiece's steps read a word alike with a space beside it and without.

    Its charsmap ("Precompiled") looks whole graphemes up, which a space may be a part of. Its splitter marks
    a space, wherever the normalizer has put it, and keeps one mark of a run, or a mark alone. normal: the
    word as the normalizer gives it to the splitter.
    """
    ends = {text[at] for text in (word, normal) if text for at in (0, -1)}
    if not normal or any(end.isspace() or end == "▁" for end in ends):
        return False
    first = word[0]
    last = word[-1]
    joins_before = unicodedata.category(first) in _JOIN_A_SPACE_BEFORE or first in _LETTERS_THAT_JOIN_BEFORE
    joins_after = unicodedata.category(last) in _JOIN_A_SPACE_AFTER or last in _LETTERS_THAT_JOIN_AFTER
    return not (joins_before or joins_after)
