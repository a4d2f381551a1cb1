"""Encodes query–title pairs as the token ids that a checkpoint was trained on, within its window."""

import copy
import re
import sys
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, starmap
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from headroom.models.checkpoint.chat_template import PAIRS, Texts, read_prompt
from headroom.models.checkpoint.fields import check, reading
from headroom.models.checkpoint.model_config import ModelConfig
from headroom.models.checkpoint.prompt import Around, Form, Part, Prompt
from headroom.models.checkpoint.sandbox import run
from headroom.models.checkpoint.texts import (
    ID_BYTES,
    EncodedText,
    Generations,
    TextReader,
    check_surrogates,
    without_panics,
)
from headroom.models.checkpoint.tokenizer_files import (
    FILE,
    SPECIAL,
    Piece,
    byte_reader,
    passes_types,
    piece_reader,
    read_tokenizer,
    read_window,
    spelled,
)
from headroom.models.errors import ModelError, UnsupportedCheckpoint

Ids = npt.NDArray[np.int32]

Pairs = Sequence[tuple[str, str]]
"""Queries and titles, (query, title) each."""


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The ids around a query and a title, as a tokenizer's post-processor puts them. BERT: [CLS] query [SEP]
    title [SEP]. RoBERTa: <s> query </s></s> title </s>."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    two_segments: bool  # the title and what follows have token type 1; otherwise all tokens have type 0
    empty_title: tuple[int, ...] = ()  # what is encoded where there is no title: a prompt's blank before it
    length: int = field(init=False)  # the number of special tokens

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.ids))

    @property
    def ids(self) -> tuple[int, ...]:
        """Return all special tokens."""
        return self.before + self.between + self.after

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, of_decoder: bool = False) -> Self:
        """Return the template of a tokenizer.

        of_decoder: it may do without special tokens. Raises UnsupportedCheckpoint if there is no special
        token before the query, which the classifier reads, and one after each text, or if token types do not
        change where the title begins.
        """
        pair = tokenizer.encode("a", "b")
        types = pair.type_ids
        order = "".join("s" if text is None else "qt"[text] for text in pair.sequence_ids)
        match = re.fullmatch("(s*)(q+)(s*)(t+)(s*)" if of_decoder else "(s+)(q+)(s+)(t+)(s+)", order)
        if match is not None:
            before, _, between, _, after = (tuple(pair.ids[slice(*match.span(n))]) for n in range(1, 6))
            title_start = match.start(4)
            two = [0] * title_start + [1] * (len(types) - title_start)
            if of_decoder or types in (two, [0] * len(types)):
                return cls(before, between, after, types == two)
        raise UnsupportedCheckpoint(
            f"the tokenizer makes a pair of {' '.join(pair.tokens)} with token types {types}, "
            "not [CLS] query [SEP] title [SEP] or the like, with type 0 up to the title and 0 or 1 from there"
        )


BERT = PairTemplate((101,), (102,), (102,), two_segments=True)
"""BERT's own, with the ids of its published vocabularies."""


@dataclass(slots=True, eq=False)  # not frozen: a frozen one costs three times as much to make
class EncodedPair:
    """A pair as [CLS] query [SEP] title [SEP], or with its template's special tokens; n tokens.

    data: their ids, n int32 values. A pack joins bytes, which cost a fifth of what an array costs to make.
    is_alone: whether the query was to be read by itself, without a title.
    """

    data: bytes
    query_tokens: int
    unknown_tokens: int
    truncated: bool
    template: PairTemplate = BERT
    is_alone: bool = False

    @property
    def ids(self) -> Ids:
        """Return the ids, (n,), read-only."""
        return np.frombuffer(self.data, np.int32)

    @property
    def title_start(self) -> int:
        """Return the number of tokens before the title."""
        return len(self.template.before) + self.query_tokens + len(self.template.between)

    @property
    def shared_tokens(self) -> int:
        """Return how many tokens a decoder may compute once for all titles of the query: those before the
        title, but not the last token, at which it answers."""
        return min(self.title_start, len(self) - 1)

    @property
    def beginning(self) -> bytes:
        """Return the shared tokens; equal for all pairs of a query, if none is truncated there."""
        return self.data[: self.shared_tokens * ID_BYTES]

    @property
    def has_empty_title(self) -> bool:
        """Return whether nothing of the title is in the tokens; False if the query was read alone."""
        empty = self.template.empty_title
        if self.is_alone or len(self) - self.query_tokens - self.template.length != len(empty):
            return False
        title_end = len(self) - len(self.template.after)
        return not empty or tuple(self.ids[self.title_start : title_end].tolist()) == empty

    @property
    def first_segment(self) -> int:
        """Return the number of tokens of token type 0, which come first; the others have type 1."""
        return self.title_start if self.template.two_segments else len(self)

    @property
    def special(self) -> list[int]:
        """Return the positions of the special tokens."""
        start = len(self.template.before)
        end = len(self)
        between = range(start + self.query_tokens, self.title_start)
        return [*range(start), *between, *range(end - len(self.template.after), end)]

    def __len__(self) -> int:
        return len(self.data) // ID_BYTES


class PairTokenizer(TextReader):
    """Encodes pairs as transformers does (`longest_first` truncation).

    If both texts of a pair overflow the window, and one is so long that it is not read to its end, the odd
    token of an odd window may go to another text than in transformers.

    budget: how many tokens a query and a title may have together. Threads may share one.
    """

    _keep_end = False
    _alone: Collection[int] = ()

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        max_tokens: int,
        vocab_size: int,
        prompt: Prompt | None = None,
        of_decoder: bool = False,
        unread: int | None = None,
    ) -> None:
        """max_tokens: the window, special tokens included. vocab_size: rows of the model's word embeddings.
        of_decoder: pairs may be without special tokens. unread: a prompt ends before this token.

        Raises UnsupportedCheckpoint if the tokenizer makes no pairs of the known form or does not fit these.
        """
        super().__init__(tokenizer, reach=max_tokens)
        token, largest = max(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
        check(
            largest < vocab_size,
            f"the tokenizer gives {token.removeprefix(SPECIAL)!r} the id {largest}; "
            f"the model's embeddings end at {vocab_size - 1}",
        )
        self.prompt = prompt
        self._piece_of = piece_reader(tokenizer)
        self._bytes_of = byte_reader(tokenizer)
        self._unread = unread
        if prompt is None:
            self._use(PairTemplate.of(tokenizer, of_decoder=of_decoder), max_tokens)
            self.forbidden = (self.forbidden | {*self.template.ids}) - {self.unknown}
        else:
            tokenizer.encode_special_tokens = False  # structural tokens are meant here
            self._fixed = {
                part: tokenizer.encode(part, add_special_tokens=False).ids for part in prompt.fixed
            }
            tokenizer.encode_special_tokens = True
            form = prompt.plain if prompt.instruction is None else prompt.instructed
            assert form is not None
            self._form = form
            self._use(self._prompted(form, prompt.instruction), max_tokens)

    @classmethod
    def load(
        cls, directory: Path, *, prompt: Prompt | None = None, of_decoder: bool = False, **options: Any
    ) -> Self:
        """Load a checkpoint's tokenizer from its files. options: of this class. Raises UnsupportedCheckpoint,
        naming the file."""
        with without_panics(UnsupportedCheckpoint, f"{directory}: the tokenizer cannot be used"):
            fixed = [] if prompt is None else prompt.fixed
            library_tokenizer = read_tokenizer(directory, "\n".join(fixed) if of_decoder else None)
            tokenizer = cls(library_tokenizer, prompt=prompt, of_decoder=of_decoder, **options)
        if passes_types(directory) is False:
            tokenizer.template = replace(tokenizer.template, two_segments=False)
        return tokenizer

    def _use(self, template: PairTemplate, max_tokens: int) -> None:
        """Put pairs together by a template. Raises UnsupportedCheckpoint if nothing else fits the window."""
        self.template = template
        self.budget = max_tokens - len(template.ids)
        check(self.budget > 0, f"a window of {max_tokens} tokens has no room for a query and a title")
        parts = template.before, template.between, template.after
        self._before, self._between, self._after = (array("i", part).tobytes() for part in parts)

    def within(self, max_tokens: int) -> Self:
        """Return this tokenizer for a window of at most so many tokens, beside those of a prompt."""
        other = copy.copy(self)
        more = 0 if self.prompt is None else len(self.template.ids)
        other._use(self.template, min(self.max_tokens, max_tokens + more))
        return other

    def instructed(self, instruction: str | None) -> Self:
        """Return this tokenizer for prompts with an instruction, the same one if the model takes none. None
        or "": the model's default. Raises ModelError if it does not fit the window."""
        if not instruction or self.prompt is None or self.prompt.instructed is None:
            return self
        other = copy.copy(self)
        other._form = self.prompt.instructed
        try:
            other._use(self._prompted(self.prompt.instructed, instruction), self.max_tokens)
        except UnsupportedCheckpoint:
            raise ModelError("it leaves no room in the window for a query and a title") from None
        return other

    def reading_as(self, *, keep_end: bool, alone: Collection[int] = ()) -> Self:
        """Return a tokenizer that reads as other servers' clients may ask. It knows no text yet.

        keep_end: of texts that do not fit into the window together, keep the ends; each text is read whole.
        alone: the pairs, by their index in `join`, whose title is empty and whose query is encoded by itself:
        as [CLS] query [SEP], or whatever tokens begin and end the model's pairs; a prompt stays whole.
        """
        other = copy.copy(self)
        other._known = Generations()
        other._keep_end = keep_end
        other._alone = alone
        if keep_end:
            other.reach = sys.maxsize
        return other

    def _prompted(self, form: Form, instruction: str | None) -> PairTemplate:
        """Return the template of prompts of a form. Raises ModelError for a lone surrogate."""
        check_surrogates(instruction or "")

        def encoded(text: str) -> Sequence[int]:
            return array("i", self.encode_batch([text])[0])

        def ids(parts: Iterable[Part]) -> Iterator[int]:
            for part in parts:
                if isinstance(part, str):
                    yield from self._fixed[part]
                else:
                    yield from encoded(part.padded_text(instruction or ""))

        after = list(ids(form.after))
        while after and after[-1] == self._unread:
            after.pop()
        return PairTemplate(
            before=tuple(ids(form.before)),
            between=tuple(ids(form.between)),
            after=tuple(after),
            two_segments=False,
            empty_title=tuple(encoded(form.title.padded_text(""))),
        )

    def padded_pairs(self, pairs: Pairs) -> Pairs:
        """Return (query, title) pairs as they are encoded: a prompt's with the blanks around them."""
        if self.prompt is None:
            return pairs
        # Each distinct text once: a thousand copies of a query of 4 MB would fill the memory.
        query = cache(self._form.query.padded_text)
        title = cache(self._form.title.padded_text)
        return [(query(one), title(other)) for one, other in pairs]

    @property
    def around_title(self) -> Around:
        """Return what `padded_pairs` puts around a title."""
        return Around() if self.prompt is None else self._form.title

    def kept(self, query: int, title: int) -> tuple[int, int]:
        """Return how many tokens each text keeps: `longest_first` of the tokenizers library.

        The longer text is cut to the room that the shorter one leaves. If both are longer than half of the
        room, both are cut to half, and an odd token goes to the longer one (to the title if they are equal).
        In a prompt the title is cut first, and the query only beyond three quarters of the room.
        """
        if query + title <= self.budget:
            return query, title
        if self.prompt is not None:
            title = min(title, self.budget - min(query, self.budget * 3 // 4))
            return self.budget - title, title
        shorter = min(query, title, self.budget // 2)
        return (self.budget - shorter, shorter) if query > title else (shorter, self.budget - shorter)

    def encode(self, pairs: Pairs) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. Raises ModelError for a lone surrogate."""
        pairs = self.padded_pairs(pairs)
        return self.join(pairs, self.encode_texts(set(chain.from_iterable(pairs))))

    def join(self, pairs: Pairs, texts: Mapping[str, EncodedText]) -> list[EncodedPair]:
        """Return one EncodedPair per (query, title), in order. texts: from `encode_texts`."""
        encoded = []
        for index, (query_text, title_text) in enumerate(pairs):
            query = texts[query_text]
            title = texts[title_text]
            is_alone = index in self._alone
            is_cut_out = is_alone and self.prompt is None
            room = self.budget + len(self.template.between) if is_cut_out else self.budget
            truncated = query.tokens + title.tokens > room
            if truncated:
                kept = (room, 0) if is_cut_out else self.kept(query.tokens, title.tokens)
                query = self._part(query, kept[0])
                title = self._part(title, kept[1])
            pair = self.pair(query, title, truncated=truncated)
            pair.is_alone = is_alone
            if is_cut_out:
                end = len(self.template.before) + pair.query_tokens
                after = end + len(self.template.between)
                pair.data = pair.data[: end * ID_BYTES] + pair.data[after * ID_BYTES :]
            encoded.append(pair)
        return encoded

    def _part(self, text: EncodedText, tokens: int) -> EncodedText:
        """Return the first tokens of a text, or the last ones."""
        start = text.tokens - tokens if self._keep_end else 0
        return self.part(text, start, start + tokens)

    def pair(self, query: EncodedText, title: EncodedText, *, truncated: bool = False) -> EncodedPair:
        """Return the pair of two texts that fit the window. truncated: whether they were longer."""
        data = b"".join((self._before, query.ids, self._between, title.ids, self._after))
        if not data:
            raise ModelError("query and title are empty, and this model's pairs have no other tokens")
        unknown = query.unknown + title.unknown
        return EncodedPair(data, query.tokens, unknown, truncated, self.template)

    def tokens(self, pair: EncodedPair) -> list[str]:
        """Return the pieces of a pair as the vocabulary writes them, special tokens included."""
        return [str(self._tokenizer.id_to_token(id_)).removeprefix(SPECIAL) for id_ in pair.ids.tolist()]

    def texts(self, pair: EncodedPair) -> list[str]:
        """Return what each piece of a pair spells, with a space before it if it begins a word.

        Of pieces that share a character, the first has it and the others have an empty text.
        """
        special = set(pair.special)
        pieces = [self._bytes_of(token) for token in self.tokens(pair)]
        parts = [(token in special, token < pair.title_start) for token in range(len(pair))]
        return spelled(zip(pieces, parts, strict=True))

    def texts_of(self, ids: Iterable[int]) -> list[str]:
        """Return what each piece of one text spells."""
        tokens = (str(self._tokenizer.id_to_token(id_)).removeprefix(SPECIAL) for id_ in ids)
        return spelled((self._bytes_of(token), None) for token in tokens)

    def pieces(self, pair: EncodedPair) -> list[Piece]:
        """Return the pieces of a pair as they are spelled, special tokens included."""
        return [self._piece_of(token) for token in self.tokens(pair)]

    @property
    def max_tokens(self) -> int:
        """Return the window, special tokens included."""
        return self.budget + len(self.template.ids)


def load_tokenizer(directory: Path, config: ModelConfig) -> PairTokenizer:
    """Load a checkpoint's tokenizer, with the window that its files and its network allow. Raises
    UnsupportedCheckpoint, also for what transformers would score otherwise."""
    decoder = config.decoder
    prompt = None
    examples: dict[Texts, list[int]] = {}
    with reading(directory / FILE):
        window = read_window(directory, config)
        if decoder is not None and decoder.plain_pairs:
            examples = dict(zip(starmap(Texts, PAIRS), run(directory, pairs=PAIRS), strict=True))
        elif decoder is not None:
            prompt, examples = read_prompt(directory, config.family, decoder.instruction)
        tokenizer = PairTokenizer.load(
            directory,
            prompt=prompt,
            max_tokens=window,
            vocab_size=config.vocab_size,
            of_decoder=decoder is not None,
            unread=None if decoder is None else decoder.pad_token,
        )
        _check_tokens(directory, tokenizer, examples)
    has_types = config.type_vocab_size > 1 and tokenizer.template.two_segments
    check(
        not has_types or passes_types(directory) is not None,
        f"{directory / FILE} has no model_input_names, and its class is a general one: transformers 4 passes "
        "the title's token types to the model, transformers 5 does not. Write down what it was trained with: "
        '"model_input_names": ["input_ids", "token_type_ids", "attention_mask"], or without the second',
    )
    template = tokenizer.template
    skipped = None
    structure = template.ids
    if config.skipped_positions:
        skipped = config.skipped_positions - 1
    elif decoder is not None and not template.after:  # the last token of a text is read
        skipped = decoder.pad_token
        structure = (template.between or template.before)[-1:]
    check(
        skipped is None or (skipped in tokenizer.forbidden and skipped not in structure),
        f"config.json: pad_token_id is {skipped}, which the tokenizer puts into pairs or makes of a text: "
        "transformers skips this token where it counts positions, and where it looks for the last token",
    )
    return tokenizer


def _check_tokens(directory: Path, tokenizer: PairTokenizer, examples: Mapping[Texts, list[int]]) -> None:
    """Raise UnsupportedCheckpoint unless a decoder's pairs have the tokens of transformers."""
    wide = tokenizer.reading_as(keep_end=True)
    wide._use(wide.template, 1 << 20)
    for texts, ids in examples.items():
        if texts.instruction is None and tokenizer.prompt is not None and tokenizer.prompt.instruction:
            continue  # each of its prompts has an instruction
        (pair,) = wide.instructed(texts.instruction).encode([texts[:2]])
        while ids and ids[-1] == tokenizer._unread:
            ids = ids[:-1]
        check(
            pair.ids.tolist() == ids,
            f"{directory}: transformers gives the query {texts.query!r} and the title {texts.title!r} other "
            "tokens: the tokenizer joins them with what stands beside them; put spaces or line ends there",
        )
