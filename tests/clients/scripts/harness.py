"""What the scripts share; it runs in the clients' environments, so it needs the standard library only."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

ARGUMENTS: dict[str, Any] = json.loads(os.environ["ARGUMENTS"])
"""What the test passed to `environments.run`."""

OUTCOMES: dict[str, dict[str, Any]] = {}
"""What each client did, by client and case."""


def attempt(client: str, case: str, call: Callable[[], Any]) -> dict[str, Any]:
    """Note what a call returned or raised, under `client` and `case`."""
    try:
        outcome: dict[str, Any] = {"returned": call()}
    except Exception as error:
        outcome = {"raised": [kind.__name__ for kind in type(error).__mro__], "text": str(error)}
    OUTCOMES.setdefault(client, {})[case] = outcome
    return outcome


def attempt_until_raised(client: str, case: str, call: Callable[[], Any], patience_s: float = 60) -> None:
    """As `attempt`, again and again until the call raises: a queue is not full at every moment."""
    deadline = time.monotonic() + patience_s
    while "raised" not in attempt(client, case, call) and time.monotonic() < deadline:
        pass


def finish() -> None:
    """Print the outcomes, for `environments.run`."""
    print(json.dumps(OUTCOMES, default=str))
