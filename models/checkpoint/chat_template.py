"""Reads the prompt of a decoder from its chat template, as transformers' `apply_chat_template` renders it.

The template gets a query, a document and perhaps an instruction: messages of the roles `query`, `document`
and `system`, as from sentence-transformers, and the variable `instruction`, as from vLLM. Marks in the place
of the texts show where it puts them. Other texts show whether it does no more with them; a template that
does more is refused.
"""

import re
from itertools import product
from pathlib import Path
from typing import NamedTuple

from headroom.models import files
from headroom.models.checkpoint.fields import check, read_json_if_there, reading
from headroom.models.checkpoint.modules import adds_generation_prompt
from headroom.models.checkpoint.prompt import INSTRUCTED, PUBLISHED, QUERY, TITLE, Form, Prompt
from headroom.models.checkpoint.sandbox import run
from headroom.models.files import Json

PAIRS = [
    ("angle bracket", "steel angle"),
    ("what is 12?", "-5 % (off)?\n"),
    ("  usb  lamp \n", " 中文 Résumé\n\n"),
    ("TOOL!", "a\ttab"),
    ("usb", ""),
    ("usb", "usb"),
]
"""Pairs whose tokens are compared with those of transformers."""

MAX_BYTES = 256 << 10
"""The longest chat template that is read, each trial of which holds it several times; published ones have up
to 20 kB."""


class Texts(NamedTuple):
    """The texts of a prompt."""

    query: str
    title: str
    instruction: str | None = None
    as_message: bool = False  # the instruction is a system message too, and not the variable alone


def read_prompt(
    directory: Path, family: str, instruction: str | None
) -> tuple[Prompt, dict[Texts, list[int]]]:
    """Return the prompt of a checkpoint, and examples of the tokens that transformers gives it.

    instruction: of pairs without one. Without a template, and with one that takes neither query nor document,
    it is the prompt of the family's published reranker. Raises UnsupportedCheckpoint for a template whose
    prompts are not fixed texts around a query, then a title, and perhaps an instruction.
    """
    source = _source(directory)
    by_template = _by_template(directory, source) if source else None
    prompt, examples = by_template or (PUBLISHED[family], {})
    default = instruction or prompt.instruction
    is_right = prompt.plain if default is None else prompt.instructed
    problem = "takes no instruction, and the checkpoint names one" if default else "needs an instruction"
    check(is_right, f"{directory}: the prompt {problem}")
    return Prompt(prompt.plain, prompt.instructed, default), examples


def _source(directory: Path) -> str:
    """Return the text of a checkpoint's chat templates, "" if it has none. Raises UnsupportedCheckpoint if it
    is longer than any usual one."""
    file = directory / "chat_template.jinja"
    with reading(file):
        source = files.read_text(file) if file.is_file() else ""
    options = read_json_if_there(directory / "tokenizer_config.json")
    source += str(options.get("chat_template") or "")
    problem = f"{directory}: the chat template is longer than {MAX_BYTES >> 10} KiB"
    check(len(source.encode(errors="replace")) <= MAX_BYTES, problem)
    return source


def _by_template(directory: Path, source: str) -> tuple[Prompt, dict[Texts, list[int]]] | None:
    """Return the prompt of a template and examples of it; None if it takes neither query nor document."""
    rendered = _render(directory, source)
    ways = [(None, False), (INSTRUCTED, True), (INSTRUCTED, False)]
    marked = {way: _marked(rendered[Texts(QUERY, TITLE, *way)]) for way in ways}
    plain = marked[None, False]
    asked = next((way for way in ways if INSTRUCTED in marked[way]), None)
    where = f"{directory}: the chat template"
    if not plain and asked is None:
        _check_takes_nothing(rendered[Texts(QUERY, TITLE)], source, where)
        return None
    check("strftime_now" not in source, f"{where} writes the date, so its prompts are not the same every day")
    is_right = all(INSTRUCTED in text or text in ("", plain) or not plain for text in marked.values())
    check(is_right, f"{where} changes with an instruction that it does not show")
    instructed = "" if asked is None else marked[asked]
    examples = {}
    for texts, result in rendered.items():
        form = plain if texts.instruction is None else instructed
        is_asked = texts.instruction is None or (asked is not None and texts.as_message == asked[1])
        if form and is_asked:
            _check_fills(form, texts, result, where)
            if texts[:2] in PAIRS and texts.instruction != source:
                examples[texts] = result["ids"]
    prompt = Prompt(
        plain=Form.of(plain) if plain else None, instructed=Form.of(instructed) if instructed else None
    )
    return prompt, examples


def _check_takes_nothing(result: Json, source: str, where: str) -> None:
    """Raise UnsupportedCheckpoint if a template takes query or document. result: of the marks."""
    shown = re.sub(f"[^{QUERY}{TITLE}]", "", result["text"])
    names_roles = result["error"] and re.search("['\"](query|document)['\"]", source)
    order = result["error"] or shown.replace(QUERY, "the query, ").replace(TITLE, "the document, ")
    problem = f"shows {order}but supported is the query once, and then the document"
    check(not shown and not names_roles, f"{where} {problem}")


def _check_fills(form: str, texts: Texts, result: Json, where: str) -> None:
    """Raise UnsupportedCheckpoint unless a template puts texts in the place of a form's marks."""
    values = {QUERY: texts.query, TITLE: texts.title, INSTRUCTED: texts.instruction or ""}
    check(
        result["text"] == form.translate({ord(mark): text for mark, text in values.items()}),
        f"{where} does more than to put texts in their places: of the query {texts.query[:40]!r} and the "
        f"document {texts.title[:40]!r} it makes {result['text'][:300] or result['error']!r}",
    )


def _render(directory: Path, source: str) -> dict[Texts, Json]:
    """Return what a template makes of texts: of the marks first. Its own source holds all words that it
    compares texts with, and letters and signs of all kinds."""
    pairs = [(QUERY, TITLE), *PAIRS, (source, f"<&>{source}"), ("long " * 5_000, "word " * 5_000)]
    instructions = product([INSTRUCTED, "find it: now?", " Judge\n", source], [True, False])
    trials = [Texts(*pair, *way) for way in [(None, False), *instructions] for pair in pairs]
    calls = []
    for texts in trials:
        messages = [{"role": "query", "content": texts.query}, {"role": "document", "content": texts.title}]
        if texts.as_message:
            messages.insert(0, {"role": "system", "content": texts.instruction or ""})
        options: Json = {"add_generation_prompt": adds_generation_prompt(directory)}
        if texts.instruction is not None:
            options["instruction"] = texts.instruction
        calls.append((messages, options))
    return dict(zip(trials, run(directory, conversations=calls), strict=True))


def _marked(result: Json) -> str:
    """Return a rendered text that shows the mark of the query, then that of the title, once each; else ""."""
    text = str(result["text"])
    return text if re.sub(f"[^{QUERY}{TITLE}]", "", text) == QUERY + TITLE else ""
