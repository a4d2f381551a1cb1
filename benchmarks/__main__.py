"""`python -m benchmarks` runs the benchmarks, prints their pages and writes them into benchmarks/results.

A section is a module with `measure(rounds) -> Report`. Its result is a section of amx.md, avx512.md, avx2.md
or other.md, by the kind of processor. docs/PERFORMANCE.md sums them up.

Example: python -m benchmarks --only encoder,engines --rounds 20 --check
"""

import argparse
import importlib
import signal
import sys
import traceback

from benchmarks.report import write
from headroom.models.cores import processor_features

ROUNDS = 20
"""Turns of each side, unless --rounds or the section gives another number."""

SECTIONS = {
    "encoder": "the network alone, with and without head masks, against the GEMM limit of the run",
    "int8": "int8 against bf16: speed, and accuracy on labelled pairs",
    "engines": "the network alone beside onnxruntime, OpenVINO, CTranslate2 and transformers",
    "servers": "over HTTP beside Ray Serve and mosec",
    "service": "our server: overhead, overload, mixed crowds, memory, start",
    "memory": "the memory of each replica after a mix of requests",
    "front": "our server with a network that answers at once: what one core of front can feed",
    "pruned": "the shipped masks in every number format: speed and loss beside the intact model",
    "cascade": "the cascade and `fast` beside the full model, over HTTP",
    "decoder": "a decoder whose titles share their beginning, alone against transformers",
    "generate": "milliseconds that writing a short query takes, greedy and with beams",
}


def main() -> int:
    """Run the program. Exit status 1 if a section failed or, with `--check`, missed a target; else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", type=_names, default=[*SECTIONS], metavar="A,B", help=", ".join(SECTIONS))
    parser.add_argument("--rounds", type=int, help="turns of each side; default: the section's")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--dry-run", action="store_true", help="print the pages, but do not write them")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: it stops its servers
    failed = False
    for name in options.only:
        print(f"measuring {name}: {SECTIONS[name]}", file=sys.stderr, flush=True)
        section = importlib.import_module(f"benchmarks.{name}")
        try:
            report = section.measure(options.rounds or getattr(section, "ROUNDS", ROUNDS))
        except Exception as error:  # the results of the other sections took hours
            traceback.print_exception(error)
            failed = True
            continue
        print(report.as_markdown(), flush=True)
        if not options.dry_run:
            write(name, SECTIONS[name], report, processor_features())
        for line in report.missed:
            print(f"target missed: {line}", file=sys.stderr)
        failed |= bool(report.missed) and options.check
    return int(failed)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in SECTIONS:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(SECTIONS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
