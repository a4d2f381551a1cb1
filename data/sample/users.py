"""Plays the users of docs/tutorial.md: each asks a query of the sample, looks down the list, and clicks.

python data/sample/users.py http://127.0.0.1:8000 2000

If the list is interleaved, its clicks are sent. In an A/B test, 1/rank of the first exact title is.
"""

from __future__ import annotations

import argparse
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

TITLES = 10
"""How many titles of a query are ranked."""

EXACT = 4
ATTRACTION = (0.02, 0.1, 0.2, 0.4, 0.8)
"""The chance that a user who sees a title clicks it, by its grade. The title at rank k is seen with 1/k."""

RETRIED = (429, 503)
"""Statuses of a busy service, and of one that is starting."""

FIRST_REPORT = 10
REPORT_SECONDS = 5.0
"""After so many users a line is printed, and then one in so many seconds."""

Page = list[dict[str, Any]]


def pages() -> list[tuple[str, Page]]:
    """Return the queries of the sample that have an exact title, each with its judged titles."""
    queries: dict[str, Page] = {}
    with gzip.open(PAIRS, "rt", encoding="utf-8") as lines:
        for line in lines:
            pair = json.loads(line)
            queries.setdefault(pair["query"], []).append(pair)
    asked = [(query, page[:TITLES]) for query, page in queries.items()]
    return [(query, page) for query, page in asked if any(pair["grade"] == EXACT for pair in page)]


def post(url: str, body: dict[str, Any]) -> Any:
    """Send JSON and return the answer's; wait and retry if the service is busy. Raises OSError."""
    headers = {"content-type": "application/json"}
    key = os.environ.get("HEADROOM_API_KEY")
    if key:
        headers["authorization"] = f"Bearer {key}"
    while True:
        try:
            request = urllib.request.Request(url, json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code not in RETRIED:
                raise OSError(f"{error.code}: {error.read().decode()}") from None
            time.sleep(int(error.headers["retry-after"]))


def visit(url: str, number: int, asked: list[tuple[str, Page]]) -> bool:
    """Ask one query as one user, and send what the user does with the list.

    Return whether the user is in an experiment; if not, nothing is sent.
    """
    chance = random.Random(number)
    query, page = chance.choice(asked)
    unit = f"user-{number}"
    body = {"query": query, "titles": [pair["title"] for pair in page], "unit": unit}
    answer = post(f"{url}/v1/score", body)
    assignment = answer.get("assignment")
    if assignment is None:
        return False
    shown = sorted(answer["results"], key=lambda result: -result["score"])
    indices = [result["index"] for result in shown]
    event = {"experiment": assignment["experiment"], "unit": unit, "time": time.time()}
    impression = assignment.get("impression")
    if impression is None:
        exact = [rank for rank, index in enumerate(indices, 1) if page[index]["grade"] == EXACT]
        events = [event | {"metric": "reciprocal_rank", "value": 1 / exact[0], "id": unit}]
    else:
        events = [
            event
            | {
                "metric": "click",
                "value": 1,
                "impression": impression,
                "index": index,
                "id": f"{unit}-{index}",
            }
            for rank, index in enumerate(indices, 1)
            if chance.random() < ATTRACTION[page[index]["grade"]] / rank
        ]
    if events:
        post(f"{url}/v1/outcomes", {"outcomes": events})
    return True


def play(url: str, users: int) -> None:
    """Let so many users ask the service at a URL, and say how far they are."""
    asked = pages()
    began = time.monotonic()
    reported_at = began
    exposed = 0
    with ThreadPoolExecutor(2) as threads:
        visits = threads.map(lambda number: visit(url, number, asked), range(users))
        for done, is_exposed in enumerate(visits, start=1):
            exposed += is_exposed
            now = time.monotonic()
            if done in (FIRST_REPORT, users) or now - reported_at >= REPORT_SECONDS:
                reported_at = now
                left = round((now - began) * (users - done) / done)
                print(
                    f"{done} of {users} users have asked a query, {exposed} in an experiment; {left} s left",
                    flush=True,
                )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Play the users of docs/tutorial.md.")
    parser.add_argument("url", help="of the service, such as http://127.0.0.1:8000")
    parser.add_argument("users", type=int, help="how many users ask a query each")
    options = parser.parse_args()
    try:
        play(options.url, options.users)
    except OSError as error:
        sys.exit(f"{options.url}: {error}")
