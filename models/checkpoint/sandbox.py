"""Runs a checkpoint's tokenizer and its chat template in a process of their own, with limits.

Both are programs: a normalizer may make a million letters of one, and a template may loop for days. So each
file is tried before texts of requests reach it.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headroom.models.checkpoint.fields import check
from headroom.models.checkpoint.sandboxed import MAX_CHARS, OUT_OF_MEMORY, TOO_LONG

CPU_SECONDS = 5
"""Limit on a trial; usual ones take some milliseconds."""

MEMORY_GIB = 8

PROGRAM = Path(__file__).with_name("sandboxed.py")
_FILES = "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja config.json"

_results: dict[bytes, Any] = {}


def run(directory: Path, **job: Any) -> Any:
    """Read some texts with a checkpoint's tokenizer.json, and do a job with transformers.

    pairs: of texts; returns the ids of each. conversations: messages, and options of `apply_chat_template`;
    returns "text", "error" and "ids" of each. Results are remembered for equal files. Raises
    UnsupportedCheckpoint if it fails, or takes more time or memory, or returns more, than usual checkpoints.
    """
    files = [file for name in _FILES.split() if (file := directory / name).is_file()]
    given = json.dumps(job)
    content = given.encode() + b"".join(file.name.encode() + file.read_bytes() for file in files)
    key = hashlib.sha256(content).digest()
    if key not in _results:
        arguments = [str(directory), str(CPU_SECONDS), str(MEMORY_GIB << 30)]
        process = start(arguments, given)
        reason = process.stderr.strip().rpartition("\n")[2][:300]
        if process.returncode < 0 or process.returncode == OUT_OF_MEMORY:  # below 0: ended by a signal
            reason = f"a few short texts take more than {CPU_SECONDS} s, or {MEMORY_GIB} GiB of memory"
        if process.returncode == TOO_LONG:
            reason = f"it makes more than {MAX_CHARS >> 20} MiB of a few short texts"
        what = "tokenizer or chat template" if job else "tokenizer"
        check(process.returncode == 0, f"{directory}: the {what} cannot be used: {reason}")
        _results[key] = json.loads(process.stdout.rpartition("\n")[2])
    return _results[key]


def start(arguments: Sequence[str], job: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own until it ends. job: its standard input."""
    return subprocess.run(
        [sys.executable, "-P", PROGRAM, *arguments],
        input=job,
        capture_output=True,
        text=True,
        env=os.environ | {"TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
