"""The prompts of decoders: the text around a query and a title, from a checkpoint's files or as published.

`headroom.models.checkpoint.chat_template` reads a prompt from the files. Other checkpoints of a family are
read as its published reranker: https://github.com/QwenLM/Qwen3-Embedding,
https://github.com/mixedbread-ai/mxbai-rerank, https://github.com/FlagOpen/FlagEmbedding.

A tokenizer reads the whole prompt at once, but query and title are encoded by themselves here. So they are
encoded with the blanks around them, because a tokenizer joins " word", and "?" with the end of its line.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

from headroom.models.checkpoint.fields import Fields, read_json, reading
from headroom.models.files import Json

QUERY = "\ue000"
TITLE = "\ue001"
INSTRUCTED = "\ue002"
"""Stand for the texts in a prompt."""


class Around(NamedTuple):
    """The characters that are encoded together with a text: before it and after it."""

    lead: str = ""
    trail: str = ""

    def padded_text(self, text: str) -> str:
        """Return the text as it is encoded."""
        return f"{self.lead}{text}{self.trail}"


Part: TypeAlias = str | Around
"""A fixed text, in which structural tokens are meant, or what is encoded with an instruction."""


@dataclass(frozen=True, slots=True)
class Form:
    """A prompt: the parts around query and title, which are encoded one by one, and what is encoded with
    these texts."""

    before: tuple[Part, ...]
    query: Around
    between: tuple[Part, ...]
    title: Around
    after: tuple[Part, ...]

    @classmethod
    def of(cls, marked: str) -> Self:
        """Return the form of a prompt whose texts are marked."""
        first, *rest = re.split(f"([{QUERY}{TITLE}{INSTRUCTED}])", marked)
        marks = rest[::2]
        literals = rest[1::2]
        blank, middle, lead = _cut(first)
        parts: list[list[Part]] = [[blank + middle]]
        arounds: list[Around] = []
        for mark, literal in zip(marks, literals, strict=True):
            trail, middle, next_lead = _cut(literal)
            if mark == INSTRUCTED:
                parts[-1].append(Around(lead, trail))
            else:
                arounds.append(Around(lead, trail))
                parts.append([])
            parts[-1].append(middle)
            lead = next_lead
        before, between, (*after, ending) = parts
        query, title = arounds
        return cls(tuple(before), query, tuple(between), title, (*after, f"{ending}{lead}"))


@dataclass(frozen=True, slots=True)
class Prompt:
    """The forms of a checkpoint's prompts."""

    plain: Form | None  # of pairs without an instruction; None: each needs one
    instructed: Form | None  # of pairs with one; None: the model takes none
    instruction: str | None = None  # the default

    @property
    def fixed(self) -> list[str]:
        """Return all fixed texts."""
        forms = [form for form in (self.plain, self.instructed) if form is not None]
        parts = [part for form in forms for part in (*form.before, *form.between, *form.after)]
        return [part for part in parts if isinstance(part, str)]


def _cut(literal: str) -> tuple[str, str, str]:
    """Cut the text between two others: what is encoded with the first one, by itself, and with the second."""
    match = re.fullmatch(r"((?:\s*\n)?)(.*?)(\s*)", literal, re.DOTALL)
    assert match is not None
    return match[1], match[2], match[3]


_QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {INSTRUCTED}\n<Query>: {QUERY}\n<Document>: {TITLE}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_MXBAI = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n"
)
_MXBAI_PLAIN = Form(
    before=(f"{_MXBAI}query:",),
    query=Around(" "),
    between=("\ndocument:",),
    title=Around(" "),
    after=(
        "\nYou are a search relevance expert who evaluates how well documents match search queries. For "
        "each query-document pair, carefully analyze the semantic relationship between them, then "
        "provide your binary relevance judgment (0 for not relevant, 1 for relevant).\n"
        "Relevance:<|im_end|>\n<|im_start|>assistant\n",
    ),
)
_BGE = Form(
    before=("<bos>",),
    query=Around("A: "),
    between=("\n",),
    title=Around("B: "),
    after=(
        "\n",
        "Given a query A and a passage B, determine whether the passage contains an answer to the query "
        "by providing a prediction of either 'Yes' or 'No'.",
    ),
)
PUBLISHED = {
    "qwen3": Prompt(
        plain=None,
        instructed=Form.of(_QWEN3),
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    "qwen2": Prompt(
        plain=_MXBAI_PLAIN,
        instructed=replace(_MXBAI_PLAIN, before=(f"{_MXBAI}instruction:", Around(" ", "\n"), "query:")),
    ),
    "gemma": Prompt(plain=_BGE, instructed=None),
}
"""The prompts of the families' published rerankers, by `model_type`."""

ANSWERS = {"qwen3": ("yes", "no"), "qwen2": ("1", "0"), "gemma": ("Yes",)}
"""Their answers, the relevant one first."""


def is_language_model(raw: Fields) -> bool:
    """Return whether a config.json is of a network that answers with its next token."""
    return any(str(name).endswith("ForCausalLM") for name in raw.get("architectures") or ())


def with_answers(directory: Path, raw: Json) -> Json:
    """Return a config.json with the ids of the answers, if a language model's does not say them."""
    answers = ANSWERS.get(str(raw.get("model_type")))
    ours = raw.get("headroom") or {}
    if answers is None or not is_language_model(raw) or "score_tokens" in ours:
        return raw
    file = directory / "tokenizer.json"
    content = read_json(file)
    with reading(file):
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        ids = content["model"]["vocab"] | added
        return raw | {"headroom": {**ours, "score_tokens": [ids[answer] for answer in answers]}}
