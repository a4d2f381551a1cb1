"""The program of `helm test`: asks a release whether it is ready, and for the scores of two titles."""

import json
import os
import sys
import urllib.error
import urllib.request

URL = os.environ["HEADROOM_URL"]
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the service is in this cluster
TITLES = ["Simpson Strong-Tie 12-Gauge Angle", "Wood deck screws"]


def ask(path: str, body: dict[str, object] | None = None) -> bytes:
    """Return the body of an answer. Raises OSError, also if it is an error."""
    headers = {
        "authorization": f"Bearer {os.environ['HEADROOM_API_KEY']}",
        "content-type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    with DIRECT.open(urllib.request.Request(URL + path, data, headers), timeout=60) as answer:
        content: bytes = answer.read()
        return content


try:
    ask("/health/ready")
    results = json.loads(ask("/v1/score", {"query": "angle bracket", "titles": TITLES}))["results"]
except urllib.error.HTTPError as error:
    sys.exit(f"{error.url} answers {error.code}: {error.read(1000).decode(errors='replace')}")
except OSError as error:
    sys.exit(f"{URL} does not answer ({error}). Is a pod ready, and does networkPolicy.from admit this one?")
for title, result in zip(TITLES, results, strict=True):
    print(f"{result['score']:.3f}  {title}")
