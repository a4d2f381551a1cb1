"""Learns a lower-case WordPiece vocabulary from the training text."""

import json
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.decoders import WordPiece as WordPieceDecoder
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))

_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
_UNITS_AND_SIGNS = "!\"#$%&'()*+,-./:;<=>?@[]^_`{|}~£€¥¢©®™°±²³µ×÷½¼¾⅓⅔⅛″′“”‘’–—…•·№§"
_OTHER_SCRIPTS = ("αβγδεζηθικλμνξοπρστυφχψως", "абвгдежзийклмнопрстуфхцчшщъыьэюя")


def alphabet() -> list[str]:
    """Return the characters that every vocabulary holds: Latin, digits, units, Greek, Cyrillic, Hangul jamo.

    The normaliser decomposes a Hangul syllable into jamo, so 67 jamo spell all of Korean.
    """
    syllables = (chr(code) for code in range(0xAC00, 0xD7A4))
    jamo = sorted({part for syllable in syllables for part in unicodedata.normalize("NFD", syllable)})
    return [*_LETTERS, *_UNITS_AND_SIGNS, *"".join(_OTHER_SCRIPTS), *jamo]


def train_tokenizer(lines: Iterable[str], *, size: int) -> Tokenizer:
    """Return a BERT tokenizer with `size` entries: lower case, accents stripped, punctuation split off."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(lowercase=True, strip_accents=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.decoder = WordPieceDecoder()
    trainer = WordPieceTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=alphabet(),
        limit_alphabet=600,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_spelled_alphabet(lines), trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    return tokenizer


def _with_spelled_alphabet(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines, then each letter inside a word, so that `##` pieces exist to spell unseen words."""
    yield from lines
    for character in alphabet():
        if character.isalnum():
            yield f"x{character}"


def save_tokenizer(tokenizer: Tokenizer, directory: Path, *, max_tokens: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and vocab.txt as transformers' BertTokenizer reads them.

    tokenizer.json comes last and whole: if the process is killed, it is not there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    by_id = sorted(vocabulary, key=vocabulary.__getitem__)
    (directory / "vocab.txt").write_text("".join(f"{token}\n" for token in by_id), encoding="utf-8")
    config = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "strip_accents": True,
        "tokenize_chinese_chars": True,
        "model_max_length": max_tokens,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    partial = directory / "tokenizer.partial"
    tokenizer.save(str(partial))
    partial.replace(directory / "tokenizer.json")
