"""The prompts of decoders: the text around a query and a title, from a checkpoint's files or as published.

A chat template that shows messages of the roles `query` and `document` is a prompt, as for
sentence-transformers and vLLM; its instruction is a `system` message or the variable `instruction`. Other
checkpoints of a family are read as its published reranker: https://github.com/QwenLM/Qwen3-Embedding,
https://github.com/mixedbread-ai/mxbai-rerank, https://github.com/FlagOpen/FlagEmbedding.

A tokenizer reads the whole prompt at once, but query and title are encoded by themselves here. So they are
encoded with the blanks around them, because a tokenizer joins " word", and "?" with the end of its line.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

from models.checkpoint.fields import read_json
from models.errors import UnsupportedCheckpoint

QUERY, TITLE, INSTRUCTED, CUT = "\ue000", "\ue001", "\ue002", "\ue003"
"""Stand for the texts in a prompt; CUT is where one is encoded by itself, if not at the blanks around it."""

CHAT_TEMPLATE = "chat_template.jinja"

_LITERAL = re.compile(r"((?:\s*\n)?)(.*?)(\s*)", re.DOTALL)


class Around(NamedTuple):
    """The characters that are encoded together with a text: before it and after it."""

    lead: str
    trail: str

    def dressed(self, text: str) -> str:
        """Return the text as it is encoded; an empty one stays empty."""
        return f"{self.lead}{text}{self.trail}" if text else ""


class _Published(NamedTuple):
    """A family's published reranker: its prompts, the instruction of pairs without one, and its answers."""

    prompt: str
    instructed: str | None
    instruction: str | None
    answers: tuple[str, ...]


_QWEN3 = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    f"<Instruct>: {INSTRUCTED}\n<Query>: {QUERY}\n<Document>: {TITLE}<|im_end|>\n"
    "<|im_start|>assistant\n<think>\n\n</think>\n\n"
)
_MXBAI = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\n",
    f"query: {QUERY}{CUT}\ndocument:{CUT} {TITLE}{CUT}\nYou are a search relevance expert who evaluates how "
    "well documents match search queries. For each query-document pair, carefully analyze the semantic "
    "relationship between them, then provide your binary relevance judgment (0 for not relevant, 1 for "
    f"relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n{CUT}",
)
PUBLISHED = {
    "qwen3": _Published(
        *(_QWEN3, _QWEN3, "Given a web search query, retrieve relevant passages that answer the query"),
        ("yes", "no"),
    ),
    "qwen2": _Published(
        "".join(_MXBAI), f"{_MXBAI[0]}instruction: {INSTRUCTED}\n{_MXBAI[1]}", None, ("1", "0")
    ),
    "gemma": _Published(
        f"{CUT}<bos>{CUT}A: {QUERY}{CUT}\n{CUT}B: {TITLE}{CUT}\n{CUT}Given a query A and a passage B, "
        "determine whether the passage contains an answer to the query by providing a prediction of either "
        "'Yes' or 'No'.",
        *(None, None, ("Yes",)),
    ),
}
"""By `model_type`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """Fixed texts, in which structural tokens are meant, and what is encoded together with query and title.

    before: up to the query; None if each pair needs an instruction. instructed: before the instruction, what
    is around it, and after it up to the query; None if the model takes none. instruction: the default.
    after: after the title, parts that are encoded one by one.
    """

    before: str | None
    instructed: tuple[str, Around, str] | None
    query: Around
    between: str
    title: Around
    after: tuple[str, ...]
    instruction: str | None

    @classmethod
    def of(cls, prompt: str, instructed: str | None, instruction: str | None) -> Self:
        """Return a prompt whose texts are marked. instructed: the one with an instruction, if any."""
        before, rest = prompt.split(QUERY)
        between, after = rest.split(TITLE)
        blank, start, lead = _parts(before)
        trail, middle, title_lead = _parts(between)
        title_trail, *ending = _parts(after)
        with_instruction = None
        if instructed is not None:
            first, second = map(_parts, instructed.split(QUERY)[0].split(INSTRUCTED))
            with_instruction = first[0] + first[1], Around(first[2], second[0]), second[1]
        return cls(
            None if INSTRUCTED in before else blank + start,
            *(with_instruction, Around(lead, trail), middle, Around(title_lead, title_trail)),
            tuple(ending) if CUT in after else ("".join(ending),),
            instruction,
        )

    @property
    def parts(self) -> list[str]:
        """Return all fixed texts."""
        first, _, second = self.instructed or ("", None, "")
        return [self.before or "", first, second, self.between, *self.after]


def read_prompt(directory: Path, family: str, instruction: str | None) -> Prompt:
    """Return the prompt of a checkpoint of a family in PUBLISHED. instruction: of pairs without one."""
    published = PUBLISHED[family]
    for template in _templates(directory):
        if prompt := _rendered(template):
            instructed = _rendered(template, INSTRUCTED)
            instructed = instructed if instructed and instructed.count(INSTRUCTED) == 1 else None
            return Prompt.of(prompt, instructed, instruction if instructed else None)
    return Prompt.of(published.prompt, published.instructed, instruction or published.instruction)


def with_answers(directory: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a config.json with the ids of the answers, if a language model's does not say them."""
    ours, published = raw.get("headroom") or {}, PUBLISHED.get(str(raw.get("model_type")))
    named = raw.get("architectures")
    is_language_model = isinstance(named, list) and any(str(name).endswith("ForCausalLM") for name in named)
    if published is None or not is_language_model or not isinstance(ours, Mapping) or "score_tokens" in ours:
        return raw
    file = directory / "tokenizer.json"
    content = read_json(file)
    ids = {token.get("content"): token.get("id") for token in content.get("added_tokens") or ()}
    vocabulary = content["model"].get("vocab") if isinstance(content.get("model"), Mapping) else None
    ids |= vocabulary if isinstance(vocabulary, Mapping) else {}
    if missing := [answer for answer in published.answers if answer not in ids]:
        raise UnsupportedCheckpoint(f"{file} has no token for the answer {missing[0]!r}")
    return raw | {"headroom": {**ours, "score_tokens": [ids[answer] for answer in published.answers]}}


def _templates(directory: Path) -> Iterator[str]:
    """Yield the chat templates of a checkpoint."""
    if (file := directory / CHAT_TEMPLATE).is_file():
        yield file.read_text(encoding="utf-8")
    file = directory / "tokenizer_config.json"
    found = read_json(file).get("chat_template") if file.is_file() else None
    named = found if isinstance(found, list) else [{"template": found}]
    yield from (str(each["template"]) for each in named if isinstance(each, Mapping) and each.get("template"))


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
    in_order = text.count(QUERY) == text.count(TITLE) == 1 and text.index(QUERY) < text.index(TITLE)
    return text if in_order else None


def _parts(literal: str) -> tuple[str, str, str]:
    """Cut the text between two others: what is encoded with the first one, by itself, and with the second."""
    match = re.fullmatch(f"(.*){CUT}(.*){CUT}(.*)", literal, re.DOTALL) or _LITERAL.fullmatch(literal)
    assert match is not None
    return match[1], match[2], match[3]
