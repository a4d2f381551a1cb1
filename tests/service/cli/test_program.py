"""The program as a whole: Ctrl-C at any time, errors in words, and before torch is imported."""

import json
import subprocess
import sys
from pathlib import Path

PROBE = """
import contextlib, io, json, sys
from headroom.service.cli import main
answers = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["headroom", *arguments]
    words, status = io.StringIO(), 0
    with contextlib.redirect_stderr(words), contextlib.redirect_stdout(words):
        try:
            main()
        except SystemExit as end:
            status = end.code
    loaded = [name for name in ("torch", "transformers", "ray") if name in sys.modules]
    answers.append([status, words.getvalue(), loaded])
print(json.dumps(answers))
"""


def test_wrong_arguments_are_told_before_torch_is_imported(tiny_checkpoint: Path, tmp_path: Path) -> None:
    model = ["--model", str(tiny_checkpoint)]
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("query,text,grade\na,b,1\n")
    good = tmp_path / "good.csv"
    good.write_text("query,title,grade\na,b,1\n")
    data, new = ["--data", str(good)], ["--out", str(tmp_path / "new")]
    cases = [
        (["--help"], "Usage"),
        (["train", "--help"], "Usage"),
        (["score", "a", "b", *model, "--mask", "9.9"], "layer 9 does not exist"),
        (
            ["score", "a", "b", *model, "--variant", "nope"],
            "no variant 'nope' (with --model, name its file by",
        ),
        (["score", "a", "b", *model, "--dtype", "float8"], "dtype 'float8'"),
        (["condense", "a b", "--titles", "gone.txt", *model], "gone.txt does not exist"),
        (["condense", "a b", "--titles", str(good), *model, "--mask", "9.9"], "no row of the query"),
        (["calibrate", *data, *new, *model], "too few queries"),
        (
            ["evaluate", "--data", str(wrong), *model],
            "there is no column title; found 'query', 'text', 'grade'",
        ),
        (["evaluate", *data, *model, "--mask", "0.9"], "head 9 does not exist"),
        (["train", "--data", "gone.csv", *new], "gone.csv does not exist"),
        (["train", *data, "--out", str(full)], "not empty"),
        (["train", *data, *new, "--device", "tpu"], "device 'tpu'"),
        (["study", "single", "--data", "gone.csv", *new, *model], "gone.csv does not exist"),
        (["prune", "--mask", "9.9", *new, *model], "layer 9 does not exist"),
        (["prune", "--mask", "1.1", "--out", str(full), *model], "not empty"),
        (["quantize", "--data", "gone.csv", *new, *model], "gone.csv does not exist"),
        (["quantize", "--out", str(full), *model], "not empty"),
    ]
    probe = [sys.executable, "-c", PROBE, json.dumps([arguments for arguments, _ in cases])]
    done = subprocess.run(probe, capture_output=True, text=True, check=True)
    for (arguments, reason), (status, words, loaded) in zip(cases, json.loads(done.stdout), strict=True):
        assert reason in words, arguments
        assert status == (0 if "--help" in arguments else 1), arguments
        assert loaded == [], arguments


INTERRUPTED = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)  # also if a shell runs the tests in the background
sys.meta_path.insert(0, Finder())
from headroom.service.cli import main
main()
"""


def test_ctrl_c_while_the_program_is_imported_shows_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED, "score", "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
