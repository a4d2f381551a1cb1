"""No file that a user brings can run code: pickles are refused wherever files are read."""

import ast
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headroom import Classifier
from headroom.models.errors import ModelError, UnsupportedCheckpoint
from headroom.models.study.runner import Runner
from headroom.models.training.loop import read_saved
from tests.models.study.data import judged

ROOT = Path(__file__).parents[2]
PACKAGES = ("models", "service", "loadtest")

SUSPECT = re.compile(r"pickle|load|shelve|marshal|eval\(|exec\(|__import__|trust_remote_code")
SAFE_YAML = {"_Loader", "CSafeLoader", "CBaseLoader"}


class Evil:
    """Its pickle touches a file as soon as it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def _as_pickle(evil: Evil, file: Path) -> None:  # as joblib writes, too
    file.write_bytes(pickle.dumps({"weight": evil}, protocol=2))


def _as_torch_file(evil: Evil, file: Path) -> None:
    torch.save({"weight": evil}, file)


def _as_numpy_array(evil: Evil, file: Path) -> None:
    with file.open("wb") as out:
        np.save(out, np.array([evil], dtype=object), allow_pickle=True)


Writer = Callable[[Evil, Path], None]
WRITERS = pytest.mark.parametrize("write", [_as_pickle, _as_torch_file, _as_numpy_array])


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[Path]:
    """The file that a pickle touches which is run; at the end it is not there."""
    mark = tmp_path / "touched"
    yield mark
    assert not mark.exists()


def test_the_pickles_of_these_tests_run_code_where_they_are_read(tmp_path: Path) -> None:
    mark = tmp_path / "touched"
    pickle.loads(pickle.dumps(Evil(mark)))
    assert mark.exists()


@WRITERS
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_a_checkpoint_is_refused_by_name(
    tiny_checkpoint: Path, tmp_path: Path, mark: Path, name: str, write: Writer
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(tiny_checkpoint, checkpoint)
    (checkpoint / "model.safetensors").unlink()
    write(Evil(mark), checkpoint / name)
    with pytest.raises(UnsupportedCheckpoint, match="the weights cannot be read") as refused:
        Classifier.load(checkpoint, "cpu", "float32")
    assert name in str(refused.value) or name == "model.safetensors"
    assert "weights_only" not in str(refused.value), "it must not say how to run the file's code"


@WRITERS
def test_what_a_training_saved_is_refused_by_name(tmp_path: Path, mark: Path, write: Writer) -> None:
    write(Evil(mark), tmp_path / "progress.pt")
    with pytest.raises(ModelError, match=r"progress\.pt is damaged, or holds Python objects"):
        read_saved(tmp_path / "progress.pt")


@pytest.mark.parametrize("write", [_as_pickle, _as_numpy_array])
def test_what_a_study_cached_is_computed_again(
    clf: Classifier, tmp_path: Path, mark: Path, write: Writer
) -> None:
    runner = Runner(clf, cache=tmp_path)
    masks = [np.ones((3, 4), np.float32)]
    first = runner.logits(judged(), masks)
    (file,) = tmp_path.glob("*.npy")
    write(Evil(mark), file)
    np.testing.assert_array_equal(runner.logits(judged(), masks), first)


def test_no_call_can_unpickle_or_evaluate_a_file() -> None:
    """Finds the calls that a reviewer would have to think about."""
    found = set()
    for file in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = file.read_text()
        for node in ast.walk(ast.parse(text)) if SUSPECT.search(text) else ():
            if isinstance(node, ast.Call) and (call := _unsafe(node)):
                found.add((str(file.relative_to(ROOT)), call))
    assert found == set()


def _unsafe(call: ast.Call) -> str | None:
    name = ast.unparse(call.func)
    options = {word.arg: ast.unparse(word.value) for word in call.keywords}
    last = name.rpartition(".")[2]
    if name in ("eval", "exec", "__import__"):
        return name
    if last in ("load", "loads", "Unpickler") and name.partition(".")[0] in (
        *("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"),
    ):
        return name
    if name == "torch.load" and options.get("weights_only") != "True":
        return name
    if (
        options.get("allow_pickle", "False") != "False"
        or options.get("trust_remote_code", "False") != "False"
    ):
        return name
    if name in ("yaml.load", "yaml.load_all"):
        loader = options.get("Loader") or ast.unparse(call.args[1])
        return None if loader.rpartition(".")[2] in SAFE_YAML else name
    return name if name in ("yaml.unsafe_load", "yaml.full_load") else None
