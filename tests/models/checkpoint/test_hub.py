"""Models of the hub, from a stand-in of it, as `headroom score --model` meets them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from headroom import Classifier
from headroom.models.checkpoint.hub import name_of, origin_of
from tests.checkpoints import random_model, write_checkpoint, write_vocabulary
from tests.models.checkpoint.hub_server import LARGE, Hub, running_hub

PAIR = ("angle bracket", "steel bracket")
READER, OTHER = "hf_reader", "hf_other"

SEVERAL = """
import contextlib, io, json, sys
from headroom.service.cli import main
for name in sys.argv[1:]:
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["headroom", "score", "angle bracket", "steel bracket", "--model", name, "--device", "cpu"]
    sys.argv += ["--dtype", "float32"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        status = end.code or 0
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
"""`headroom score` for one model after another; the hub's client reads its settings once per process."""


class Output(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as hub:
        hub.tokens = {READER, OTHER}
        yield hub


LOCATE = """
import json, sys
from headroom.models.checkpoint.hub import locate
from headroom.models.errors import ModelError
for name in sys.argv[1:]:
    try:
        print(json.dumps([str(locate(name)), None]))
    except ModelError as error:
        print(json.dumps([None, str(error)]))
"""
"""Without torch, which takes seconds."""


def located(hub: Hub, cache: Path, *names: str, **environment: str) -> tuple[list[str], str]:
    """Return the name of the directory in which each model is located, and what was said."""
    run = python(LOCATE, hub, cache, *names, **environment)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert [refusal for _, refusal in found] == [None] * len(names)
    return [Path(directory).name for directory, _ in found], run.stderr


def refusals(hub: Hub, cache: Path, *names: str, **environment: str) -> list[str]:
    """Return why each model cannot be located, in one sentence that holds no token."""
    run = python(LOCATE, hub, cache, *names, **environment)
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert [directory for directory, _ in found] == [None] * len(names)
    for secret in (READER, OTHER):
        assert secret not in run.stdout + run.stderr
    sentences = [refusal for _, refusal in found]
    assert not any("\n" in sentence for sentence in sentences)
    return sentences


def score(hub: Hub, cache: Path, *names: str, **environment: str) -> list[Output]:
    """Run `headroom score --model NAME` for each name."""
    run = python(SEVERAL, hub, cache, *names, **environment)
    assert run.stderr == ""
    return [Output(*json.loads(line)) for line in run.stdout.splitlines()]


def python(
    program: str, hub: Hub, cache: Path, *names: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *names],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache)}
        | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )


def expected(checkpoint: Path) -> str:
    clf = Classifier.load(checkpoint, "cpu", "float32")
    scores = clf.score([PAIR])
    return f"{scores.score[0]:.4f}\t{clf.grades[scores.grade[0]]}\t{PAIR[1]}\n"


def test_what_is_needed_is_downloaded_once_of_the_revision_that_was_named(hub: Hub, tmp_path: Path) -> None:
    first, second = write_checkpoint(tmp_path / "1", seed=1), write_checkpoint(tmp_path / "2", seed=2)
    (second / "pytorch_model.bin").write_bytes(b"the same in another format")
    (second / "onnx").mkdir()
    for file in ("onnx/model.onnx", "tf_model.h5", "flax_model.msgpack", "onnx/config.json", "README.md"):
        (second / file).write_text("not for us")
    sharded = tmp_path / "sharded"
    random_model(3).save_pretrained(sharded, max_shard_size="60KB")
    write_vocabulary(sharded)
    commits = list(hub.add("org/tiny", first, second, reader=READER).commits)
    hub.add("org/sharded", sharded)
    (tmp_path / "x@y").mkdir()
    shutil.copytree(first, tmp_path / "x@y", dirs_exist_ok=True)
    cache = tmp_path / "cache"
    names = ["org/tiny", "org/tiny@v1", f"org/tiny@{commits[1]}", "org/sharded", str(tmp_path / "x@y")]

    newest, old, pinned, shards, local, missing = score(hub, cache, *names, "org/none", HF_TOKEN=READER)

    host = hub.url.removeprefix("http://")
    size = f"{(second / 'model.safetensors').stat().st_size / 1e6:.1f} MB"
    assert newest == (
        0,
        expected(second),
        f"headroom: downloading org/tiny (commit {commits[1][:12]}, {size}) from {host}\n",
    )
    assert old.out == local.out == expected(first)
    assert pinned == (0, newest.out, "")
    assert shards.out == expected(sharded)
    assert (missing.status, missing.out, missing.err.count("\n")) == (1, "", 1)
    assert missing.err.startswith("headroom: there is no directory org/none, and ")
    large = sorted(file for file in hub.downloads if file.endswith(LARGE))
    assert large == sorted(["model.safetensors"] * 2 + [path.name for path in sharded.glob("*.safetensors")])
    assert {file for file in hub.downloads if file not in large} == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"),
    }
    assert hub.leaks == []

    snapshot = cache / "models--org--tiny" / "snapshots" / commits[1]
    assert origin_of(snapshot) == ("org/tiny", commits[1])
    assert name_of("org/tiny@feature/x", snapshot) == "tiny"


def test_without_the_hub_the_cache_is_used(hub: Hub, tmp_path: Path) -> None:
    checkpoint, cache = write_checkpoint(tmp_path / "tiny"), tmp_path / "cache"
    commit = next(iter(hub.add("org/tiny", checkpoint).commits))
    assert located(hub, cache, "org/tiny")[0] == [commit]
    names = ["org/tiny", f"org/tiny@{commit}"]
    hub.repositories["org/tiny"].fault = 503

    busy = located(hub, cache, *names)
    offline = located(hub, cache, *names, HF_HUB_OFFLINE="1")
    (absent,) = refusals(hub, cache, "org/other", HF_HUB_OFFLINE="1")
    hub.url = "http://127.0.0.1:9"
    gone = located(hub, cache, *names)
    (unreachable,) = refusals(hub, cache, "org/other")

    assert busy[0] == offline[0] == gone[0] == [commit, commit]
    assert f"try again later; using commit {commit} from the cache" in busy[1]
    assert f"HTTPS_PROXY and the disk; using commit {commit} from the cache" in gone[1]
    assert (busy[1] + gone[1]).count("\n") == 2  # a commit that is there is no question for the hub
    assert offline[1] == ""
    assert f"org/other is not whole in the cache ({cache}), and the hub is not asked" in absent
    assert "no directory org/other, and it cannot be downloaded from 127.0.0.1:9 to " in unreachable


def test_each_refusal_of_the_hub_says_what_to_do(hub: Hub, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "tiny")
    hub.add("org/gated", checkpoint, gated=True, reader=READER)
    hub.add("org/private", checkpoint, reader=READER)
    hub.add("org/public", checkpoint)
    hub.add("org/busy", checkpoint, fault=429)
    hub.add("org/short", checkpoint, fault="truncated")
    (tmp_path / "onnx").mkdir()
    shutil.copy(checkpoint / "config.json", tmp_path / "onnx")
    hub.add("org/onnx", tmp_path / "onnx")
    other = write_checkpoint(tmp_path / "other")
    config = json.loads((other / "config.json").read_text()) | {"model_type": "nothing-we-know"}
    (other / "config.json").write_text(json.dumps(config))
    hub.add("org/other", other)
    host, cache = hub.url.removeprefix("http://"), tmp_path / "cache"
    page = f"{hub.url}/org/gated"
    sentences = {
        "org/gated": f"org/gated is gated; ask for access at {page}, and set HF_TOKEN to a token that",
        "org/private": f"no directory org/private, and {host} has no model of this name that you may read;",
        "org/missing": "check the name, and for a private model HF_TOKEN",
        "org/public@v9": "org/public has no branch, tag or commit 'v9'",
        "org/public@": "name a branch, a tag or a commit after the @",
        "org/busy": f"{host} answers with status 429 to a request for org/busy; check HF_TOKEN, or try",
        "org/short": f"it cannot be downloaded from {host} to {cache}: Consistency check failed",
        "org/onnx": "org/onnx has neither model.safetensors nor pytorch_model.bin",
        "org/other": "nothing-we-know",
        "a b/c": "a b/c does not exist",
        "a/b/c": "a/b/c does not exist",
    }

    found = dict(zip(sentences, refusals(hub, cache, *sentences, HF_TOKEN=OTHER), strict=True))

    wrong = {name: found[name] for name, sentence in sentences.items() if sentence not in found[name]}
    assert wrong == {}
    # What cannot be loaded is refused before its weights come; those of org/short came short.
    assert set(hub.large) == {"org/short"}

    (invalid,) = refusals(hub, cache, "org/public", HF_TOKEN="hf_reader_of_old")
    assert f"{host} answers with status 401 to a request for org/public; check HF_TOKEN" in invalid


def test_small_files_that_are_large_are_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    """They would fill the disk, and only then be refused for their size."""
    checkpoint = write_checkpoint(tmp_path / "tiny")
    zeros = bytes(130 << 20)
    large = hub.add("org/large", checkpoint)
    pinned = next(iter(large.commits))
    large.commits[pinned]["tokenizer.json"] = zeros
    many = hub.add("org/many", checkpoint)
    of_many = next(iter(many.commits.values()))
    most = zeros[: 120 << 20]
    of_many |= {f"masks/{number}.json": most for number in range(5)}
    other = hub.add("org/other", checkpoint)  # what is not loaded may have any size
    next(iter(other.commits.values()))["onnx/model.onnx"] = zeros
    names = ["org/large", f"org/large@{pinned}", "org/many", "org/other"]

    refused = refusals(hub, tmp_path / "cache", *names[:-1])
    (loaded,), _ = located(hub, tmp_path / "cache", names[-1])

    assert refused == [
        "org/large: tokenizer.json is larger than 128 MiB",
        f"org/large@{pinned}: tokenizer.json is larger than 128 MiB",
        "org/many: the files beside its weights have more than 512 MiB",
    ]
    assert loaded in other.commits
    assert set(hub.large) == {"org/other"}
    assert len(hub.downloads) == len(set(hub.downloads))  # of org/other alone
