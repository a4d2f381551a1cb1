"""Reads a checkpoint's tokenizer, WordPiece, byte-level BPE or Unigram, as transformers would; finds where
words begin among its pieces, and how they are spelled.

A tokenizer.json is read here. Older files, and tokens that only other files declare, are left to
transformers' AutoTokenizer, which takes seconds to import.

The tokens of a pair's structure, and those for padding, masks and unknown words, are text if they occur in a
text, so nobody can forge a pair. All other added tokens, such as a checkpoint's [TITLE], are input: in a text
they become their own id, as in transformers.
"""

import codecs
import json
import re
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from tokenizers import Tokenizer, decoders, normalizers
from tokenizers.models import BPE, Unigram, WordPiece

from headroom.models.checkpoint.fields import Fields, check, read_json_if_there, reading, window
from headroom.models.checkpoint.files import PIECES
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.checkpoint.modules import module_window
from headroom.models.checkpoint.sandbox import run
from headroom.models.errors import UnsupportedCheckpoint, one_line
from headroom.models.files import Json

FILE = "tokenizer_config.json"

SPECIAL = "\ufdd0"
"""Precedes the structural tokens in a Unigram vocabulary. Unigram would match a literal "</s>" in a text, and
no text holds this code point, which is no character."""

_STRUCTURE = set("[CLS] [SEP] [PAD] [MASK] [UNK] <s> </s> <pad> <mask> <unk>".split())
_ROLES = [f"{role}_token" for role in "cls sep pad mask unk bos eos".split()]
"""The options that name structural tokens which are spelled otherwise."""

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
"""How an added token is found in a text."""

_DEFAULT_CLASS = {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}
_BYTE_LEVEL = {"Roberta", "GPT2", "Qwen2"}
_METASPACE = {"XLMRoberta": "never", "Camembert": "never", "DebertaV2": "first"}
"""The classes whose pre-tokenizer is Metaspace, and its `prepend_scheme` without a prefix space."""
_BERT_TOKENIZERS = {"Bert", "DistilBert", "Electra"}
_PASSES_TYPES = {
    **dict.fromkeys(("Bert", "Electra", "DebertaV2"), True),
    **dict.fromkeys(("Roberta", "XLMRoberta", "Camembert", "DistilBert"), False),
}
"""Whether transformers passes the token types of a tokenizer of this class to the network."""


def read_tokenizer(directory: Path, prompt: str | None = None) -> Tokenizer:
    """Read a checkpoint's tokenizer. Raises UnsupportedCheckpoint, which names what is wrong with it. prompt:
    the fixed text of a decoder's prompt; its tokens are structural, and all that are special."""
    has_vocabulary = any((directory / name).is_file() for name in PIECES.split())
    check(has_vocabulary, f"{directory} has neither tokenizer.json nor vocab.txt")
    options = read_options(directory)
    file = directory / "tokenizer.json"
    run(directory)
    tokenizer = _from_json(file, options, prompt) if file.is_file() else None
    if tokenizer is None or _declares_more(directory, options, tokenizer):
        tokenizer = _by_transformers(directory, options, prompt)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def read_options(directory: Path) -> Json:
    """Return the content of tokenizer_config.json, empty if there is none.

    Without added_tokens_decoder in it, special_tokens_map.json counts too, as in transformers.
    Raises UnsupportedCheckpoint if a file is not a JSON object or asks for truncation on the left.
    """
    file = directory / FILE
    options = read_json_if_there(file)
    if "added_tokens_decoder" not in options:
        options |= read_json_if_there(directory / "special_tokens_map.json")
    side = options.get("truncation_side", "right")
    check(side == "right", f"{file}: truncation_side is {side!r}; only 'right' is supported")
    return options


def read_window(directory: Path, config: ModelConfig) -> int:
    """Return the tokens of the longest sequence: the files' limit, or the network's positions if fewer.

    Sequences are truncated where sentence-transformers and transformers do it: at max_seq_length of
    sentence_bert_config.json, else at model_max_length of tokenizer_config.json (max_len in old releases).
    """
    length = module_window(directory)
    if length is None:
        options = read_options(directory)
        name = "model_max_length" if "model_max_length" in options else "max_len"
        length = window(options.get(name), directory / FILE, name)
    return config.max_positions if length is None else min(length, config.max_positions)


def passes_types(directory: Path) -> bool | None:
    """Return whether transformers passes the post-processor's token types to the network.

    None if its releases differ: without model_input_names, transformers 4 passes those of a tokenizer of a
    general class, transformers 5 does not.
    """
    options = read_options(directory)
    names = options.get("model_input_names")
    return _PASSES_TYPES.get(_class_of(directory, options)) if names is None else "token_type_ids" in names


def unknown_id(tokenizer: Tokenizer) -> int:
    """Return the id of the unknown token, −1 for a tokenizer without one. Raises UnsupportedCheckpoint for
    another kind of tokenizer than WordPiece, BPE and Unigram."""
    model = tokenizer.model
    if isinstance(model, Unigram):
        with suppress(Exception):  # the library raises Exception itself: there is no unknown token
            (piece,) = model.tokenize(SPECIAL)  # which no vocabulary has; several pieces are bytes
            return int(piece.id)
        return -1
    kind = type(model).__name__
    check(
        isinstance(model, BPE | WordPiece), f"the tokenizer is {kind}, not BERT's WordPiece, BPE or Unigram"
    )
    unknown = tokenizer.token_to_id(model.unk_token or "")
    return -1 if unknown is None else int(unknown)


def _class_of(directory: Path, options: Fields) -> str:
    """Return the class of the tokenizer, Bert for BertTokenizerFast, found as AutoTokenizer finds it:
    tokenizer_config.json names it, or else config.json does, or its model_type tells."""
    config = read_json_if_there(directory / "config.json")
    name = options.get("tokenizer_class") or config.get("tokenizer_class")
    return str(name or _DEFAULT_CLASS.get(str(config.get("model_type")), "Bert")).partition("Tokenizer")[0]


def _from_json(file: Path, options: Fields, prompt: str | None) -> Tokenizer:
    """Read tokenizer.json. tokenizer_config.json overrules some of it, as in transformers.

    transformers 5 takes the normalizer of a BertTokenizer from tokenizer_config.json, whatever tokenizer.json
    holds. Here another normalizer than BERT's stays, because the checkpoint was trained with it.
    """
    class_name = _class_of(file.parent, options)
    with reading(f"{file} with {FILE}"):
        raw = json.loads(file.read_text(encoding="utf-8"))
        _set_prefix_space(raw.get("pre_tokenizer") or {}, class_name, options)
        tokenizer = _parsed(raw, options, prompt)
        if class_name in _BERT_TOKENIZERS and isinstance(tokenizer.normalizer, normalizers.BertNormalizer):
            tokenizer.normalizer = normalizers.BertNormalizer(
                clean_text=True,
                handle_chinese_chars=options.get("tokenize_chinese_chars", True),
                strip_accents=options.get("strip_accents"),
                lowercase=options.get("do_lower_case", True),
            )
    side = (tokenizer.truncation or {}).get("direction", "right")
    is_right = "truncation_side" in options or side == "right"
    check(is_right, f"{file}: truncation.direction is {side!r}; only 'right' is supported")
    return tokenizer


def _set_prefix_space(splitter: Json, class_name: str, options: Fields) -> None:
    """Let a pre-tokenizer add a space before a text as transformers 5 does: for these classes
    tokenizer_config.json decides, for others tokenizer.json."""
    for part in splitter.get("pretokenizers", ()):
        _set_prefix_space(part, class_name, options)
    if splitter.get("type") == "ByteLevel" and class_name in _BYTE_LEVEL:
        splitter["add_prefix_space"] = bool(options.get("add_prefix_space"))
    if splitter.get("type") == "Metaspace" and class_name in _METASPACE:
        splitter.pop("add_prefix_space", None)  # the older field of the same meaning
        adds_space = options.get("add_prefix_space", True)
        splitter["prepend_scheme"] = "always" if adds_space else _METASPACE[class_name]


def _parsed(raw: Json, options: Fields, prompt: str | None) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, in which the structural tokens alone are special. SPECIAL
    marks them in a Unigram vocabulary. Sampling, which is for training, is switched off."""
    raw["model"] |= {name: None for name in ("dropout", "alpha", "nbest_size") if name in raw["model"]}
    added = raw.get("added_tokens") or []
    vocabulary = raw["model"].get("vocab")
    declared = {token["content"]: token for token in (options.get("added_tokens_decoder") or {}).values()}
    for token in added:
        flags = declared.get(token["content"], {})
        token |= {name: flags[name] for name in _FLAGS if name in flags}
    structure = {*_structure(options), *_of_template(raw.get("post_processor") or {})}
    if prompt is not None:
        structure |= {one["content"] for one in added if one["special"] or one["content"] in prompt}
    special = {token["content"] for token in added} & structure
    mark = SPECIAL if isinstance(vocabulary, list) else ""  # a list is Unigram's
    for token in added:
        token["special"] = token["content"] in special
        token["content"] = f"{mark if token['special'] else ''}{token['content']}"
    if mark:
        raw["model"]["vocab"] = [
            [mark + piece if piece in special else piece, score] for piece, score in vocabulary
        ]
    return Tokenizer.from_str(json.dumps(raw))


def _structure(options: Fields) -> set[str]:
    """Return how the tokens that have a role are spelled."""
    return _STRUCTURE | {_content(options[role]) for role in _ROLES if options.get(role)}


def _of_template(processor: Fields) -> Iterator[str]:
    """Yield the special tokens that a post-processor puts into a pair."""
    for token in processor.get("special_tokens", {}).values():
        yield from token["tokens"]
    yield from (processor[part][0] for part in ("sep", "cls") if part in processor)
    for part in processor.get("processors", ()):
        yield from _of_template(part)


def _content(token: Any) -> str:
    """Return how a token is spelled that a file gives as a string or as an object."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def _declares_more(directory: Path, options: Fields, tokenizer: Tokenizer) -> bool:
    """Return whether tokenizer_config.json or added_tokens.json declare tokens that tokenizer.json lacks."""
    declared = [*read_json_if_there(directory / "added_tokens.json"), *_declared(options)]
    known = {token.content.removeprefix(SPECIAL) for token in tokenizer.get_added_tokens_decoder().values()}
    return not {_content(token) for token in declared} <= known.union(_structure(options))


def _declared(options: Fields) -> Iterator[Any]:
    """Yield the tokens that tokenizer_config.json declares, strings or objects."""
    for name in ("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"):
        tokens = options.get(name) or ()
        yield from tokens.values() if isinstance(tokens, dict) else tokens
    for name, token in options.items():
        if name.endswith("_token") and isinstance(token, str | dict):  # add_bos_token is a flag
            yield token


def _by_transformers(directory: Path, options: Fields, prompt: str | None) -> Tokenizer:
    """Return the tokenizer that transformers makes of a checkpoint's files."""
    from transformers import AutoTokenizer  # slow to import, and few checkpoints need it

    try:
        theirs = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        return _parsed(json.loads(theirs.backend_tokenizer.to_str()), options, prompt)
    except Exception as error:  # of many unrelated types
        reason = one_line(error)
        raise UnsupportedCheckpoint(
            f"{directory} has no complete tokenizer.json, and transformers cannot make one: {reason[:200]}. "
            "Write one where the packages sentencepiece and protobuf are installed: "
            f"AutoTokenizer.from_pretrained({str(directory)!r}).save_pretrained({str(directory)!r})"
        ) from None


class Piece(NamedTuple):
    """A token without the marks of its vocabulary."""

    text: str  # "" for a space alone
    spaced: bool  # a space precedes it
    begins: bool  # its first character is part of a word; punctuation is not
    ends: bool  # so is its last one

    def begins_word(self, before: Self) -> bool:
        """Return whether a word begins here, after the piece `before` of the same text. Words end at spaces
        and around punctuation, about as BERT's pre-tokenizer splits a text."""
        return self.spaced or (bool(before.text) and not (before.ends and self.begins))


def piece_reader(tokenizer: Tokenizer) -> Callable[[str], Piece]:
    """Return the function that makes a Piece of a token of this tokenizer."""
    model = tokenizer.model
    if isinstance(model, WordPiece):  # which itself says where words begin
        prefix = model.continuing_subword_prefix
        return lambda token: Piece(token.removeprefix(prefix), not token.startswith(prefix), True, True)
    if _is_byte_level(tokenizer):
        byte_level = decoders.ByteLevel()

        def of_bytes(token: str) -> Piece:
            text = byte_level.decode([token])
            return _piece(token if "\ufffd" in text else text, partial="\ufffd" in text)

        return of_bytes
    return lambda token: _piece(token.replace("▁", " "))


def byte_reader(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """Return the function that gives the UTF-8 of a token of this tokenizer, with a space before it if it
    begins a word. A token may be a part of a character."""
    model = tokenizer.model
    if isinstance(model, WordPiece):
        prefix = model.continuing_subword_prefix

        def of_word_piece(token: str) -> bytes:
            continues = token.startswith(prefix) and token != prefix
            return (token.removeprefix(prefix) if continues else f" {token}").encode()

        return of_word_piece
    if _is_byte_level(tokenizer):
        return _bytes_of_byte_level
    return _bytes_of_metaspace


def spelled(tokens: Iterable[tuple[bytes, Hashable]]) -> list[str]:
    """Return what each token spells; of tokens that share a character, the first has it and the others "".

    tokens: the UTF-8 of each, and the part of the pair that it is in: no character is in two parts. Bytes
    that are no whole character are spelled U+FFFD.
    """
    texts: list[str] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    first = 0  # the token that has the text of the character that is read
    previous: Hashable = None
    for token, part in tokens:
        is_whole = not decoder.getstate()[0]
        if part != previous and not is_whole:
            texts[first] += decoder.decode(b"", final=True)
            is_whole = True
        text = decoder.decode(token)
        if is_whole:
            first = len(texts)
            texts.append(text)
        else:
            texts[first] += text
            texts.append("")
        previous = part
    if texts:
        texts[first] += decoder.decode(b"", final=True)
    return texts


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return isinstance(tokenizer.model, BPE) and "ByteLevel" in str(tokenizer.pre_tokenizer)


@cache
def _byte_alphabet() -> dict[str, int]:
    """Return the byte that each character of a byte-level vocabulary stands for, as GPT-2 numbers them: a
    printable one of Latin-1 for itself, those from U+0100 for the other bytes in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def _bytes_of_byte_level(token: str) -> bytes:
    alphabet = _byte_alphabet()
    if all(character in alphabet for character in token):
        return bytes(alphabet[character] for character in token)
    return token.encode()  # an added token


def _bytes_of_metaspace(token: str) -> bytes:
    if byte := re.fullmatch("<0x([0-9A-F]{2})>", token):  # of a character that the vocabulary lacks
        return bytes.fromhex(byte[1])
    return token.replace("▁", " ").encode()


def _piece(text: str, *, partial: bool = False) -> Piece:
    """Return a piece that is written with its space. partial: it holds some bytes of a letter."""
    word = text.strip()
    begins = partial or word[:1].isalnum()
    ends = partial or word[-1:].isalnum()
    return Piece(word, text[:1].isspace(), begins, ends)
