"""The program that `headroom.models.checkpoint.sandbox` runs: DIRECTORY SECONDS BYTES, and a job on stdin."""

import json
import os
import resource
import sys
from contextlib import suppress
from typing import Any

OUT_OF_MEMORY = 3
"""The exit status of a job that needs more memory than it may have."""

TOO_LONG = 4
"""The exit status of a job whose result has more than MAX_CHARS, which another process would have to hold."""

MAX_CHARS = 64 << 20

_TEXTS = [*map(chr, range(32, 127)), "é中😀", "a word of 12 letters, " * 40]
"""A usual tokenizer reads them in some milliseconds."""


def main(directory: str, seconds: int, memory_bytes: int) -> None:
    """Do the job, and print its result."""
    with suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    try:
        result = json.dumps(_result(directory, seconds))
    except MemoryError:
        sys.exit(OUT_OF_MEMORY)
    if len(result) > MAX_CHARS:
        sys.exit(TOO_LONG)
    print(result, end="")


def _result(directory: str, seconds: int) -> list[Any]:
    """Try the tokenizer, and return the result of the job on standard input. seconds: of CPU time that both
    may take, without the imports."""
    from tokenizers import Tokenizer

    given = sys.stdin.read()
    if given != "{}":
        sys.modules["torch"] = None  # type: ignore[assignment] # not needed, and slow to import
        from transformers import AutoTokenizer
    limit = int(sum(os.times()[:2])) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    job = json.loads(given)
    with suppress(BaseException):  # a failure is reported where the tokenizer is used
        tokenizer = Tokenizer.from_file(f"{directory}/tokenizer.json")
        for text in _TEXTS:
            tokenizer.encode(text)
    result: list[Any] = []
    if job:
        theirs = AutoTokenizer.from_pretrained(directory, local_files_only=True, trust_remote_code=False)
        result = theirs(job["pairs"])["input_ids"] if "pairs" in job else []
        chars = 0
        for messages, options in job.get("conversations", ()):
            rendered: dict[str, Any] = {"text": "", "error": "", "ids": []}
            result.append(rendered)
            try:
                rendered["text"] = theirs.apply_chat_template(messages, tokenize=False, **options)
                chars += len(rendered["text"])
                if chars > MAX_CHARS:
                    sys.exit(TOO_LONG)
                rendered["ids"] = theirs.apply_chat_template(messages, return_dict=False, **options)
            except MemoryError:
                raise
            except Exception as error:  # whatever a template raises
                rendered["error"] = f"{type(error).__name__}: {error}"[:300]
    return result


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
