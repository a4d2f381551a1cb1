"""Open English WordNet: definitions of words, the wider words, and examples.

Files, src/yaml/ of globalwordnet/english-wordnet without the entries: adj.*, adv.*, noun.* and verb.*.yaml,
each a mapping from a synset's id to its members, definition, example and hypernym (ids), all lists. An
example is a sentence, or a mapping of source and text.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

HYPERNYMS = 2
MEMBERS_PER_HYPERNYM = 2


def text_lines(folder: Path) -> Iterator[str]:
    """Return a line "members (hypernyms): definition" per synset, then a line per example."""
    synsets: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.yaml")):
        with path.open(encoding="utf-8") as file:
            synsets |= yaml.load(file, Loader=yaml.CBaseLoader)
    for synset in synsets.values():
        hypernyms = [
            word
            for wider in synset.get("hypernym", [])[:HYPERNYMS]
            for word in synsets[wider]["members"][:MEMBERS_PER_HYPERNYM]
        ]
        kind = f" ({', '.join(hypernyms)})" if hypernyms else ""
        yield f"{', '.join(synset['members'])}{kind}: {'; '.join(synset['definition'])}"
        yield from (_sentence(example) for example in synset.get("example", []))


def _sentence(example: str | Mapping[str, str]) -> str:
    """Return an example as a line; a quotation is "SOURCE text: TEXT" as YAML writes it, as in training."""
    if isinstance(example, str):
        return example
    return f"{_as_yaml(example['source'])} text: {_as_yaml(example['text'])}"


def _as_yaml(text: str) -> str:
    line, _, _ = yaml.safe_dump(text, width=10_000, allow_unicode=True).partition("\n")
    return line
