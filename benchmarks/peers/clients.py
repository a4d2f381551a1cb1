"""Reads recorded answers with the client that they are for: `clients.py SHAPE FILE TITLES`.

It runs in the clients' environment, without our packages. A server in this process gives the client each
recorded answer in turn. Prints, for each fault, how many the client read as they were sent, as `read`, and
the others by what was wrong, as one line of JSON.
"""

import json
import os
import socket
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks GitHub for prices when it is imported

QUERY = "angle bracket"

Rank = Callable[[list[str]], list[tuple[int, float]]]
"""Sends one request with these documents; returns the client's indices and scores, in its order."""


def by_cohere_2(url: str) -> Rank:
    import cohere

    client = cohere.ClientV2("no-key", base_url=url, max_retries=0)

    def rank(documents: list[str]) -> list[tuple[int, float]]:
        answer = client.rerank(model="any", query=QUERY, documents=documents)
        return [(result.index, result.relevance_score) for result in answer.results]

    return rank


def by_cohere_1(url: str) -> Rank:
    import cohere

    client = cohere.Client("no-key", base_url=url, max_retries=0)

    def rank(documents: list[str]) -> list[tuple[int, float]]:
        answer = client.rerank(query=QUERY, documents=documents, return_documents=True)
        assert all(result.document is not None for result in answer.results)
        return [(result.index, result.relevance_score) for result in answer.results]

    return rank


def by_litellm(url: str) -> Rank:
    import litellm

    def rank(documents: list[str]) -> list[tuple[int, float]]:
        answer = litellm.rerank(
            model="jina_ai/any",
            query=QUERY,
            documents=documents,
            api_base=url,
            api_key="no-key",
            max_retries=0,
        )
        return [(result["index"], result["relevance_score"]) for result in answer.results]

    return rank


def by_rerankers(url: str) -> Rank:
    from rerankers.models.api_rankers import APIRanker

    ranker = APIRanker("any", "no-key", "text-embeddings-inference", verbose=0, url=f"{url}/rerank")

    def rank(documents: list[str]) -> list[tuple[int, float]]:
        return [(result.doc_id, result.score) for result in ranker.rank(QUERY, documents).results]

    return rank


CLIENTS: dict[str, Callable[[str], Rank]] = {
    "cohere 2": by_cohere_2,
    "cohere 1": by_cohere_1,
    "jina": by_litellm,
    "tei": by_rerankers,
}


class Recorded:
    """Answers each request with the next recorded answer."""

    def __init__(self, answers: Iterator[dict[str, Any]]) -> None:
        self.answers = answers
        self.given: dict[str, Any] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while stream.readline():
                length = 0
                while line := stream.readline().strip().lower():
                    name, _, value = line.partition(b":")
                    length = int(value) if name == b"content-length" else length
                stream.read(length)
                body = self.given["body"].encode()
                head = f"HTTP/1.1 {self.given['status']} -\r\ncontent-type: application/json\r\n"
                connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


def main(name: str, file: str, titles: str) -> None:
    """Run the program."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    documents = [f"title {number}" for number in range(int(titles))]
    with Path(file).open(encoding="utf-8") as lines:
        recorded = Recorded(map(json.loads, lines))
        rank = CLIENTS[name](recorded.url)
        for answer in recorded.answers:
            recorded.given = answer
            count = found[answer["fault"]]
            try:
                rows = [list(row) for row in rank(documents)]
            except Exception as error:
                count[f"{name}: {type(error).__name__}: {error}"[:200]] += 1
                continue
            count["read" if rows == answer["rows"] else f"{name}: reads other rows"] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
