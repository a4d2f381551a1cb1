"""The prompts of decoders: the text around a query and a title, from a checkpoint's files or as published.

A chat template that shows messages of the roles `query` and `document` is a prompt, as for
sentence-transformers and vLLM; its instruction is a `system` message or the variable `instruction`. Other
checkpoints of a family are read as its published reranker: https://github.com/QwenLM/Qwen3-Embedding,
https://github.com/mixedbread-ai/mxbai-rerank, https://github.com/FlagOpen/FlagEmbedding.

A tokenizer reads the whole prompt at once, but query and title are encoded by themselves here. So they are
encoded with the blanks around them, because a tokenizer joins " word", and "?" with the end of its line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from models.checkpoint.fields import read_json, reading

QUERY, TITLE, INSTRUCTED = "\ue000", "\ue001", "\ue002"
"""Stand for the texts in a prompt."""


def _parts(literal: str) -> tuple[str, str, str]:
    """Cut the text between two others: what is encoded with the first one, by itself, and with the second."""
    match = re.fullmatch(r"((?:\s*\n)?)(.*?)(\s*)", literal, re.DOTALL)
    assert match is not None
    return match[1], match[2], match[3]


class Around(NamedTuple):
    """The characters that are encoded together with a text: before it and after it."""

    lead: str = ""
    trail: str = ""

    def dressed(self, text: str) -> str:
        """Return the text as it is encoded; an empty one stays empty."""
        return f"{self.lead}{text}{self.trail}" if text else ""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Fixed texts, in which structural tokens are meant, and what is encoded with query and title."""

    before: str | None  # up to the query; None if each pair needs an instruction
    query: Around
    between: str
    title: Around
    after: tuple[str, ...]  # parts that are encoded one by one
    instructed: tuple[str, Around, str] | None = None  # before an instruction, around it, and up to the query
    instruction: str | None = None  # the default

    @classmethod
    def of(cls, prompt: str, instructed: str | None) -> Self:
        """Return a prompt whose texts are marked. instructed: the one with an instruction, if any."""
        before, rest = prompt.split(QUERY)
        between, after = rest.split(TITLE)
        (blank, start, lead), (trail, middle, title_lead) = _parts(before), _parts(between)
        title_trail, *ending = _parts(after)
        with_instruction = None
        if instructed is not None:
            first, second = map(_parts, instructed.split(QUERY)[0].split(INSTRUCTED))
            with_instruction = first[0] + first[1], Around(first[2], second[0]), second[1]
        return cls(
            before=None if INSTRUCTED in before else blank + start,
            query=Around(lead, trail),
            between=middle,
            title=Around(title_lead, title_trail),
            after=("".join(ending),),
            instructed=with_instruction,
        )

    @property
    def parts(self) -> list[str]:
        """Return all fixed texts."""
        first, _, second = self.instructed or ("", None, "")
        return [self.before or "", first, second, self.between, *self.after]


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
PUBLISHED = {
    "qwen3": replace(
        Prompt.of(_QWEN3, _QWEN3),
        instruction="Given a web search query, retrieve relevant passages that answer the query",
    ),
    "qwen2": Prompt(
        *(f"{_MXBAI}query:", Around(" "), "\ndocument:", Around(" ")),
        after=(
            "\nYou are a search relevance expert who evaluates how well documents match search queries. For "
            "each query-document pair, carefully analyze the semantic relationship between them, then "
            "provide your binary relevance judgment (0 for not relevant, 1 for relevant).\n"
            "Relevance:<|im_end|>\n<|im_start|>assistant\n",
        ),
        instructed=(f"{_MXBAI}instruction:", Around(" ", "\n"), "query:"),
    ),
    "gemma": Prompt(
        *("<bos>", Around("A: "), "\n", Around("B: ")),
        after=(
            "\n",
            "Given a query A and a passage B, determine whether the passage contains an answer to the query "
            "by providing a prediction of either 'Yes' or 'No'.",
        ),
    ),
}
"""The prompts of the families' published rerankers, by `model_type`."""

ANSWERS = {"qwen3": ("yes", "no"), "qwen2": ("1", "0"), "gemma": ("Yes",)}
"""Their answers, the relevant one first."""


def read_prompt(directory: Path, family: str, instruction: str | None) -> Prompt:
    """Return the prompt of a checkpoint of a family in PUBLISHED. instruction: of pairs without one."""
    for template in _templates(directory):
        if prompt := _rendered(template):
            instructed = _rendered(template, INSTRUCTED) or ""
            if instructed.count(INSTRUCTED) != 1:
                return Prompt.of(prompt, None)
            return replace(Prompt.of(prompt, instructed), instruction=instruction)
    published = PUBLISHED[family]
    return replace(published, instruction=instruction or published.instruction)


def with_answers(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the ids of the answers, if a language model's does not say them."""
    answers, ours = ANSWERS.get(str(raw.get("model_type"))), raw.get("headroom") or {}
    is_language_model = any(str(name).endswith("ForCausalLM") for name in raw.get("architectures") or ())
    if answers is None or not is_language_model or "score_tokens" in ours:
        return raw
    file = directory / "tokenizer.json"
    content = read_json(file)
    with reading(file):
        added = {token["content"]: token["id"] for token in content["added_tokens"]}
        ids = content["model"]["vocab"] | added
        return raw | {"headroom": {**ours, "score_tokens": [ids[answer] for answer in answers]}}


def _templates(directory: Path) -> Iterator[str]:
    """Yield the chat templates of a checkpoint."""
    if (file := directory / "chat_template.jinja").is_file():
        yield file.read_text(encoding="utf-8")
    file = directory / "tokenizer_config.json"
    found = read_json(file).get("chat_template") if file.is_file() else None
    named = found if isinstance(found, list) else [{"template": found}]
    yield from (each["template"] for each in named if each["template"])


def _rendered(template: str, instruction: str | None = None) -> str | None:
    """Return a chat template's text for marked messages; None if it does not show a query, then a title."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    messages = [{"role": "query", "content": QUERY}, {"role": "document", "content": TITLE}]
    options: dict[str, Any] = {}
    if instruction is not None:
        messages.insert(0, {"role": "system", "content": instruction})
        options["instruction"] = instruction
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        text = environment.from_string(template).render(
            messages=messages, add_generation_prompt=True, bos_token="", eos_token="", **options
        )
    except (TemplateError, TypeError, ValueError, AttributeError):  # of another kind of messages
        return None
    in_order = [mark for mark in text if mark in (QUERY, TITLE)] == [QUERY, TITLE]
    return text if in_order else None
