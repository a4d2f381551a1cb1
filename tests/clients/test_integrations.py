"""The configurations of docs/integrations.md, run as they stand there, with the real clients."""

import ast
import re
from pathlib import Path

import httpx
import pytest
import yaml

from tests.clients import environments
from tests.clients.conftest import DOCUMENTS, QUERY
from tests.service.running import Server

pytestmark = pytest.mark.more

PAGE = (Path(__file__).parents[2] / "docs" / "integrations.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def block(section: str, language: str) -> str:
    """The one block of this language in a section."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", SECTIONS[section], re.DOTALL)
    return str(text)


def test_every_block_of_the_page_can_be_read() -> None:
    for section in ("Weaviate", "Open WebUI", "LibreChat", "LiteLLM"):
        assert isinstance(yaml.safe_load(block(section, "yaml")), dict)
    for section in ("Milvus", "Qdrant, Vespa, Solr"):
        ast.parse(block(section, "python"))
    assert len(re.findall("```", PAGE)) == 12


@pytest.mark.slow
def test_the_pages_snippets_find_the_best_hits(server: Server) -> None:
    rows = re.findall(
        r"^\| `([\w-]+)` \| `[^`]*` \| `([^`]*)` \|$", SECTIONS["Qdrant, Vespa, Solr"], re.MULTILINE
    )
    address = ("http://headroom:8000", server.url)

    best = environments.run(
        "sdk",
        "integrations.py",
        query=QUERY,
        documents=DOCUMENTS,
        rerank=block("Qdrant, Vespa, Solr", "python").replace(*address),
        title_of=dict(rows),
        litellm=block("LiteLLM", "yaml").replace(*address),
    )

    answer = httpx.post(f"{server.url}/v1/score", json={"query": QUERY, "titles": DOCUMENTS}).json()
    scores = [result["score"] for result in answer["results"]]
    expected = sorted(range(len(scores)), key=lambda index: -scores[index])[:3]
    assert expected != [0, 1, 2]
    assert best == dict.fromkeys(("qdrant-client", "pyvespa", "pysolr", "litellm"), expected)
