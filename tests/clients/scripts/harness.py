"""What the scripts share; it runs in the clients' environments, so it needs the standard library only.

A script passes each of its clients to `exercise`, and ends with `finish`.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ARGUMENTS: dict[str, Any] = json.loads(os.environ["ARGUMENTS"])
"""What the test passed to `environments.run`."""
URL: str = ARGUMENTS["url"]
LOCKED: str = ARGUMENTS["locked"]
"""A service that takes the key KEY only. Its queue is full, but for moments, while the file FILL exists."""
KEY: str = ARGUMENTS["key"]
QUERY: str = ARGUMENTS["query"]
DOCUMENTS: list[str] = ARGUMENTS["documents"]

FILL = Path(ARGUMENTS["fill"])

PATIENCE_S = 60

OUTCOMES: dict[str, dict[str, Any]] = {}
"""What each client did, by client and case."""

Rank = Callable[[str, str, str, int], Any]
"""Ranks DOCUMENTS for QUERY with a client. Takes the service's URL, the API key, the model and how many
results are wanted; returns [index, score, text of the document or None] for each, as the client gave them."""


def attempt(client: str, case: str, call: Callable[[], Any]) -> dict[str, Any]:
    """Note what a call returned or raised, under `client` and `case`; the case "full_queue" fills it."""
    if case == "full_queue":
        FILL.touch()
    try:
        outcome: dict[str, Any] = {"returned": call()}
    except Exception as error:
        outcome = {"raised": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
        FILL.unlink(missing_ok=True)
    OUTCOMES.setdefault(client, {})[case] = outcome
    return outcome


def exercise(client: str, rank: Rank) -> None:
    """Use a client in the ways that every client must allow."""
    attempt(client, "top", lambda: rank(URL, "no-key", "rerank-v3.5", 3))
    attempt(client, "all", lambda: rank(URL, "no-key", "rerank-v3.5", len(DOCUMENTS) + 7))
    attempt(client, "variant", lambda: rank(URL, "no-key", "rerank-v3.5@masked", 3))
    attempt(client, "bad_request", lambda: rank(URL, "no-key", "rerank-v3.5@nobody", 3))
    attempt(client, "unknown_key", lambda: rank(LOCKED, "wrong", "rerank-v3.5", 3))
    until_raised(client, lambda: rank(LOCKED, KEY, "rerank-v3.5", 3))


def until_raised(client: str, call: Callable[[], Any]) -> None:
    """Try until the queue is full, which it is nearly all the time."""
    deadline = time.monotonic() + PATIENCE_S
    while "raised" not in attempt(client, "full_queue", call) and time.monotonic() < deadline:
        pass


def finish() -> None:
    """Print the outcomes, for `environments.run`."""
    print(json.dumps(OUTCOMES, default=str))
