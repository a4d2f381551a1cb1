"""The program: what it prints, where it writes, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from loadtest import terminal
from loadtest.cli import app
from loadtest.plan import make_plan
from loadtest.worker import Progress
from tests.loadtest import servers
from tests.loadtest.servers import faulty, reference
from tests.loadtest.test_comparing import run as measured_run


def load(*arguments, **environment) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadtest", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=280, check=False, env={**os.environ, **environment}
    )


def test_a_run_writes_its_reports_and_two_can_be_compared(tmp_path):
    with reference("20ms") as server:
        options = (
            "--rate",
            40,
            "--duration",
            "3s",
            "--warmup",
            "0.5s",
            "--titles",
            1,
            "--slo",
            "p99=5s",
            "--max-lag",
            "10s",
        )
        run = load(
            "run",
            server.url,
            *options,
            "--masks",
            "none=3;2.3,7.*",
            "--processes",
            2,
            "--out",
            tmp_path / "a",
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.startswith("valid\n")
        report = json.loads((tmp_path / "a" / "report.json").read_text())
        assert report["requests"]["ok"] == report["requests"]["scheduled"] > 60
        assert report["by"]["mask"].keys() == {"none", "2.3,7.*"}
        assert report["by"]["variant"].keys() == {"full"}
        assert report["objective"]["met"]
        assert report["stages_ms"]["inference"]["p50"] == pytest.approx(1, rel=0.01)
        assert (tmp_path / "a" / "report.html").read_text().startswith("<!doctype html>")
        again = load("run", server.url, *options, "--json", "--out", tmp_path / "b")
        assert json.loads(again.stdout)["valid"]
    same = load("compare", tmp_path / "a", tmp_path / "a" / "report.json", "--fail-if-slower", "5%")
    assert same.returncode == 0, same.stderr
    slower = json.loads((tmp_path / "b" / "report.json").read_text())
    other = load("compare", tmp_path / "a", tmp_path / "b", "--json")
    assert other.returncode == 0, other.stderr
    assert [d["percentile"] for d in json.loads(other.stdout)["differences"]] == ["p50", "p90"]
    slower["valid"], slower["invalid_because"] = False, ["the client slept"]
    (tmp_path / "b" / "report.json").write_text(json.dumps(slower))
    refused = load("compare", tmp_path / "a", tmp_path / "b")
    assert refused.returncode == 3
    assert "INVALID: the client slept" in refused.stderr


def test_a_slower_build_fails_the_comparison_in_ci(tmp_path):
    for name, made in (("a", measured_run(1)), ("b", measured_run(2, scale=1.3))):
        (tmp_path / name).write_text(json.dumps(made))
    compared = load("compare", tmp_path / "a", tmp_path / "b", "--fail-if-slower", "5%")
    assert compared.returncode == 1
    assert compared.stderr.startswith("slower: p50 by ")
    assert load("compare", tmp_path / "b", tmp_path / "a", "--fail-if-slower", "5%").returncode == 0


def test_a_build_that_refuses_most_requests_fails_the_comparison_in_ci(tmp_path):
    for name, made in (("a", measured_run(1)), ("b", measured_run(2, scale=0.5, refused=0.6))):
        (tmp_path / name).write_text(json.dumps(made))
    compared = load("compare", tmp_path / "a", tmp_path / "b", "--fail-if-slower", "5%")
    assert compared.returncode == 1
    assert compared.stderr.startswith("unanswered: 57.4")
    assert compared.stderr.endswith("% of the requests, 0.0% in A\n")
    assert "unanswered   0.0%  57.4%" in compared.stdout
    assert load("compare", tmp_path / "b", tmp_path / "a", "--fail-if-slower", "200%").returncode == 0
    assert load("compare", tmp_path / "a", tmp_path / "b").returncode == 0


def test_a_missed_objective_exits_1_with_its_reason(tmp_path):
    with reference("20ms") as server:
        options = ("--rate", 40, "--duration", "1s", "--warmup", "0", "--titles", 1, "--max-lag", "10s")
        run = load("run", server.url, *options, "--slo", "p50=1ms", "--out", tmp_path)
    assert run.returncode == 1
    reason = run.stderr.splitlines()[-1]
    assert reason.startswith("headroom load: the objective was missed: p50 was ")
    assert run.stdout.startswith("valid\n")


def test_an_invalid_run_exits_3_and_says_so_first(tmp_path):
    with reference("0") as server:
        run = load(
            "run",
            server.url,
            "--rate",
            50,
            "--duration",
            "1s",
            "--titles",
            1,
            "--max-lag",
            "1us",
            "--out",
            tmp_path,
        )
    assert run.returncode == 3
    assert run.stdout.splitlines()[0].startswith("INVALID: the client sent late")
    assert json.loads((tmp_path / "report.json").read_text())["valid"] is False


def test_the_api_key_is_never_written(tmp_path):
    with faulty(servers.answer) as url:
        options = ("--rate", 20, "--duration", "1s", "--warmup", "0", "--titles", 1, "--max-lag", "10s")
        run = load("run", url, *options, "--out", tmp_path, HEADROOM_API_KEY="very-s3cret")
    assert run.returncode == 0, run.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"s3cret" not in written + run.stdout.encode() + run.stderr.encode()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run"], "give the server's URL"),
        (["run", "localhost:1"], "not an http"),
        (["run", "http://127.0.0.1:1", "--rate", "fast"], "neither a number nor a multiple"),
        (["run", "http://127.0.0.1:1", "--scenario", "stedy"], "is none of"),
        (["run", "http://127.0.0.1:1", "--find-max"], "needs an objective"),
        (
            [
                "run",
                "http://127.0.0.1:1",
                "--find-max",
                "--slo",
                "p99=1s",
                "--rate-to",
                "3",
                "--arrivals",
                "ramp",
            ],
            "steady",
        ),
        (["run", "http://127.0.0.1:1", "--slo", "fast"], "--slo"),
        (
            ["run", "http://127.0.0.1:1", "--slo", "p99=250"],
            "has no unit; write p99=250ms or",
        ),
        (["run", "http://127.0.0.1:1", "--slo", "p99=11s"], "above the timeout of 10 s"),
        (["run", "http://127.0.0.1:1", "--trace", "@TRACE"], "ends after 2 s, within the warm-up of 3 s"),
        (["run", "--start", "never-started", "--trace", "@TRACE"], "within the warm-up"),
        (["run", "http://127.0.0.1:1", "--phases", "3"], "--phases"),
        (["compare", "nowhere", "nowhere"], "cannot be read"),
        (["compare", "nowhere", "nowhere", "--fail-if-slower", "much"], "is not like 5%"),
    ],
)
def test_wrong_usage_exits_2_with_its_reason(arguments, reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = tmp_path.parent / "two_seconds"
    trace.write_text("0\n2\n")
    result = CliRunner().invoke(app, [str(trace) if word == "@TRACE" else word for word in arguments])
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_exits_1_in_one_line(tmp_path):
    run = load("run", "http://127.0.0.1:1", "--out", tmp_path / "new" / "out")
    assert run.returncode == 1
    assert run.stderr == "headroom load: nothing answers at http://127.0.0.1:1: Connection refused\n"
    assert list(tmp_path.iterdir()) == [], "a failed run leaves no folder"


def test_ctrl_c_reports_what_ran(tmp_path):
    answers = threading.Semaphore(0)

    def counted(connection):
        servers.says(b"200 OK", b'{"results": [{}]}')(connection)
        answers.release()

    with faulty(counted) as url:
        command = [sys.executable, "-m", "loadtest", "run", url, "--rate", "40", "--duration", "10m"]
        command += ["--arrivals", "constant"]
        command += [
            "--warmup",
            "0",
            "--titles",
            "1",
            "--max-lag",
            "10s",
            "--processes",
            "2",
            "--out",
            str(tmp_path),
        ]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        for _ in range(120):
            assert answers.acquire(timeout=60), "no more requests came"
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)
    assert process.returncode == 0, stderr
    assert stdout.startswith("valid, interrupted after")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"]
    requests = report["requests"]
    assert requests["scheduled"] == requests["ok"] + sum(requests["errors"].values()) > 10
    assert report["rate"]["intended"] == pytest.approx(40, rel=0.15)


def test_a_scenario_runs_with_what_the_command_line_changes(tmp_path):
    with faulty(
        servers.says(b"200 OK", b'{"variant": "pruned20", "degraded": true, "results": [{}]}')
    ) as url:
        options = (
            "--rate",
            30,
            "--duration",
            "1s",
            "--warmup",
            "0",
            "--titles",
            1,
            "--max-lag",
            "10s",
            "--json",
        )
        run = load("run", url, "--scenario", "ab-split", *options, "--out", tmp_path)
    report = json.loads(run.stdout)
    assert report["plan"]["traffic"][0]["variants"] == {"full": 1, "pruned20": 1}
    assert report["plan"]["rate"] == 30
    assert report["by"]["variant"]["pruned20"]["degraded"] == report["requests"]["ok"] > 0


@pytest.mark.slow
@pytest.mark.alone
def test_find_max_reports_the_rate_what_was_lost_and_the_curve(tmp_path):
    with reference("50ms") as server:
        # Two connections of 50 ms each: 40 a second and no more.
        options = ("--slo", "p50=120ms", "--rate", 35, "--duration", "1s", "--warmup", "0", "--titles", 1)
        client = ("--arrivals", "constant", "--connections", 2, "--timeout", "2s", "--max-lag", "10s")
        run = load("run", server.url, "--find-max", *options, *client, "--out", tmp_path)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads((tmp_path / "report.json").read_text())["find_max"]
    assert 25 < found["rate"] < 60
    assert found["rate"] < found["lost_at"]
    assert "Highest rate that holds the objective" in run.stdout


def test_the_server_can_be_started_for_the_run_and_faults_are_noted(tmp_path):
    scenario = tmp_path / "faults.yaml"
    scenario.write_text(
        "{rate: 20, duration: 2s, warmup: 0, max_lag: 10s, timeout: 5s, traffic: [{titles: 1}],"
        " events: [{at: 0.5s, name: freeze,"
        " run: 'kill -STOP $SERVER_PID; sleep 0.5; kill -CONT $SERVER_PID'}]}"
    )
    start = f"{sys.executable} -m tests.loadtest.reference_server --delay 10ms --port {{port}}"
    run = load("run", "--start", start, "--scenario", scenario, "--out", tmp_path / "out")
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(event["name"], event["status"]) for event in report["events"]] == [("freeze", 0)]
    assert report["latency_ms"]["max"] > 400
    lonely = load("run", report["plan"]["url"], "--scenario", scenario, "--out", tmp_path / "no")
    assert lonely.returncode == 2
    assert "let the run --start it" in lonely.stderr.replace("\n", " ")
    assert not (tmp_path / "no").exists()


def test_a_second_without_answers_has_no_times(capsys: pytest.CaptureFixture[str]):
    plan = make_plan({"url": "http://127.0.0.1:1", "duration": 20, "warmup": 0, "rate": 10})
    silent = Progress(100, 100, 0, {}, 100, None, None)

    with terminal.LiveProgress(plan, 20) as show:
        show(10.0, [silent, silent])
        show(20.0, [silent, replace(silent, p50_ms=1.5, p99_ms=20.25)])

    first, second = capsys.readouterr().err.splitlines()
    assert "p50 –  p99 –  " in first
    assert "p50 1.50 ms  p99 20.25 ms  " in second
