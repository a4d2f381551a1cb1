"""The program: what it prints, where it writes, and its exit status."""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from click.testing import Result
from typer.testing import CliRunner

from headroom.loadtest import find_max
from headroom.loadtest.cli import app
from tests.loadtest import servers
from tests.loadtest.servers import faulty, reference
from tests.loadtest.test_comparing import run as measured_run

SHORT = "--rate 40 --duration 1s --warmup 0 --titles 1 --max-lag 10s"


def load(*arguments: object, status: int = 0) -> Result:
    """Run `load` in this process. Each argument is one or more words; it must end with this status."""
    result = CliRunner().invoke(app, [word for argument in arguments for word in str(argument).split()])
    assert result.exit_code == status, result.output
    return result


def test_a_run_writes_its_reports_and_two_can_be_compared(tmp_path, monkeypatch):
    """No proxy stands between the client and its server; that this one has no metrics is said. An API key is
    written nowhere."""
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("HEADROOM_API_KEY", "very-s3cret")
    options = "--rate 80 --duration 2s --warmup 0.2s --titles 1 --slo p99=5s --max-lag 10s"
    with reference("20ms") as server:
        masks = "--masks none=3;2.3,7.* --out"
        run = load("run", server.url, options, masks, tmp_path / "a")
        assert run.stdout.startswith("valid\n")
        assert f"{server.url}/metrics gave no counters of headroom" in run.stderr
        report = json.loads((tmp_path / "a" / "report.json").read_text())
        assert report["server_metrics"] is None
        assert report["requests"]["ok"] == report["requests"]["scheduled"] > 100
        assert report["by"]["mask"].keys() == {"none", "2.3,7.*"}
        assert report["by"]["variant"].keys() == {"full"}
        assert report["objective"]["met"]
        assert report["stages_ms"]["inference"]["p50"] == pytest.approx(1, rel=0.01)
        assert (tmp_path / "a" / "report.html").read_text().startswith("<!doctype html>")
        written = b"".join(path.read_bytes() for path in (tmp_path / "a").iterdir())
        assert b"s3cret" not in written + run.output.encode()
        again = load("run", server.url, options, "--json --out", tmp_path / "b")
        assert json.loads(again.stdout)["valid"]
    load("compare", tmp_path / "a", tmp_path / "a" / "report.json")
    other = load("compare", tmp_path / "a", tmp_path / "b", "--json")
    compared = json.loads(other.stdout)
    assert [d["percentile"] for d in compared["differences"]] == ["p50", "p90"]
    assert compared["not_compared"][0] == {"percentile": "p99", "requests_needed": 1000}
    spoiled = json.loads((tmp_path / "b" / "report.json").read_text())
    spoiled["valid"], spoiled["invalid_because"] = False, ["the client slept"]
    (tmp_path / "b" / "report.json").write_text(json.dumps(spoiled))
    refused = load("compare", tmp_path / "a", tmp_path / "b", status=3)
    assert "INVALID: the client slept" in refused.stderr


@pytest.mark.parametrize(
    ("changes", "said", "back"),
    [({"scale": 1.3}, "slower: p50 by ", "5%"), ({"scale": 0.5, "refused": 0.6}, "unanswered: ", "200%")],
)
def test_a_worse_build_fails_the_comparison_in_ci(tmp_path, changes, said, back):
    for name, made in (("a", measured_run(1, seconds=60)), ("b", measured_run(2, seconds=60, **changes))):
        (tmp_path / name).write_text(json.dumps(made))
    compared = load("compare", tmp_path / "a", tmp_path / "b", "--fail-if-slower 5%", status=1)
    assert compared.stderr.startswith(said)
    assert "unanswered" in compared.stdout
    load("compare", tmp_path / "b", tmp_path / "a", "--fail-if-slower", back)
    load("compare", tmp_path / "a", tmp_path / "b")


def test_a_gate_that_cannot_check_p99_fails_and_names_the_requests_that_it_needs(tmp_path):
    """One of 20 requests takes five times as long: p99 is, and p50 and p90 are not."""
    (tmp_path / "a").write_text(json.dumps(measured_run(1, seconds=12)))
    (tmp_path / "b").write_text(json.dumps(measured_run(2, seconds=12, slow_share=0.05)))
    both = ("compare", tmp_path / "a", tmp_path / "b")
    gated = load(*both, "--fail-if-slower 5%", status=3)
    assert gated.stderr == "not compared: p99 needs 1,000 requests in each run, and one has 600\n"
    (row,) = [line for line in gated.stdout.splitlines() if line.startswith("p99 ")]
    assert row.endswith("needs 1,000 requests")
    printed = load(*both, "--json --fail-if-slower 5%", status=3)
    assert {"percentile": "p99", "requests_needed": 1000} in json.loads(printed.stdout)["not_compared"]
    assert load(*both).stderr == ""
    (tmp_path / "b").write_text(json.dumps(measured_run(2, seconds=12, scale=1.3)))
    assert load(*both, "--fail-if-slower 5%", status=1).stderr.count("\n") == 2, "both sentences"


def test_a_missed_objective_exits_1_and_an_invalid_run_3_each_with_its_reason(tmp_path):
    with reference("20ms") as server:
        missed = load("run", server.url, SHORT, "--slo p50=1ms --out", tmp_path / "a", status=1)
        spoiled = load("run", server.url, SHORT, "--max-lag 1us --out", tmp_path / "b", status=3)
    reason = missed.stderr.splitlines()[-1]
    assert reason.startswith("headroom load: the objective was missed: p50 was ")
    assert missed.stdout.startswith("valid\n")
    assert spoiled.stdout.splitlines()[0].startswith("INVALID: the client sent late")
    assert json.loads((tmp_path / "b" / "report.json").read_text())["valid"] is False


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("run", "give the server's URL"),
        ("run http://127.0.0.1:1 --find-max", "needs an objective"),
        ("run http://127.0.0.1:1 --find-max --slo p99=1s --rate-to 3 --arrivals ramp", "steady"),
        ("run http://127.0.0.1:1 --find-max --slo p99=1s --rate 2x", "--rate must be a number"),
        ("run http://127.0.0.1:1 --slo p99=250", "has no unit; write p99=250ms or"),
        ("run http://127.0.0.1:1 --trace ../two_seconds", "ends after 2 s, within the warm-up of 3 s"),
        ("compare nowhere nowhere", "cannot be read"),
        ("compare nowhere nowhere --fail-if-slower 5", "--fail-if-slower: '5' is not like 5%"),
        ("run --start never-started --titles many", "--titles: 'many' is not a number or range"),
        ("run --start never-started --variants a=0", "--variants: at least one weight must be above 0"),
        ("run --start never-started --endpoint scores", "--endpoint: 'scores' is none of score, compare,"),
        ("run --start never-started --api-key é", "the API key holds characters that a header cannot"),
    ],
)
def test_wrong_usage_exits_2_with_its_reason(arguments, reason, tmp_path, monkeypatch):
    (tmp_path / "two_seconds").write_text("0\n2\n")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HEADROOM_API_KEY", "a-key")  # --api-key replaces it, and the test's end that
    result = load(arguments, status=2)
    assert reason in " ".join(result.output.split())
    assert list((tmp_path / "here").iterdir()) == []


def program(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "loadtest", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def test_a_server_that_is_not_there_exits_1_in_one_line(tmp_path):
    with program("run", "http://127.0.0.1:1", "--out", str(tmp_path / "new" / "out")) as run:
        _, stderr = run.communicate()
    assert run.returncode == 1
    assert stderr == "headroom load: nothing answers at http://127.0.0.1:1: Connection refused\n"
    assert list(tmp_path.iterdir()) == [], "a failed run leaves no folder"


@pytest.mark.more
@pytest.mark.parametrize(
    ("numbers", "answers_after"), [([signal.SIGINT], 2.0), ([signal.SIGTERM, signal.SIGHUP], 0.0)]
)
def test_ctrl_c_timeout_and_a_closed_terminal_report_what_ran(tmp_path, numbers, answers_after):
    """Rates are over the seconds in which requests were sent, not over those of their last answers too.

    Two signals at once are one: timeout(1) signals its command, and then the command's group.
    """
    answers = threading.Semaphore(0)

    def counted(connection):
        time.sleep(answers_after)
        servers.says(b"200 OK", b'{"results": [{}]}')(connection)
        answers.release()

    options = SHORT.replace("1s", "10m", 1) + " --arrivals constant --out"
    with faulty(counted) as url, program("run", url, *options.split(), str(tmp_path)) as run:
        for _ in range(120):
            assert answers.acquire(timeout=60), "no more requests came"
        for number in numbers:
            os.killpg(run.pid, number)
        stdout, stderr = run.communicate(timeout=30)
    assert run.returncode == 0, stderr
    assert stdout.startswith("valid, interrupted after")
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"]
    requests = report["requests"]
    assert requests["scheduled"] == requests["ok"] + sum(requests["errors"].values()) > 10
    assert report["rate"]["intended"] == pytest.approx(40, rel=0.15)


@pytest.mark.more
def test_a_signal_while_the_server_starts_leaves_no_server(tmp_path):
    with program("run", "--start", never_ready(tmp_path), "--out", str(tmp_path / "out")) as run:
        server = psutil.Process(written_number(tmp_path / "pid"))
        run.send_signal(signal.SIGTERM)
        _, stderr = run.communicate(timeout=60)
    assert not server.is_running()
    assert stderr == "headroom load: interrupted before the server was ready\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.more
def test_more_signals_kill_a_server_that_does_not_stop(tmp_path):
    with program("run", "--start", never_ready(tmp_path, "trap '' TERM; ")) as run:
        server = psutil.Process(written_number(tmp_path / "pid"))
        while run.poll() is None:
            run.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(0.5)
        run.communicate()
    assert not server.is_running()


def never_ready(directory: Path, first: str = "") -> str:
    """Return a command for --start of a server that never listens, and writes its pid into `directory`."""
    return shlex.join(["sh", "-c", f"{first}echo $$ >'{directory}/pid'; exec sleep 600"])


def written_number(path: Path) -> int:
    """Wait for a file with a line, and return its number."""
    while not path.exists() or not path.read_text().endswith("\n"):
        time.sleep(0.02)
    return int(path.read_text())


@pytest.mark.more
def test_a_signal_during_find_max_reports_the_probes_that_ended_and_leaves_no_server(tmp_path):
    """It comes while the second probe's client process starts, which then still imports what it needs."""
    start = f"{sys.executable} -m tests.loadtest.servers --delay 1ms --port {{port}}"
    options = ["--find-max", "--slo", "p99=5s", *SHORT.split(), "--out", str(tmp_path)]
    clients: set[psutil.Process] = set()
    with program("run", "--start", start, *options) as run:
        while len(clients) < 2:
            assert run.poll() is None
            children = psutil.Process(run.pid).children()
            clients.update(child for child in children if "spawn_main" in " ".join(command_of(child)))
        (server,) = [child for child in children if "tests.loadtest.servers" in command_of(child)]
        os.killpg(run.pid, signal.SIGINT)
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 0, stderr
    assert not server.is_running()
    assert "Traceback" not in stderr
    assert stdout.startswith("valid, interrupted before the highest rate was found\n")
    assert "Interrupted: the highest rate was not found" in stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"]
    found = report["find_max"]
    assert (found["rate"], found["lost_at"], found["interrupted"]) == (None, None, True)
    assert [(point["rate"], point["held"]) for point in found["curve"]] == [(40, True)]
    assert "the highest rate was not found" in (tmp_path / "report.html").read_text()


def command_of(process: psutil.Process) -> list[str]:
    """Return a process's command line; an empty one if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_burst_at_one_time_has_no_rates(tmp_path):
    """Three requests at once are valid; three in no time are not three thousand million a second."""
    trace = tmp_path / "trace"
    trace.write_text("0\n0\n0\n")
    with reference("20ms") as server:
        options = f"--trace {trace} --warmup 0 --titles 1 --max-lag 10s --slo p99=5s"
        run = load("run", server.url, options, "--out", tmp_path)
    summary = "– intended, – achieved, – goodput; 3 of 3 ok, 0 errors"
    assert run.stdout.splitlines()[:2] == ["valid", summary]
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["seconds"] == 0
    assert report["rate"] == dict.fromkeys(("intended", "sent", "achieved", "goodput"))
    assert report["latency_ms"]["p50"] >= 20
    assert summary in (tmp_path / "report.html").read_text()
    compared = load("compare", tmp_path, tmp_path, "--fail-if-slower 5%", status=2)
    assert "the first run is too short to compare" in " ".join(compared.stderr.split())


def test_a_report_that_cannot_be_written_is_printed_and_named(tmp_path):
    """Exit status 1 would say that the objective was missed."""
    file = tmp_path / "report.json"
    file.symlink_to("/dev/full")
    with reference("20ms") as server:
        run = load("run", server.url, SHORT, "--slo p99=5s --out", tmp_path, status=2)
    assert run.stdout.startswith("valid\n")
    assert "objective p99=5s: held" in run.stdout
    assert "report: " not in run.stdout
    why = "No space left on device"
    assert run.stderr.splitlines()[-1] == f"headroom load: {file} cannot be written: {why}"
    assert (tmp_path / "report.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.alone
def test_find_max_reports_the_rate_what_was_lost_and_the_curve(tmp_path, monkeypatch):
    monkeypatch.setattr(find_max, "RESOLUTION", 0.5)
    # Two connections of 50 ms each: 40 a second and no more.
    options = "--slo p50=120ms --rate 35 --arrivals constant --connections 2 --timeout 2s"
    with reference("50ms") as server:
        run = load("run", server.url, "--find-max", SHORT, options, "--out", tmp_path)
    found = json.loads((tmp_path / "report.json").read_text())["find_max"]
    assert 25 < found["rate"] < 60
    assert found["rate"] < found["lost_at"]
    assert "Highest rate that holds the objective" in run.stdout


@pytest.mark.more
def test_the_server_can_be_started_for_the_run_and_faults_are_noted(tmp_path, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # of which the wait for the server knows nothing
    scenario = tmp_path / "faults.yaml"
    scenario.write_text(
        "{rate: 20, duration: 2s, warmup: 0, max_lag: 10s, timeout: 5s, traffic: [{titles: 1}],"
        " events: [{at: 0.5s, name: freeze,"
        " run: 'kill -STOP $SERVER_PID; sleep 0.5; kill -CONT $SERVER_PID'}]}"
    )
    start = f"{sys.executable} -m tests.loadtest.servers --delay 10ms --port {{port}}"
    options = ["run", "--scenario", str(scenario)]
    with program(*options, "--start", start, "--out", str(tmp_path / "out")) as run:
        output = run.communicate()
    assert run.returncode == 0, output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [(event["name"], event["status"]) for event in report["events"]] == [("freeze", 0)]
    assert report["latency_ms"]["max"] > 400
    with reference() as server:
        lonely = load(*options, server.url, "--out", tmp_path / "no", status=2)
    assert "let the run --start it" in " ".join(lonely.output.split())
    assert not (tmp_path / "no").exists()
