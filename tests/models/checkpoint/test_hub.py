"""Models of the hub, from a stand-in of it, as a command that is given their names meets them."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from headroom.models.checkpoint.hub import name_of, origin_of
from tests.checkpoints import load, random_model, write_checkpoint, write_vocabulary
from tests.families import edit_config
from tests.models.checkpoint.hub_server import LARGE, Hub, running_hub

PAIR = ("angle bracket", "steel bracket")
READER, OTHER = "hf_reader", "hf_other"


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


Answer = tuple[str | None, str | None]
"""The directory in which a model is located, or why it cannot be."""


def answers(hub: Hub, cache: Path, *names: str, **environment: str) -> tuple[list[Answer], str]:
    """Return the answer for each model, and what was said. The hub's client reads its settings once."""
    run = subprocess.run(
        [sys.executable, "-c", LOCATE, *names],
        env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(cache), "HF_HOME": str(cache)}
        | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    for secret in (READER, OTHER):
        assert secret not in run.stdout + run.stderr
    return [(*json.loads(line),) for line in run.stdout.splitlines()], run.stderr


def located(hub: Hub, cache: Path, *names: str, **environment: str) -> tuple[list[Path], str]:
    """Return the directory in which each model is located, and what was said."""
    found, said = answers(hub, cache, *names, **environment)
    assert [refusal for _, refusal in found] == [None] * len(names)
    return [Path(str(directory)) for directory, _ in found], said


def refusals(hub: Hub, cache: Path, *names: str, **environment: str) -> list[str]:
    """Return why each model cannot be located, in one sentence."""
    found, _ = answers(hub, cache, *names, **environment)
    assert [directory for directory, _ in found] == [None] * len(names)
    assert not any("\n" in str(sentence) for _, sentence in found)
    return [str(sentence) for _, sentence in found]


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

    (newest, old, pinned, shards, local), said = located(hub, cache, *names, HF_TOKEN=READER)

    host = hub.url.removeprefix("http://")
    size = f"{(second / 'model.safetensors').stat().st_size / 1e6:.1f} MB"
    line = f"headroom: downloading org/tiny (commit {commits[1][:12]}, {size}) from {host}\n"
    assert (said.count(line), said.count("\n")) == (1, 3)
    assert pinned == newest
    for found, source in ((newest, second), (old, first), (shards, sharded), (local, first)):
        np.testing.assert_array_equal(load(found).score([PAIR]).logits, load(source).score([PAIR]).logits)
    large = sorted(file for file in hub.downloads if file.endswith(LARGE))
    assert large == sorted(["model.safetensors"] * 2 + [path.name for path in sharded.glob("*.safetensors")])
    assert {file for file in hub.downloads if file not in large} == {
        *("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"),
    }
    assert hub.leaks == []

    assert origin_of(newest) == ("org/tiny", commits[1])
    assert name_of("org/tiny@feature/x", newest) == "tiny"


def test_without_the_hub_the_cache_is_used(hub: Hub, tmp_path: Path) -> None:
    checkpoint, cache = write_checkpoint(tmp_path / "tiny"), tmp_path / "cache"
    commit = next(iter(hub.add("org/tiny", checkpoint).commits))
    names = ["org/tiny", f"org/tiny@{commit}"]
    whole, _ = answers(hub, cache, *names)
    assert [Path(str(directory)).name for directory, _ in whole] == [commit, commit]
    hub.repositories["org/tiny"].fault = 503

    busy, said_busy = answers(hub, cache, *names)
    offline, said_offline = answers(hub, cache, *names, "org/other", HF_HUB_OFFLINE="1")
    hub.url = "http://127.0.0.1:9"
    gone, said_gone = answers(hub, cache, *names, "org/other")

    assert busy == offline[:2] == gone[:2] == whole
    assert f"try again later; using commit {commit} from the cache" in said_busy
    assert f"HTTPS_PROXY and the disk; using commit {commit} from the cache" in said_gone
    assert (said_busy + said_gone).count("\n") == 2  # a commit that is there is no question for the hub
    assert said_offline == ""
    absent, unreachable = (str(found[2][1]) for found in (offline, gone))
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
    edit_config(other, model_type="nothing-we-know")
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
    assert loaded.name in other.commits
    assert set(hub.large) == {"org/other"}
    assert len(hub.downloads) == len(set(hub.downloads))  # of org/other alone
