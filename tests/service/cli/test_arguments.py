"""What is wrong in a command's arguments is told before torch is imported, which takes seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROBE = """
import contextlib, io, json, sys
from service.cli import main
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
        (["score", "a", "b", "--variant", "nope"], "no variant 'nope'"),
        (["score", "a", "b", *model, "--dtype", "float8"], "dtype 'float8'"),
        (["score", "a", "b", "--model", "/no/such"], "/no/such does not exist"),
        (["condense", "a b", "--titles", "gone.txt", *model], "gone.txt does not exist"),
        (["condense", "a b", "--titles", str(good), *model, "--mask", "9.9"], "no row of the query"),
        (["evaluate", "--data", "gone.csv", *model], "gone.csv does not exist"),
        (["evaluate", "--data", str(wrong), *model], "no column title; found 'query', 'text', 'grade'"),
        (["evaluate", *data, *model, "--mask", "0.9"], "head 9 does not exist"),
        (["train", "--data", "gone.csv", *new], "gone.csv does not exist"),
        (["train", "--data", str(wrong), *new], "no column title"),
        (["train", *data, "--out", str(full)], "not empty"),
        (["train", *data, *new, "--device", "tpu"], "device 'tpu'"),
        (["study", "single", "--data", "gone.csv", *new, *model], "gone.csv does not exist"),
        (["study", "single", "--data", str(wrong), *new, *model], "no column title"),
        (["prune", "--mask", "9.9", *new, *model], "layer 9 does not exist"),
        (["prune", "--mask", "*.*", *new, *model], "all 12 heads"),
        (["prune", "--mask", "1.1", "--out", str(full), *model], "not empty"),
        (["quantize", "--data", "gone.csv", *new, *model], "gone.csv does not exist"),
        (["quantize", "--test", str(wrong), *new, *model], "no column title"),
        (["quantize", "--out", str(full), *model], "not empty"),
    ]
    probe = [sys.executable, "-c", PROBE, json.dumps([arguments for arguments, _ in cases])]
    done = subprocess.run(probe, capture_output=True, text=True, check=True)
    for (arguments, reason), (status, words, loaded) in zip(cases, json.loads(done.stdout), strict=True):
        assert reason in words, arguments
        assert status == (0 if "--help" in arguments else 1), arguments
        assert loaded == [], arguments
