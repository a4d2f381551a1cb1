"""The rules of `tests.read_once` find what they are for."""

from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "docstring",
    [
        "Attend. mask: as `forward` takes it.",
        "Attend. mask, bias: as\n    in `forward`.",
        "Return what `read` does, or nothing.",
        "Return what the function of this name does.",
        "Read a file. Raises OSError as `open` does.",
        "mean: of the scores. spread: the same of them.",
        "The pieces, likewise.",
        "Return 0 if it is judged as there.",
    ],
)
def test_a_docstring_that_explains_by_another_function_is_named(tmp_path: Path, docstring: str) -> None:
    _write(tmp_path, "service", f'def f() -> None:\n    """{docstring}"""\n')
    (complaint,) = complaints(tmp_path)
    assert complaint.startswith("service/code.py:2: a docstring explains its own arguments")


@pytest.mark.parametrize(
    "docstring",
    [
        "Return `None` if there is none, as before.",
        "Write what it can, as far as there are places.",
        "path: as the client sent it. mask: (heads,), 1 keeps a head.",
        "Compute the map. Raises OSError if the file is missing, as `check` cannot know.",
    ],
)
def test_other_sentences_are_left_alone(tmp_path: Path, docstring: str) -> None:
    _write(tmp_path, "service", f'def f() -> None:\n    """{docstring}"""\n')
    assert list(complaints(tmp_path)) == []
