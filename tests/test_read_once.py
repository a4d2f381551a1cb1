"""The rules of `tests.read_once` find what they are for."""

from pathlib import Path

from tests.read_once import LARGE, LARGE_FUNCTIONS, LONG, complaints


def _write(root: Path, room: str, text: str) -> None:
    for name in LARGE_FUNCTIONS:
        (root / name).mkdir(exist_ok=True)
    (root / room / "code.py").write_text(text)


def test_values_that_belong_together_may_be_unpacked(tmp_path: Path) -> None:
    _write(tmp_path, "models", "low, high = interval()\nfor name, value in pairs:\n    pass\n")
    assert list(complaints(tmp_path)) == []


def test_packed_values_are_named_by_file_and_line(tmp_path: Path) -> None:
    _write(tmp_path, "models", "x = 1\na, b = f(x), []\n")
    assert list(complaints(tmp_path)) == ["models: 1 assignments pack several values: models/code.py:2"]


def test_a_room_may_have_so_many_large_functions_and_no_more(tmp_path: Path) -> None:
    body = "".join(f"    x{i} = {i}\n" for i in range(LARGE // 3))
    some = LARGE_FUNCTIONS["loadtest"]
    _write(tmp_path, "loadtest", "".join(f"def f{i}():\n{body}\n" for i in range(some)))
    assert list(complaints(tmp_path)) == []
    _write(tmp_path, "loadtest", "".join(f"def f{i}():\n{body}\n" for i in range(some + 1)))
    (complaint,) = complaints(tmp_path)
    assert f"{some + 1} functions" in complaint


def test_a_long_file_is_named(tmp_path: Path) -> None:
    _write(tmp_path, "service", "pass\n" * LONG)
    assert list(complaints(tmp_path)) == []
    _write(tmp_path, "service", "pass\n" * (LONG + 1))
    assert list(complaints(tmp_path)) == [f"service/code.py: {LONG + 1} lines, more than {LONG}"]
