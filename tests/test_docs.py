"""Links between the pages of the repository: the file exists, and so does the heading. And what they run."""

import csv
import json
import os
import re
import runpy
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headroom.models.quality.labelled import query_key, read_labelled

ROOT = Path(__file__).parents[1]
LISTED = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False)
PAGES = LISTED.stdout.split()
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"(?<![\w/.])(?:benchmarks|data|deploy|loadtest|models|service|tests|website)/[\w./-]*\w")


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub makes anchors of them."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ +(.*?) *$", text, flags=re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


@pytest.mark.skipif(not PAGES, reason="not a git checkout")
def test_links_lead_to_files_and_headings_that_exist() -> None:
    broken = []
    for name in PAGES:
        page = ROOT / name
        for link in LINK.findall(CODE.sub("", page.read_text("utf-8"))):
            path, _, anchor = link.partition("#")
            if ":" in path:
                continue  # another site
            target = page.parent / path if path else page
            if not target.exists():
                broken.append(f"{name}: {link}: no such file")
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                broken.append(f"{name}: {link}: no such heading")
    assert broken == []


@pytest.mark.skipif(not PAGES, reason="not a git checkout")
def test_every_file_that_a_page_names_is_there() -> None:
    missing = []
    for name in PAGES:
        for code in re.findall(r"`([^`\n]+)`", (ROOT / name).read_text("utf-8")):
            missing += [f"{name}: {file}" for file in NAMED.findall(code) if not (ROOT / file).exists()]
    assert missing == []


@pytest.mark.parametrize(("name", "words"), [("README.md", 700), ("docs/tutorial.md", 1500)])
def test_the_first_pages_are_short(name: str, words: int) -> None:
    assert len((ROOT / name).read_text("utf-8").split()) <= words


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_no_page_is_long(page: Path) -> None:
    limit = 450 if page.parent.name == "decisions" else 3500
    assert len(page.read_text("utf-8").split()) <= limit


MEASURED = "benchmarks/results/"
"""`make bench` writes the pages of this folder: tables of every figure. They do not count."""


@pytest.mark.skipif(not PAGES, reason="not a git checkout")
def test_all_pages_together_are_not_long() -> None:
    words = {name: len((ROOT / name).read_text("utf-8").split()) for name in PAGES}
    assert {"README.md", "CHANGELOG.md", "deploy/README.md", "data/README.md", "docs/operations.md"} <= set(
        words
    )
    assert sum(count for name, count in words.items() if not name.startswith(MEASURED)) <= 40_000


def test_the_sample_of_judgments_is_what_its_command_makes(tmp_path: Path) -> None:
    sample = ROOT / "data" / "sample"
    made = runpy.run_path(str(sample / "make_judgments.py"))
    made["write"](tmp_path / "judgments.csv")
    text = (sample / "judgments.csv").read_text("utf-8")
    assert text == (tmp_path / "judgments.csv").read_text("utf-8")
    assert len(text.splitlines()) == 301


def test_the_unjudged_pairs_are_as_many_as_the_docs_say_and_of_no_query_that_is_measured_on(
    tmp_path: Path,
) -> None:
    sample = ROOT / "data" / "sample"
    file = tmp_path / "runs" / "pairs.csv"  # in a fresh clone there is no runs/
    subprocess.run([sys.executable, sample / "make_pairs.py", file], check=True)
    with file.open(newline="", encoding="utf-8") as stream:
        pairs = [(row["query"], row["title"]) for row in csv.DictReader(stream)]
    assert len(pairs) == 57_270
    judged = read_labelled(sample / "test.jsonl.gz", grades=5)
    assert not {query_key(query) for query, _ in pairs} & {query_key(pair.query) for pair in judged}


class Busy(BaseHTTPRequestHandler):
    """A service that likes each title less than the one before it, in an experiment of one kind."""

    assignment: dict[str, Any]
    outcomes: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.outcomes += body.get("outcomes", ())
        results = [{"index": i, "score": -i} for i, _ in enumerate(body.get("titles", ()))]
        content = json.dumps({"results": results, "assignment": self.assignment}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


USERS = 250


def played(**assignment: str) -> tuple[list[str], list[dict[str, Any]]]:
    """The lines of the tutorial's users, and the outcomes that they sent."""
    handler = type("Handler", (Busy,), {"assignment": {"experiment": "slim"} | assignment, "outcomes": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = [sys.executable, str(ROOT / "data" / "sample" / "users.py")]
        command += [f"http://127.0.0.1:{server.server_port}", str(USERS)]
        environment = os.environ | {"HEADROOM_API_KEY": "tutorial"}
        run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        server.shutdown()
    return run.stdout.splitlines(), handler.outcomes


def test_the_users_of_the_tutorial_click_what_they_see_and_say_how_far_they_are() -> None:
    lines, clicks = played(arm="interleaved", impression="9f0c")
    words = [line.split() for line in (lines[0], lines[-1])]  # a busy machine prints more between them
    assert [line[:3] for line in words] == [["10", "of", "250"], ["250", "of", "250"]]
    assert [line[8] for line in words] == ["10", "250"]  # how many are in the experiment
    assert all(line.endswith(" s left") for line in lines)
    assert lines[-1].endswith("; 0 s left")
    assert {(click["metric"], click["impression"], click["value"]) for click in clicks} == {
        ("click", "9f0c", 1)
    }
    assert len({click["id"] for click in clicks}) == len(clicks)
    assert 0.6 * USERS < len({click["unit"] for click in clicks}) < 0.95 * USERS
    ranks = [click["index"] + 1 for click in clicks]  # the service keeps the request's order
    assert max(ranks) == 10
    assert ranks.count(1) > ranks.count(2) > ranks.count(6) > 0
