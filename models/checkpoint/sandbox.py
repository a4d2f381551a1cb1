"""Runs a checkpoint's tokenizer and its chat template in a process of their own, with limits.

Both are programs: a normalizer may make a million letters of one, and a template may loop for days. So each
file is tried before texts of requests reach it. This file is also that process's program, which imports
nothing of ours.
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

CPU_SECONDS = 5
"""Limit on a trial; usual ones take some milliseconds."""

MEMORY_BYTES = 8 << 30

_FILES = "tokenizer.json tokenizer_config.json special_tokens_map.json chat_template.jinja config.json"
_TRIAL = [*map(chr, range(32, 127)), "é中😀", "a word of 12 letters, " * 40]
"""Texts that a usual tokenizer reads in a millisecond."""

_LONG = 1_000
"""Tokens of a prompt that are not worth a comparison."""

_finished: dict[bytes, Any] = {}


class SandboxFailed(Exception):
    """A tokenizer or a template failed, or took more time or memory than any usual one."""


def try_tokenizer(directory: Path) -> None:
    """Read some texts with a checkpoint's tokenizer.json. Raises SandboxFailed."""
    _run(directory, {})


def encode_pairs(directory: Path, pairs: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Return the ids that transformers gives pairs of texts. Raises SandboxFailed."""
    return list(_run(directory, {"pairs": pairs}))


def render_prompts(
    directory: Path, conversations: Iterable[tuple[list[dict[str, str]], dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return what transformers makes of messages and the options of its `apply_chat_template`: "text" and
    "ids", or "error"; nothing for a checkpoint without a chat template. Raises SandboxFailed."""
    return list(_run(directory, {"conversations": [*conversations]}))


def _run(directory: Path, job: dict[str, Any]) -> Any:
    """Return the result of a job, which is remembered for equal files."""
    digest = hashlib.sha256(json.dumps(job).encode())
    for name in _FILES.split():
        file = directory / name
        digest.update(name.encode() + (file.read_bytes() if file.is_file() else b""))
    key = digest.digest()
    if key not in _finished:
        process = subprocess.run(
            [sys.executable, "-P", __file__, str(directory)],
            input=json.dumps(job),
            capture_output=True,
            encoding="utf-8",
            env=os.environ | {"TOKENIZERS_PARALLELISM": "false", "PYTHONIOENCODING": "utf-8"},
            check=False,
        )
        if process.returncode < 0:
            raise SandboxFailed(f"it takes more than {CPU_SECONDS} s, or more than {MEMORY_BYTES >> 30} GiB")
        if process.returncode > 0:
            reason = next(iter(process.stderr.strip().splitlines()[-1:]), "")
            raise SandboxFailed(reason[:300])
        _finished[key] = json.loads(process.stdout.splitlines()[-1])
    return _finished[key]


def _limit() -> None:
    """Limit what this process takes from now on."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + CPU_SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))


def _main(directory: Path) -> None:
    """Do the job that standard input describes, and print its result."""
    from tokenizers import Tokenizer

    job = json.load(sys.stdin)
    result: list[Any] = []
    if job:
        sys.modules["torch"] = None  # type: ignore[assignment] # not needed, and slow to import
        from transformers import AutoTokenizer
    _limit()
    with suppress(BaseException):  # what fails is told where it is used
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        for text in _TRIAL:
            with suppress(BaseException):
                tokenizer.encode(text)
    if job:
        theirs = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        result = theirs(job["pairs"])["input_ids"] if "pairs" in job else []
        if theirs.chat_template is not None:
            result += [_rendered(theirs, *conversation) for conversation in job.get("conversations", ())]
    print(json.dumps(result))


def _rendered(tokenizer: Any, messages: list[dict[str, str]], options: dict[str, Any]) -> dict[str, Any]:
    """Return the text and the ids of a conversation, or what is wrong with it."""
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, **options)
        ids = tokenizer.apply_chat_template(messages, return_dict=False, **options)
    except MemoryError:
        raise
    except Exception as error:  # whatever a template raises
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    return {"text": text, "ids": ids} if len(ids) < _LONG else {"text": text}


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
