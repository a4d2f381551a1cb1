"""Cuts the base's vocabulary to the pieces that English, Korean, Chinese and Latin script need.

Pieces are counted over wordfreq's word lists (Speer 2022) and over the texts to train on. A text whose
pieces are all kept is split as before: Unigram takes the likeliest split, and removing pieces that are not
in it leaves it the likeliest (Kudo 2018).
"""

import collections
import unicodedata
from collections.abc import Callable, Mapping, Sequence

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

SPECIAL = ("<s>", "<pad>", "</s>", "<unk>")
LATIN_LANGUAGES = tuple("de es fr it nl pt pl sv da nb fi cs ro hu tr id ca vi".split())
SHARES = {"en": 1.0, "zh": 3.0, **dict.fromkeys(LATIN_LANGUAGES, 0.02)}
"""What one word of a language counts, times its frequency. Every piece with Hangul is kept uncounted."""

WORDS = {"en": 350_000, "zh": 350_000}
"""How many words of a language's list are read, the most frequent first; of the others 40,000."""

_HAN = "\u7684"  # a character before a word, so that the word does not begin the text

_CONTROL = "[\\x01-\\x08\\x0b\\x0e-\\x1f\\x7f\\x8f\\x9f]"
_SPACE = "[\\s\\u1680\\u200b-\\u200f\\u2028\\u2029\\u2581\\ufeff\\ufffd]+"


def tokenizer_of(pieces: Sequence[tuple[str, float]]) -> Tokenizer:
    """Return the base's tokenizer over some of its pieces, which begin with SPECIAL.

    Pairs are `<s> q </s></s> t </s>`, as XLM-R writes them.
    """
    tokenizer = Tokenizer(Unigram(list(pieces), unk_id=SPECIAL.index("<unk>")))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(Regex(_CONTROL), ""),
            normalizers.NFKC(),
            normalizers.Replace(Regex(_SPACE), " "),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def counted_words(tokenizer: Tokenizer, words: Mapping[str, Mapping[str, float]]) -> dict[int, float]:
    """Return how much each piece is used. words: by language, the frequency of each word."""
    counts: collections.defaultdict[int, float] = collections.defaultdict(float)
    for language, frequencies in words.items():
        for form, weight in _FORMS.get(language, _FORMS["latin"]).items():
            encodings = tokenizer.encode_batch_fast(
                [form(word) for word in frequencies], add_special_tokens=False
            )
            for encoding, frequency in zip(encodings, frequencies.values(), strict=True):
                for piece in encoding.ids:
                    counts[piece] += SHARES[language] * weight * frequency
    return counts


def counted_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> collections.Counter[int]:
    """Return how often each piece is used in the texts."""
    counts: collections.Counter[int] = collections.Counter()
    for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False):
        counts.update(encoding.ids)
    return counts


def kept_pieces(pieces: Sequence[tuple[str, float]], counts: Mapping[int, float], *, limit: int) -> list[int]:
    """Return the ids to keep, ascending: special pieces, single characters, then the most used ones."""
    kept = list(range(len(SPECIAL)))
    others = range(len(SPECIAL), len(pieces))
    kept += [i for i in others if _is_basic(pieces[i][0])]
    basic = set(kept)
    used = sorted((i for i in counts if i not in basic), key=lambda i: (-counts[i], i))
    return sorted(kept + used[: limit - len(kept)])


def _is_basic(piece: str) -> bool:
    """Say whether a piece has Hangul, or is the mark of a word's beginning, or one character of
    Latin script, a digit, or a common sign."""
    if any("\uac00" <= character <= "\ud7a3" for character in piece):
        return True
    character = piece.removeprefix("\u2581")
    if len(character) != 1:
        return not character
    name = unicodedata.name(character, "")
    return ord(character) < 0x250 or name.startswith(("LATIN", "HANGUL")) or 0x2000 <= ord(character) < 0x2100


_FORMS: Mapping[str, Mapping[Callable[[str], str], float]] = {
    "latin": {str.lower: 0.6, str.title: 0.3, str.upper: 0.1},
    "zh": {str: 0.3, lambda word: f"{_HAN}{word}": 0.7},
}
"""How words stand in text: capitalised or not; in Chinese also within a run without a space."""
