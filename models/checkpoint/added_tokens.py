"""The tokens added to a tokenizer's vocabulary, and which of them are structure.

Structure are the tokens of the pair template, and those for padding, masks and unknown words. In a text they
are text, so nobody can forge the structure of a pair. All other added tokens, such as a checkpoint's [TITLE],
are input: in a text they become their own id, as in transformers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from models.checkpoint.fields import read_json
from models.errors import UnsupportedCheckpoint

_ROLES = {
    "cls_token": {"[CLS]", "<s>"},
    "sep_token": {"[SEP]", "</s>"},
    "pad_token": {"[PAD]", "<pad>"},
    "mask_token": {"[MASK]", "<mask>"},
    "unk_token": {"[UNK]", "<unk>"},
    "bos_token": set(),
    "eos_token": set(),
}
"""The options that name structural tokens, and the spellings of those that are not named."""

_LISTS = "additional_special_tokens", "extra_special_tokens"


def structural_tokens(options: Mapping[str, Any], post_processor: Any = None) -> frozenset[str]:
    """Return how the structural tokens of a tokenizer are spelled.

    options: of `read_options`. post_processor: of tokenizer.json.
    """
    tokens = set(_template_tokens(post_processor))
    for role, spellings in _ROLES.items():
        tokens |= {content_of(options[role])} if options.get(role) else spellings
    return frozenset(tokens)


def _template_tokens(processor: Any) -> Iterator[str]:
    """Yield the special tokens that a post-processor puts into a pair."""
    if not isinstance(processor, dict):
        return
    for token in (processor.get("special_tokens") or {}).values():
        yield from token["tokens"]
    yield from (processor[part][0] for part in ("sep", "cls") if part in processor)
    for part in processor.get("processors") or ():
        yield from _template_tokens(part)


def content_of(token: Any) -> str:
    """Return how a token is spelled that a file gives as a string or as an object."""
    return str(token.get("content")) if isinstance(token, dict) else str(token)


def add_declared_tokens(
    tokenizer: Tokenizer, directory: Path, options: Mapping[str, Any], structure: frozenset[str]
) -> None:
    """Add the tokens that only tokenizer_config.json or added_tokens.json declare, as transformers does.

    Raises UnsupportedCheckpoint if one gets another id than the file gives it.
    """
    known = tokenizer.get_added_tokens_decoder().values()
    spelled = {token.content for token in known} | structure
    for content, id_, fields in _declared(directory, options):
        if content in spelled:
            continue
        spelled.add(content)
        flags = {name: bool(fields[name]) for name in ("single_word", "lstrip", "rstrip") if name in fields}
        normalized = bool(fields.get("normalized", not fields.get("special", True)))
        tokenizer.add_tokens([AddedToken(content, **flags, normalized=normalized, special=False)])
        if id_ is not None and (actual := tokenizer.token_to_id(content)) != id_:
            raise UnsupportedCheckpoint(
                f"{directory}: the added token {content!r} has the id {id_} in its file, but the "
                f"vocabulary gives it {actual}; write a tokenizer.json that holds it"
            )


def _declared(
    directory: Path, options: Mapping[str, Any]
) -> Iterator[tuple[str, int | None, dict[str, Any]]]:
    """Yield each declared token's spelling, id (None without one) and fields, in transformers' order."""
    decoder = options.get("added_tokens_decoder", {})
    file = directory / "added_tokens.json"
    older = read_json(file) if file.is_file() else {}
    try:
        by_id = {int(id_): token for id_, token in decoder.items()}
        ids = {content: int(id_) for content, id_ in older.items()}
    except (AttributeError, TypeError, ValueError):
        raise UnsupportedCheckpoint(
            f"{directory}: tokenizer_config.json must map ids to tokens in added_tokens_decoder, and "
            f"added_tokens.json tokens to ids; added_tokens_decoder is {decoder!r}"
        ) from None
    extra = [token for name in _LISTS for token in _several(options.get(name))]
    extra += [token for name, token in options.items() if name.endswith("_token") and _is_token(token)]
    special = {content_of(token) for token in extra}
    by_id |= {id_: {"content": content, "special": content in special} for content, id_ in ids.items()}
    for id_, token in sorted(by_id.items()):
        yield content_of(token), id_, token if isinstance(token, dict) else {}
    for token in extra:
        yield content_of(token), None, token if isinstance(token, dict) else {}


def _several(tokens: Any) -> list[Any]:
    """Return the tokens of a list, or of an object that names them."""
    tokens = tokens.values() if isinstance(tokens, dict) else tokens if isinstance(tokens, list) else ()
    return [token for token in tokens if _is_token(token)]


def _is_token(token: Any) -> bool:
    return isinstance(token, str) or (isinstance(token, dict) and "content" in token)
