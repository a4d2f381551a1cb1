"""Files in S3: pyarrow's own client against moto, which stands in for Amazon's server."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from pyarrow import fs

from tests.clients.environments import HERE, python
from tests.service.files.test_job import pairs_file

FAILS = """
import sys
from headroom.service.files.storage import Storage

with Storage(sys.argv[1]).create(sys.argv[1]) as stream:
    stream.write(bytes(int(sys.argv[2])))
    raise RuntimeError("meanwhile")
"""
pytestmark = pytest.mark.more
HEADROOM = Path(sys.executable).with_name("headroom")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    command = [python("s3"), HERE / "scripts" / "s3.py"]
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


@pytest.fixture(scope="module")
def environment(endpoint: str) -> dict[str, str]:
    """The environment of an operator with a store of their own."""
    keys = {"AWS_ACCESS_KEY_ID": "somebody", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
    return os.environ | keys | {"AWS_ENDPOINT_URL": endpoint}


@pytest.fixture(scope="module")
def store(endpoint: str) -> fs.S3FileSystem:
    made = fs.S3FileSystem(
        access_key="somebody",
        secret_key="secret",
        region="us-east-1",
        endpoint_override=endpoint,
        allow_bucket_creation=True,
    )
    made.create_dir("logs")
    return made


def names(store: fs.S3FileSystem, directory: str) -> list[str]:
    found = store.get_file_info(fs.FileSelector(directory, recursive=True))
    return sorted(info.path for info in found if info.type == fs.FileType.File)


def headroom(environment: dict[str, str], *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(HEADROOM), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_a_file_in_s3_with_an_awkward_name_is_scored_as_one_on_disk(
    tiny_checkpoint: Path, tmp_path: Path, environment: dict[str, str], store: fs.S3FileSystem
) -> None:
    name = "ts=00%3A00 é #1 [a]?.jsonl"
    content = pairs_file(tmp_path / name, 120).read_bytes()
    with store.open_output_stream(f"logs/pairs/{name}") as stream:
        stream.write(content)
    for source, target in (
        (tmp_path / name, tmp_path / f"scored {name}"),
        (f"s3://logs/pairs/{name}", f"s3://logs/scored/{name}"),
    ):
        result = headroom(
            environment, "score", "--input", source, "--output", target, "--model", tiny_checkpoint
        )
        assert result.returncode == 0, result.stderr

    assert names(store, "logs/scored") == [f"logs/scored/{name}", f"logs/scored/{name}.rejects.jsonl"]
    with store.open_input_stream(f"logs/scored/{name}") as stream:
        assert stream.read() == (tmp_path / f"scored {name}").read_bytes()


def test_an_upload_that_fails_leaves_the_object_that_was_there(
    environment: dict[str, str], store: fs.S3FileSystem, endpoint: str
) -> None:
    """Also when the process ends, where pyarrow would complete the upload. Nor is there an unfinished upload,
    whose pieces Amazon would store and bill until somebody aborts it."""
    with store.open_output_stream("logs/failed.csv") as stream:
        stream.write(b"before")
    for name, before in (("failed.csv", b"before"), ("new.csv", None)):
        for size in (1, 30 << 20):  # pyarrow sends the larger one in pieces
            done = subprocess.run(
                [sys.executable, "-c", FAILS, f"s3://logs/{name}", str(size)],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=300,
            )
            assert done.returncode == 1
            assert done.stderr.endswith("RuntimeError: meanwhile\n")
            if before is None:
                assert f"logs/{name}" not in names(store, "logs")
            else:
                with store.open_input_stream(f"logs/{name}") as stream:
                    assert stream.read() == before
    with urlopen(f"{endpoint}/logs?uploads") as answer:
        assert "<Upload>" not in answer.read().decode()
