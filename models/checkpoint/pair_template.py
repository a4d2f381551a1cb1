"""The special tokens around a query and a title, as a tokenizer's post-processor puts them."""

from dataclasses import dataclass, field
from typing import Self

from tokenizers import Tokenizer

from models.errors import UnsupportedCheckpoint


@dataclass(frozen=True, slots=True)
class PairTemplate:
    """The ids before the query, between query and title, and after the title.

    BERT: [CLS] query [SEP] title [SEP]. RoBERTa: <s> query </s></s> title </s>.
    two_segments: the title and what follows have token type 1; otherwise all tokens have type 0.
    before_title: how many of the special tokens stand before the title. tokens: how many there are.
    """

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    two_segments: bool
    before_title: int = field(init=False)
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "before_title", len(self.before) + len(self.between))
        object.__setattr__(self, "tokens", self.before_title + len(self.after))

    @property
    def ids(self) -> set[int]:
        """Return the ids of the special tokens."""
        return {*self.before, *self.between, *self.after}

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Return the template of a tokenizer.

        Raises UnsupportedCheckpoint if there is no special token before the query, which the classifier
        reads, and one after each text, or if token types do not change where the title begins.
        """
        first, second = (tokenizer.encode(text, add_special_tokens=False).ids for text in ("a", "b"))
        pair = tokenizer.encode("a", "b")
        texts = pair.sequence_ids  # None for special tokens
        query, title = ([i for i, text in enumerate(texts) if text == number] for number in (0, 1))
        types = pair.type_ids
        if query and title:
            parts = range(query[0]), range(query[-1] + 1, title[0]), range(title[-1] + 1, len(texts))
            before, between, after = (tuple(pair.ids[i] for i in part) for part in parts)
            whole = [*before, *first, *between, *second, *after]
            two = [0] * title[0] + [1] * (len(texts) - title[0])
            if before and between and after and pair.ids == whole and types in (two, [0] * len(texts)):
                return cls(before, between, after, types == two)
        raise UnsupportedCheckpoint(
            f"the tokenizer makes a pair of {' '.join(pair.tokens)} with token types {types}, "
            "not [CLS] query [SEP] title [SEP] or the like, with type 0 up to the title and 0 or 1 from there"
        )


BERT = PairTemplate((101,), (102,), (102,), two_segments=True)
"""BERT's own, with the ids of its published vocabularies."""
