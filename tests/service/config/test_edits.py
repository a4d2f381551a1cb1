"""headroom.service.config.edits: a running service takes whole, right edits and survives all others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headroom.service.config.edits import SETTLE_S, LiveEdits, Unsettled, pinned, read_state
from headroom.service.config.file import ConfigFile, Overrides, load, read
from tests.checkpoints import write_checkpoint
from tests.service.running import DEPLOY

GOOD = DEPLOY.read_text()
EDITED = GOOD.replace("masks: {}", 'masks: {new: "0.0"}')
WITHOUT_LIVE = GOOD[: GOOD.index("        user_config:")]


class Service:
    """A service with this config. It records what is applied and what the operator is told."""

    def __init__(self, file: Path, content: str = GOOD) -> None:
        self.file = file
        self.applied: list[list[str]] = []
        self.said: list[str] = []
        self.is_refused: bool | None = None
        self.now = 0.0
        self.refusal: str | Exception | None = None
        file.write_text(content)
        config = load(file, Overrides())
        self.edits = self.watch(config)

    def watch(self, config: ConfigFile) -> LiveEdits:
        return LiveEdits(
            self.file,
            read_state(self.file),
            Overrides(),
            config,
            apply=self._apply,
            say=self.said.append,
            warn=self.said.append,
            show_refused=self._show,
            clock=lambda: self.now,
        )

    def _show(self, is_refused: bool) -> None:
        self.is_refused = is_refused

    def _apply(self, config: ConfigFile) -> str | None:
        if isinstance(self.refusal, Exception):
            raise self.refusal
        if self.refusal is None:
            self.applied.append(list(config.live.masks))
        return self.refusal

    def edit(self, content: str | bytes, looks: int = 2) -> None:
        self.file.write_bytes(content if isinstance(content, bytes) else content.encode())
        for _ in range(looks):
            self.look()

    def look(self) -> None:
        self.edits.look()
        self.now += SETTLE_S


@pytest.fixture
def service(tmp_path: Path) -> Service:
    return Service(tmp_path / "serve.yaml")


def test_a_file_that_is_still_written_is_not_applied(service: Service) -> None:
    """Each part is right by itself, and they come 0.8 s apart; the service looks every 0.5 s."""
    ends = [EDITED.index("masks:"), EDITED.index("            # A mask and"), len(EDITED)]
    for tenth in range(1, 30):
        if tenth % 8 == 4 and ends:
            service.file.write_text(EDITED[: ends.pop(0)])
        service.now = tenth / 10
        if tenth % 5 == 0:
            service.edits.look()
    assert (service.applied, service.said) == ([], []), "the last part came at 2 s"
    for tenth in (30, 35):
        service.now = tenth / 10
        service.edits.look()
    assert service.applied == [["new"]]
    assert [line.startswith("config applied: version ") for line in service.said] == [True]


def test_an_edit_says_which_experiments_it_takes_out(service: Service) -> None:
    experiment = """          experiments:
            - name: NAME
              salt: NAME
              arms: [{name: control, variant: full}, {name: fast, variant: fast}]
              slots: SLOTS
"""
    one = experiment.replace("NAME", "first").replace("SLOTS", "[0, 5000]")
    other = experiment.replace("NAME", "second").replace("SLOTS", "[5000, 10000]").partition("\n")[2]
    service.edit(GOOD + one + other)
    service.edit(GOOD + one)
    assert len(service.applied) == 2
    (taken_out,) = [line for line in service.said if "takes out" in line]
    assert "takes out the experiments second: their units get the default" in taken_out


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (WITHOUT_LIVE, "user_config is missing; is the file complete?"),
        (EDITED.encode("utf-16"), "not UTF-8 text"),
    ],
)
def test_a_wrong_edit_is_refused_in_one_line_and_the_last_good_config_stays(
    content: str | bytes, reason: str, service: Service
) -> None:
    service.edit(content, looks=5)
    (line,) = service.said
    assert line.startswith(f"config refused, the last good one stays: {service.file}")
    assert reason in line
    assert "\n" not in line
    assert service.is_refused
    service.edit(EDITED)
    assert service.applied == [["new"]]
    assert service.is_refused is False


@pytest.mark.parametrize("refusal", ["masks.new: no", RuntimeError("the controller\nis gone"), KeyError()])
def test_whatever_a_replica_says_or_raises_is_a_refusal(refusal: str | Exception, service: Service) -> None:
    service.refusal = refusal
    service.edit(EDITED)
    (line,) = service.said
    assert line.startswith(f"config refused, the last good one stays: {service.file}: ")
    assert "\n" not in line
    assert service.is_refused
    service.refusal = None
    os.utime(service.file, (1, 1))  # saved again as it is
    service.look()
    service.look()
    assert service.applied == [["new"]]


def test_a_refused_edit_is_shown_again_to_replicas_that_came_later(service: Service) -> None:
    service.edit("")
    refused_at = service.now
    service.is_refused = None  # another replica has taken this one's place
    for seconds, shown in ((5, None), (15, True)):
        service.now = refused_at + seconds
        service.edits.look()
        assert service.is_refused is shown
    service.edit(EDITED)
    service.is_refused = None
    service.now = 100
    service.edits.look()
    assert service.is_refused is None, "nothing is refused any more"


def test_a_file_that_is_gone_is_said_once(service: Service) -> None:
    service.file.unlink()
    for _ in range(5):
        service.look()
    assert service.said == [
        f"config refused, the last good one stays: {service.file}: No such file or directory"
    ]


def test_a_command_prints_the_digest_that_a_file_may_pin(tmp_path: Path) -> None:
    config = pinned(load(DEPLOY, Overrides(model=str(write_checkpoint(tmp_path)))))
    command = [sys.executable, "-m", "headroom.models.checkpoint.files", tmp_path]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert printed == config.live.digests[""]
    mistyped = subprocess.run([*command[:-1], tmp_path / "x"], capture_output=True, text=True, check=False)
    assert (mistyped.returncode, mistyped.stdout) == (1, "")
    assert mistyped.stderr.startswith("name a checkpoint's directory: there is no ")


def test_who_takes_a_wrong_edit_back_is_told_that_all_is_well(service: Service) -> None:
    service.edits = service.watch(pinned(load(service.file, Overrides())))
    service.edit("")
    service.edit(GOOD)
    assert service.said[1].startswith("config applied: version ")
    assert (service.applied, service.is_refused) == ([], False)


def test_a_service_that_never_had_a_user_config_does_not_ask_for_one(tmp_path: Path) -> None:
    service = Service(tmp_path / "little.yaml", WITHOUT_LIVE)
    service.edits = service.watch(pinned(load(service.file, Overrides())))
    service.edit(WITHOUT_LIVE.replace("8000", "8001"))
    assert service.said == ["config: what was changed outside user_config applies at the next start"]
    assert service.applied == []


def config(model: Path, masks: str = "{}") -> ConfigFile:
    text = DEPLOY.read_text().replace("masks: {}", f"masks: {masks}")
    return read(text.encode(), DEPLOY, Overrides(model=str(model)))


def test_a_start_with_other_weights_has_another_version(tmp_path: Path) -> None:
    first = pinned(config(write_checkpoint(tmp_path)))
    assert pinned(config(tmp_path)).live.version == first.live.version
    assert first.deployment["user_config"]["digests"] == first.live.digests

    write_checkpoint(tmp_path, seed=1)
    assert pinned(config(tmp_path)).live.version != first.live.version


def test_an_edit_goes_on_to_apply_while_the_files_of_a_loaded_model_are_others(tmp_path: Path) -> None:
    running = pinned(config(write_checkpoint(tmp_path)))
    write_checkpoint(tmp_path, seed=1)
    edited = pinned(config(tmp_path, '{urgent: "0.0"}'), running)
    assert edited.live.digests == running.live.digests
    assert edited.live.version != running.live.version


def test_after_an_edit_that_may_be_half_applied_the_next_save_is_applied_whatever_it_says(
    service: Service,
) -> None:
    service.refusal = Unsettled("Ray has not answered")
    service.edit(EDITED)
    assert service.said == [
        "config refused, but some replicas may have it; save the file again: "
        f"{service.file}: Ray has not answered"
    ]
    assert service.is_refused
    service.refusal = None
    service.edit(GOOD)
    assert service.applied == [[]], "the replicas that have the edit would keep it"
    assert not service.is_refused
