"""`headroom experiment`, as typed at a prompt, with a real service in this process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from headroom.service.config.settings import LiveConfig
from headroom.service.experiments import report_page
from headroom.service.experiments.events import Exposure, Outcome
from headroom.service.experiments.store import Store
from tests.prompt import Run
from tests.service.experimenting import KEYS, config
from tests.service.experiments.making import act, declares, send
from tests.service.page.seeding import served

METRIC = {"name": "clicked", "kind": "proportion", "margin": 0.5}
LIVE = LiveConfig.model_validate(config(slots=[0, 5000], metrics=[METRIC], planned_units=100))


@pytest.fixture
def url(tiny_checkpoint: Path, database_url: str) -> Iterator[str]:
    """The address of a service with an experiment."""
    with served(tiny_checkpoint, LIVE, api_keys=KEYS, database_url=database_url) as address:
        yield address


def test_a_report_for_people_and_for_programs(
    run: Run, tiny_checkpoint: Path, database_url: str, tmp_path: Path
) -> None:
    store, arms = Store(database_url), ["control", "pruned"]
    store.append(declares(*LIVE.experiments, time=90.0))
    store.add([Exposure("prune20", f"u{i}", arms[i % 2], 1, 100.0, "v") for i in range(80)])
    outcomes = [Outcome("prune20", f"o{i}", f"u{i}", "clicked", 1.0, 120.0) for i in range(80) if i % 3]
    send(store, outcomes, LIVE.experiments)
    store.append(act("rollback", 300.0, arm="pruned", reason="p99"))
    store.close()
    shared = tmp_path / "shared.html"
    with served(tiny_checkpoint, LIVE, api_keys=KEYS, database_url=database_url) as url:
        command = ["experiment", "report", "prune20", "--url", url, "--key", "plain"]
        shown = run(*command, "--out", str(shared)).out
        detail = json.loads(run(*command, "--json").out)
    assert shown.endswith(f"\n{shared}\n")
    assert "Stop: Every arm was rolled back to control." in shared.read_text(encoding="utf-8")
    for part in (
        "prune20: rolled_back, traffic 0, rolled back: pruned",
        "STOP: Every arm was rolled back to control.",
        "80 of 100 planned units",
        "p99",
    ):
        assert part in shown
    assert (detail["name"], detail["report"]["recommendation"]) == ("prune20", "stop")
    detail["report"]["retention"] = "Outcomes from before 2026-11-01 00:00 UTC are deleted."
    over = report_page.text(detail | {"status": "shipped", "shipped": "pruned"})
    assert "shipped, traffic 0, rolled back: pruned, everybody gets pruned" in over
    assert "AT THE END: Every arm was rolled back to control." in over
    for text in (over, report_page.html(detail)):
        assert detail["report"]["retention"] in text


ENTRY = """\
name: second
salt: "2026-12"
arms: [{name: control, variant: full}, {name: pruned, variant: cut}]
slots: [5000, 6000]
metrics: [{name: click, margin: 0.02}]
"""


def test_an_experiment_is_started_from_a_file_steered_and_shipped_with_reasons(
    run: Run, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADROOM_API_KEY", "boss\n")  # as in a Secret that `echo` made
    monkeypatch.setenv("HEADROOM_URL", url)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    file = tmp_path / "second.yaml"
    file.write_text(ENTRY)
    assert "second: running" in run("experiment", "start", str(file)).out
    nested = ENTRY.replace("second", "third").replace("2026-12", "third").replace("5000, 6000", "6000, 7000")
    file.write_text("experiments:\n  - " + nested.replace("\n", "\n    ").rstrip())  # as in serve.yaml
    assert json.loads(run("experiment", "start", str(file), "--json").out)["name"] == "third"
    ramped = run("experiment", "ramp", "second", "--traffic", "0.25", "--reason", "careful").out
    assert "second: running, traffic 0.25" in ramped
    assert "No analysis" not in ramped, "none was asked for"
    for wrong in ([], ["--traffic", "1.5"]):
        run("experiment", "ramp", "second", *wrong, status=2)
    run("experiment", "ship", "second", "pruned", "--reason", "looks fine")
    assert "second: stopped" in run("experiment", "rollback", "second", "--reason", "slow").out
    assert "third: stopped" in run("experiment", "stop", "third").out
    history = json.loads(run("experiment", "report", "second", "--json").out)["history"]
    assert [(action["kind"], action["reason"]) for action in history] == [
        ("start", ""),
        ("ramp", "careful"),
        ("ship", "looks fine"),
        ("rollback", "slow"),
    ]


def test_a_file_that_is_no_experiment_is_refused_before_the_service_is_asked(
    run: Run, tmp_path: Path
) -> None:
    file = tmp_path / "x.yaml"
    for content, reason in (
        ("", "not an experiment (a mapping with `name`, `salt` and `arms`)"),
        ("experiments: [{a: 1}, {a: 1}]", "experiments must hold exactly one experiment"),
        (ENTRY + "salt: again\n", "line 6: the key 'salt' stands twice"),
        (ENTRY.replace("0.02", "2"), "metrics[0].margin: a relative margin is a share of control's value"),
    ):
        file.write_text(content)
        error = run("experiment", "start", str(file), "--url", "http://127.0.0.1:1", status=1).err
        assert error.startswith(f"headroom: {file}")
        assert reason in error
    missing = run("experiment", "start", str(tmp_path / "none.yaml"), status=1).err
    assert missing == f"headroom: {tmp_path / 'none.yaml'}: No such file or directory\n"


def test_what_the_service_refuses_is_one_line(run: Run, url: str) -> None:
    unknown = run("experiment", "report", "unknown", "--url", url, "--key", "plain", status=1)
    assert unknown.err == "headroom: There is no experiment 'unknown' (known: prune20).\n"
    stop = ("experiment", "stop", "prune20")
    assert "give it by --key, or in HEADROOM_API_KEY" in run(*stop, "--url", url, status=1).err
    wrong = run(*stop, "--url", url, "--key", "another", status=1)
    assert wrong.err == "headroom: the service does not know this API key (--key, or HEADROOM_API_KEY)\n"
    nobody = run(*stop, "--url", "http://127.0.0.1:1", status=1)
    refused = "no answer from http://127.0.0.1:1: Connection refused; does it run there? --url names another"
    assert nobody.err == f"headroom: {refused}\n"
    hidden = run("experiment", "report", "prune20", "--url", "http://me:s3cret@127.0.0.1:1", status=1)
    assert hidden.err == f"headroom: {refused}\n"
    run(*stop, "--url", "localhost:8000", status=2)
