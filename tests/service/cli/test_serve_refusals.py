"""`headroom serve` with what it cannot serve: it ends in one line, before anything starts."""

import io
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headroom.loadtest.server import free_port
from headroom.service.cli import serve
from tests.prompt import Run

HEADROOM = Path(sys.executable).with_name("headroom")


def headroom(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [HEADROOM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env={**os.environ, **environment},
    )


def test_a_model_that_is_not_there_fails_in_one_line(tmp_path: Path, run: Run) -> None:
    failed = run("serve", "--model", str(tmp_path / "none"), "--port", str(free_port()), status=1)
    assert failed.out == ""
    reason = failed.err.splitlines()[-1]
    assert reason == f"headroom: {tmp_path / 'none'} does not exist"
    assert "Traceback" not in failed.err
    assert "starting Ray" not in failed.err


@pytest.mark.slow
@pytest.mark.more
def test_weights_that_cannot_be_read_fail_in_one_line(tmp_path: Path, tiny_checkpoint: Path) -> None:
    torn = Path(shutil.copytree(tiny_checkpoint, tmp_path / "torn"))
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    # Serve starts each replica three times before it gives up; once says as much.
    once = {"RAY_SERVE_MAX_PER_REPLICA_RETRY_COUNT": "1"}
    failed = headroom("serve", "--model", torn, "--replicas", "1", "--port", str(free_port()), **once)
    assert failed.returncode == 1
    assert failed.stdout == ""
    reason = failed.stderr.splitlines()[-1]
    assert reason.startswith(f"headroom: {torn}: the weights cannot be read")


@pytest.fixture
def taken_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield str(taken.getsockname()[1])


def test_what_ends_a_service_with_json_logs_is_json_too(
    run: Run, taken_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipeline that reads JSON dropped the one line that says why the service ended."""
    monkeypatch.setenv("HEADROOM_LOG_FORMAT", "json")
    failed = run("serve", "--port", taken_port, status=1)
    (line,) = map(json.loads, failed.err.splitlines())
    assert line.keys() == {"time", "level", "message"}
    assert line["level"] == "ERROR"
    assert line["message"].startswith(f"cannot listen on 127.0.0.1:{taken_port}: ")


def test_nobody_needs_to_read_what_the_service_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `headroom serve 2>&1 | head -2`."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb", buffering=0) as raw:
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, write_through=True))
        with pytest.raises(BrokenPipeError):
            print("a line", file=sys.stderr, flush=True)
        serve._say("a line")
        serve._print("another", sys.stderr)
    monkeypatch.setattr(sys, "stderr", heard := io.StringIO())
    serve._say("a line")
    assert heard.getvalue() == "headroom: a line\n"


def test_a_misspelled_variable_is_told_once(
    run: Run, taken_port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With HEADROOM_API_KEY in place of HEADROOM_API_KEYS, the service would be open without a word."""
    monkeypatch.setenv("HEADROOM_API_KEY", "s3cr3t")
    monkeypatch.setenv("HEADROOM_MAX_TITLES", "5")
    # Kubernetes sets such a variable for a service of that name.
    monkeypatch.setenv("HEADROOM_PORT_8000_TCP", "tcp://10.0.0.1:8000")
    monkeypatch.setenv("HEADROOM_URL", "http://127.0.0.1:8000")
    *told, last = run("serve", "--port", taken_port, status=1).err.splitlines()
    assert last.startswith(f"headroom: cannot listen on 127.0.0.1:{taken_port}: "), "before anything starts"
    assert told == [
        "headroom: warning: HEADROOM_API_KEY is no setting; did you mean HEADROOM_API_KEYS?",
        "headroom: warning: HEADROOM_MAX_TITLES is no setting; did you mean HEADROOM_MAX_PAIRS?",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_gpu_that_is_not_there_fails_before_ray_starts(run: Run) -> None:
    failed = run("serve", "--device", "cuda", "--port", str(free_port()), status=1)
    assert failed.err == "headroom: device 'cuda' is not here: torch sees no CUDA device\n"
    half = run("serve", "--dtype", "float16", "--port", str(free_port()), status=1)
    assert half.err == ("headroom: dtype float16 needs a GPU; give auto, float32 or bfloat16 on a CPU\n")


def test_a_database_without_its_driver_fails_before_ray_starts(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)  # as if it were not installed
    monkeypatch.setenv("HEADROOM_DATABASE_URL", "postgresql://me:s3cret@host/db")
    assert "HEADROOM_SERVICE_NAME: is missing" in run("serve", status=1).err, (
        "each could take the other's for its own"
    )
    monkeypatch.setenv("HEADROOM_SERVICE_NAME", "production")
    for url, reason in (
        ("postgresql://me:s3cret@host/db", "PostgreSQL needs psycopg: "),
        ("postgresql://me:s3cret@host:port/db", "not a URL such as sqlite:////path/file.db or postgresql:"),
        ("mysql://me:s3cret@host/db", "mysql is not supported"),
        ("sqlite://", "SQLite needs a file"),
    ):
        monkeypatch.setenv("HEADROOM_DATABASE_URL", url)
        failed = run("serve", status=1)
        (line,) = failed.err.splitlines()
        assert line.startswith(f"headroom: HEADROOM_DATABASE_URL: {reason}")
        assert "s3cret" not in line
