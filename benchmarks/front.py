"""Measures the front: everything that a replica does for a request but the network, which answers at once.

`headroom serve` runs with `benchmarks.front_engine`; a client in this process sends it requests of 20 titles
over 32 connections. The result is pairs per second of processor time of the replicas (user and system, all
threads): other programs on the machine disturb that less than the time on the clock.

Machines differ in that, and less in a ratio: how many times as many pairs are encoded per second, request by
request on one thread, as with `Tokenizer.encode_batch` of the tokenizers library.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import yaml
from tokenizers import Tokenizer

from benchmarks.load import Client, bodies, texts
from benchmarks.measure import Ratio, turns
from benchmarks.report import Report, Row, at_least
from benchmarks.serving import CONFIG, TITLES, Server, headroom, replicas
from headroom.models.checkpoint.config import read_config
from headroom.models.checkpoint.hub import DEFAULT
from headroom.models.checkpoint.tokenizer import load_tokenizer
from headroom.models.cores import cores

Encode = Callable[[list[tuple[str, str]]], object]
"""Encodes the pairs of a request."""

ROUNDS = 5
CONNECTIONS = 32
BATCH_TOKENS = 16_384  # a GPU's
KNOWN = 300
"""Requests that come again and again if texts are to be known; their titles are some 2,000."""

ENCODED = 100
"""Requests that a turn encodes."""

MOST_PER_SECOND = 2000
"""Requests per second that are written in advance if texts are new; more than any machine answers."""


def measure(rounds: int = ROUNDS, seconds: float = 4.0, model: Path = DEFAULT) -> Report:
    """Measure one replica and one per core, with known and with new texts, in turns. seconds: of each."""
    numbers = sorted({1, cores()})
    with ExitStack() as started:
        directory = started.enter_context(tempfile.TemporaryDirectory())
        config = Path(directory, "front.yaml")
        config.write_text(front_config(), "utf-8")
        servers = {number: started.enter_context(headroom(config, model, number)) for number in numbers}
        sides = {
            (number, kind): partial(turn_of, servers[number], kind == "new", seconds)
            for number in numbers
            for kind in ("known", "new")
        }
        found = turns(sides, rounds)  # while one server is measured, the other has nothing to do
    about = f"{rounds} rounds; {TITLES} titles a request, {CONNECTIONS} connections."
    report = report_on(found, about)
    report.rows += [beside_the_library(model, kind, rounds) for kind in ("known", "new")]
    return report


def report_on(found: dict[tuple[int, str], list[float]], about: str) -> Report:
    """Return the report. Several replicas must be linear over cores: each nearly as fast as one alone."""
    report = Report(about)
    for (number, kind), rates in found.items():
        name = f"{number} replica(s), {kind} texts"
        more = f" ({min(rates):,.0f} to {max(rates):,.0f})"
        rate = statistics.median(rates)
        report.rows.append(at_least(f"pairs/s and core of front, {name}", rate, 25_000, ",.0f", more))
        if number > 1:
            linear = Ratio.of(rates, found[1, kind]).median
            report.rows.append(at_least(f"the same over one replica's, {name}", linear, 0.9, ".0%"))
    return report


def beside_the_library(model: Path, kind: str, rounds: int) -> Row:
    """Return the row of how many times as many pairs we encode per second as the tokenizers library."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encoders: dict[str, Encode] = {
        "ours": load_tokenizer(model, read_config(model)).encode,
        "library": Tokenizer.from_file(str(model / "tokenizer.json")).encode_batch,
    }
    sides = {name: partial(seconds_of_encoding, encode, kind) for name, encode in encoders.items()}
    seconds = turns(sides, 1 + rounds)  # in the first turn, texts and words become known
    ratio = Ratio.of(seconds["library"][1:], seconds["ours"][1:])
    return Row(f"pairs encoded per second, × the library's encode_batch, {kind} texts", ratio.text())


def seconds_of_encoding(encode: Encode, kind: str, turn: int) -> float:
    """Return the processor seconds that the pairs of some requests take. New texts differ in each turn."""
    is_new = kind == "new"
    requests = texts(TITLES, ENCODED, new=is_new, seed=turn if is_new else 0)
    pairs = [[(query, title) for title in titles] for query, titles in requests]
    began = time.thread_time()
    for of_request in pairs:
        encode(of_request)
    return time.thread_time() - began


def front_config() -> str:
    """Return deploy/serve.yaml with the front's engine and a GPU's sizes."""
    document = yaml.safe_load(CONFIG.read_text("utf-8"))
    application = document["applications"][0]
    application["import_path"] = "benchmarks.front_engine:build"
    application["args"] = {"device": "cpu", "max_batch_tokens": BATCH_TOKENS, "max_queue_tokens": 2**20}
    return yaml.safe_dump(document)


def turn_of(server: Server, new: bool, seconds: float, turn: int) -> float:
    """Return the pairs per second of the replicas' processor time under one load."""
    count = int(MOST_PER_SECOND * (seconds + 1)) if new else KNOWN
    requests = bodies(texts(TITLES, count, new=new, seed=turn)) * (1 if new else 1000)
    with closing(Client(server.url, requests, CONNECTIONS).start()) as client:
        time.sleep(min(0.5, seconds))
        answered = client.answered
        used = cpu_seconds(server)
        time.sleep(seconds)
        answered = client.answered - answered
        used = cpu_seconds(server) - used
    if client.failed or not answered or client.answered == len(requests):
        raise RuntimeError(
            f"{client.failed} requests failed, {client.answered} of {len(requests)} were answered"
        )
    return answered * TITLES / used


def cpu_seconds(server: Server) -> float:
    """Return the processor seconds of the replicas, user and system."""
    times = [process.cpu_times() for process in replicas(server)]
    return float(sum(each.user + each.system for each in times))
