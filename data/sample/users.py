"""Plays the users of docs/tutorial.md: each asks a query of the sample and takes the first exact title.

python data/sample/users.py http://127.0.0.1:8000 2000
"""

from __future__ import annotations

import gzip
import json
import os
import random
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

PAIRS = Path(__file__).parent / "test.jsonl.gz"

REPORT_USERS = 100
"""One line is printed for so many users."""


def pages() -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the queries of the sample that have an exact title, each with its judged titles."""
    queries: dict[str, list[dict[str, Any]]] = {}
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            queries.setdefault(pair["query"], []).append(pair)
    return [(query, page) for query, page in queries.items() if any(pair["grade"] == 4 for pair in page)]


def post(url: str, body: dict[str, Any]) -> Any:
    """Send JSON and return the answer's; wait and retry if the service is busy."""
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {os.environ['HEADROOM_API_KEY']}",
    }
    while True:
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code != 429:
                raise
            time.sleep(int(error.headers["retry-after"]))


def visit(url: str, number: int, asked: list[tuple[str, list[dict[str, Any]]]]) -> None:
    """Ask one query as one user, and send 1/rank of the first title that is exactly what was asked for."""
    query, page = random.Random(number).choice(asked)
    unit = f"user-{number}"
    body = {"query": query, "titles": [pair["title"] for pair in page], "unit": unit}
    results = sorted(post(f"{url}/v1/score", body)["results"], key=lambda result: -result["score"])
    exact = [rank for rank, result in enumerate(results, 1) if page[result["index"]]["grade"] == 4]
    outcome = {"experiment": "slim", "unit": unit, "metric": "reciprocal_rank", "id": unit}
    outcome |= {"value": 1 / exact[0], "time": time.time()}
    post(f"{url}/v1/outcomes", {"outcomes": [outcome]})


def main() -> None:
    """Play the users."""
    url = sys.argv[1]
    users = int(sys.argv[2])
    asked = pages()
    with ThreadPoolExecutor(2) as threads:
        visits = threads.map(lambda number: visit(url, number, asked), range(users))
        for done, _ in enumerate(visits, start=1):
            if done % REPORT_USERS == 0 or done == users:
                print(f"{done} of {users} users have asked a query and sent an outcome", flush=True)


if __name__ == "__main__":
    main()
