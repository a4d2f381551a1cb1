"""Reads the prompt of a decoder from its chat template, as transformers' `apply_chat_template` renders it.

The template gets a query, a document and perhaps an instruction: messages of the roles `query`, `document`
and `system`, as from sentence-transformers, and the variable `instruction`, as from vLLM. Marks in the place
of the texts show where it puts them. Other texts show whether it does no more with them; a template that
does more is refused.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from models.checkpoint.fields import check, read_json, reading
from models.checkpoint.modules import adds_generation_prompt
from models.checkpoint.prompt import INSTRUCTED, PUBLISHED, QUERY, TITLE, Form, Prompt
from models.checkpoint.sandbox import SandboxFailed, encode_pairs, render_prompts
from models.errors import UnsupportedCheckpoint

_PAIRS = [
    ("angle bracket", "steel angle"),
    ("what is 12?", "-5 % (off)?\n"),
    ("  usb  lamp \n", " 中文 Résumé\n\n"),
    ("TOOL!", "a\ttab"),
    ("usb", ""),
    ("usb", "usb"),
    ("long " * 5_000, "word " * 5_000),
]
_INSTRUCTIONS = ["find it: now?", " Judge\n"]

_NONE = "none"
_MESSAGE = "message"
_VARIABLE = "variable"
"""How an instruction is given: not at all, as a system message and the variable, as the variable alone."""


class Texts(NamedTuple):
    """The texts of one prompt, and how its instruction is given."""

    way: str
    instruction: str | None
    query: str
    title: str

    def conversation(self, add_generation_prompt: bool) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Return the messages of the prompt, and the options of `apply_chat_template`."""
        messages = [{"role": "query", "content": self.query}, {"role": "document", "content": self.title}]
        options: dict[str, Any] = {"add_generation_prompt": add_generation_prompt}
        if self.instruction is not None:
            options["instruction"] = self.instruction
            if self.way == _MESSAGE:
                messages.insert(0, {"role": "system", "content": self.instruction})
        return messages, options

    def put_into(self, marked: str) -> str:
        """Return a marked text with these texts in the place of the marks."""
        texts = {QUERY: self.query, TITLE: self.title, INSTRUCTED: self.instruction or ""}
        return marked.translate({ord(mark): text for mark, text in texts.items()})


class Example(NamedTuple):
    """The tokens that transformers gives a prompt."""

    texts: Texts
    ids: list[int]


def read_prompt(directory: Path, family: str, instruction: str | None) -> tuple[Prompt, list[Example]]:
    """Return the prompt of a checkpoint, and examples whose tokens it must give.

    instruction: of pairs without one. Without a template, and with one that takes neither query nor document,
    it is the prompt of the family's published reranker. Raises UnsupportedCheckpoint for a template whose
    prompts are not fixed texts around a query, then a title, and perhaps an instruction.
    """
    source = _source(directory)
    prompt = PUBLISHED[family]
    examples = list[Example]()
    if source:
        try:
            prompt, examples = _by_template(directory, source) or (prompt, examples)
        except SandboxFailed as error:
            raise UnsupportedCheckpoint(f"{directory}: the chat template cannot be used: {error}") from None
    default = instruction or prompt.instruction
    is_right = prompt.plain if default is None else prompt.instructed
    problem = "takes no instruction, and the checkpoint names one" if default else "needs an instruction"
    check(is_right, f"{directory}: the prompt {problem}")
    return Prompt(prompt.plain, prompt.instructed, default), examples


def read_pairs(directory: Path) -> list[Example]:
    """Return examples of pairs without a prompt."""
    pairs = [pair for pair in _PAIRS if len(pair[0]) < 100]
    try:
        ids = encode_pairs(directory, pairs)
    except SandboxFailed as error:
        raise UnsupportedCheckpoint(f"{directory}: the tokenizer cannot be used: {error}") from None
    return [Example(Texts(_NONE, None, *pair), of_pair) for pair, of_pair in zip(pairs, ids, strict=True)]


def _source(directory: Path) -> str:
    """Return the text of a checkpoint's chat templates, "" if it has none."""
    file = directory / "chat_template.jinja"
    with reading(file):
        texts = [file.read_text(encoding="utf-8")] if file.is_file() else []
    file = directory / "tokenizer_config.json"
    found = read_json(file).get("chat_template") if file.is_file() else None
    with reading(file):
        texts += [each["template"] for each in found] if isinstance(found, list) else [found or ""]
    return "".join(texts)


def _by_template(directory: Path, source: str) -> tuple[Prompt, list[Example]] | None:
    """Return the prompt of a template and examples of it; None if it takes neither query nor document."""
    all_texts = list(_all_texts(source))
    adds_prompt = adds_generation_prompt(directory)
    results = render_prompts(directory, [texts.conversation(adds_prompt) for texts in all_texts])
    rendered = dict(zip(all_texts, results, strict=True))
    of_marks = {
        texts.way: result
        for texts, result in rendered.items()
        if texts.query == QUERY and texts.instruction in (None, INSTRUCTED)
    }
    forms = {way: result["text"] for way, result in of_marks.items() if _shown(result) == [QUERY, TITLE]}
    plain = forms.get(_NONE)
    instructed = next((way for way, marked in forms.items() if INSTRUCTED in marked), None)
    if plain is None and instructed is None:
        return _no_prompt(directory, source, of_marks[_NONE])
    where = f"{directory}: the chat template"
    check("strftime_now" not in source, f"{where} writes the date, so its prompts are not the same every day")
    for marked in forms.values():
        is_right = INSTRUCTED in marked or plain in (None, marked)
        check(is_right, f"{where} changes with an instruction that it does not show")
    examples = []
    for texts, result in rendered.items():
        if texts.way in (_NONE, instructed) and texts.way in forms:
            text = result.get("text", result.get("error"))
            check(
                text == texts.put_into(forms[texts.way]),
                f"{where} does more than to put texts in their places: of the query {texts.query[:40]!r} and "
                f"the document {texts.title[:40]!r} it makes {text[:300]!r}",
            )
            if (texts.query, texts.title) in _PAIRS and texts.instruction != source and "ids" in result:
                examples.append(Example(texts, result["ids"]))
    form = None if instructed is None else Form.of(forms[instructed])
    return Prompt(None if plain is None else Form.of(plain), form), examples


def _all_texts(source: str) -> Iterator[Texts]:
    """Yield the texts that a template is tried with: marks first. Its own source holds all words that it
    compares texts with, and letters and signs of all kinds."""
    instructions = [INSTRUCTED, *_INSTRUCTIONS, source]
    ways = {_NONE: [None], _MESSAGE: instructions, _VARIABLE: instructions}
    for way, of_way in ways.items():
        for instruction in of_way:
            for query, title in [(QUERY, TITLE), *_PAIRS, (source, f"<&>{source}")]:
                yield Texts(way, instruction, query, title)


def _shown(result: Mapping[str, Any]) -> list[str]:
    """Return the marks of query and title in a rendered text, in order."""
    return [mark for mark in result.get("text", "") if mark in (QUERY, TITLE)]


def _no_prompt(directory: Path, source: str, result: Mapping[str, Any]) -> None:
    """Return if a template takes neither query nor document. Otherwise, raise UnsupportedCheckpoint."""
    names_roles = re.search(r"""['"](query|document)['"]""", source) and "error" in result
    names = {QUERY: "the query", TITLE: "the document"}
    shown = " before ".join(names[mark] for mark in _shown(result)) or result.get("error")
    check(
        not names_roles and not _shown(result),
        f"{directory}: the chat template shows {shown}; supported is the query once, and then the document",
    )
