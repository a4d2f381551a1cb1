"""How many cores there are: binding, and control groups as containers have them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from models import cores as module
from models.cores import cores, cpu_limit


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of control groups that are empty."""
    monkeypatch.setattr(module, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(module, "OWN_CGROUP", tmp_path / "own")
    (tmp_path / "own").write_text("0::/\n")
    return tmp_path / "cgroup"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2.0),
        ("150000 100000\n", 1.5),
        ("50000 100000\n", 0.5),
        ("", None),
        ("what is this\n", None),
        ("100000 0\n", None),
    ],
)
def test_a_container_of_cgroup_2_has_its_limit_at_the_root_that_it_sees(
    groups: Path, text: str, limit: float | None
) -> None:
    put(groups / "cpu.max", text)
    assert cpu_limit() == limit


def test_the_least_limit_of_the_own_group_and_all_above_it_counts(groups: Path, tmp_path: Path) -> None:
    put(tmp_path / "own", "12:cpu:/elsewhere\n0::/system.slice/headroom.service\n")
    put(groups / "system.slice/headroom.service/cpu.max", "max 100000\n")
    put(groups / "system.slice/cpu.max", "300000 100000\n")
    put(groups / "other.slice/cpu.max", "100000 100000\n")
    assert cpu_limit() == 3.0
    put(groups / "system.slice/headroom.service/cpu.max", "250000 100000\n")
    assert cpu_limit() == 2.5


@pytest.mark.parametrize(("quota", "limit"), [("-1\n", None), ("400000\n", 4.0)])
def test_cgroup_1(groups: Path, quota: str, limit: float | None) -> None:
    put(groups / "cpu/cpu.cfs_quota_us", quota)
    put(groups / "cpu/cpu.cfs_period_us", "100000\n")
    assert cpu_limit() == limit


def test_no_control_groups_no_limit(groups: Path, tmp_path: Path) -> None:
    (tmp_path / "own").unlink()
    assert not groups.exists()
    assert cpu_limit() is None


@pytest.mark.parametrize(
    ("text", "expected"), [("50000 100000", 1), ("150000 100000", 2), ("9900000 100000", 8)]
)
def test_a_limit_counts_where_it_is_less_than_the_cores(
    groups: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert cores() == 8
    put(groups / "cpu.max", text)
    assert cores() == expected


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores"
)
def test_cores_are_those_that_the_process_may_use(groups: Path) -> None:
    put(groups / "cpu.max", "max 100000")
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert cores() == len(allowed)
