"""Scores files on a Ray cluster with Ray Data: tasks read windows, an actor per core or GPU scores them.

A window is a block of its own, and its part is written where it is scored. If a worker or a node dies, Ray
Data runs the window again, and the part that it writes is the same.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from service.files.formats import require_pyarrow
from service.files.job import Job, Progress, read_windows
from service.files.parts import Part, Parts
from service.ray import tasks

if TYPE_CHECKING:
    from service.files.scoring import Scorer

READ_CPUS = 0.25
"""CPUs that Ray reserves for a task that reads a file. It must differ from a scoring actor's number, or Ray
Data would fuse reading and scoring into one step."""

Row = dict[str, Any]
"""A window, or the end of a file, on its way through Ray Data.

file: the file's number. number: the window's number, or at the end of a file the number of its windows.
window: the window, pickled; empty at the end of a file. error: what is wrong, or "".
After scoring also rows and rejects, which are counts, and share: how much of the file is read by then."""


@contextlib.contextmanager
def cluster(job: Job) -> Iterator[tuple[Job, Callable[[Job, Parts, Progress], None]]]:
    """Yield the job, with absolute paths and its device, and the function that scores it on the cluster.

    Every node must reach input, output and model by the same names.
    """
    require_pyarrow("--ray")
    with tasks.connected() as ray:
        resources = ray.cluster_resources()
        device = job.request.device
        if device == "auto":
            device = "cuda" if resources.get("GPU") else "cpu"
        on_gpu = device.startswith("cuda")
        workers = max(int(resources.get("GPU" if on_gpu else "CPU", 1)), 1)
        files = tuple(
            replace(file, name=_absolute(file.name), output=_absolute(file.output)) for file in job.files
        )
        model = job.request.model
        if model is not None and Path(model).is_dir():
            model = _absolute(model)
        request = replace(job.request, device=device, model=model)
        absolute = replace(
            job,
            source=_absolute(job.source),
            files=files,
            output=_absolute(job.output),
            request=request,
        )
        yield absolute, functools.partial(_score, workers, 1 if on_gpu else 0)


def _absolute(name: str) -> str:
    return name if "://" in name else str(Path(name).absolute())


def _score(workers: int, gpus: int, job: Job, parts: Parts, progress: Progress) -> None:
    """Keep a part for every window of the job that has none yet."""
    files = [file.number for file in job.files if not progress.is_read(file.number)]
    if not files:
        return
    import ray.data as ray_data

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray_data.DataContext.get_current()
    context.target_max_block_size = 1  # byte: each window becomes a block of its own
    context.enable_progress_bars = False
    reading: Any = ray_data.from_items([{"file": number} for number in files], override_num_blocks=len(files))
    windows = reading.flat_map(
        _read, fn_kwargs={"job": job, "done": frozenset(progress.parts)}, num_cpus=READ_CPUS
    )
    scored = windows.map(
        _Scoring,
        fn_constructor_args=(job, parts.plan, parts.run),
        concurrency=(1, workers),
        num_cpus=1,
        num_gpus=gpus,
    )
    for row in scored.iter_rows():
        if row["error"]:
            raise ModelError(row["error"])
        if not row["window"]:
            parts.end(row["file"], row["number"])
            progress.ends[row["file"]] = row["number"]
        elif row["rows"] is not None:
            progress.kept(Part(row["file"], row["number"], row["rows"], row["rejects"]), row["share"])


def _read(row: Row, *, job: Job, done: frozenset[tuple[int, int]]) -> Iterator[Row]:
    """Yield the windows of a file that are not done, and then its end."""
    file, count = row["file"], 0
    try:
        for window in read_windows(job, file):
            count += 1
            if (file, window.number) not in done:
                yield {"file": file, "number": window.number, "window": pickle.dumps(window), "error": ""}
    except ModelError as error:
        yield {"file": file, "number": count, "window": b"", "error": str(error)}
        return
    yield {"file": file, "number": count, "window": b"", "error": ""}


class _Scoring:
    """An actor: loads the models once, scores windows, and writes their parts.

    plan, run: of the job's parts.
    """

    def __init__(self, job: Job, plan: Mapping[str, Any], run: str) -> None:
        from service.files.scoring import Scorer

        self._job = job
        self._parts = Parts(job.output, plan, run)
        self._scorer: Scorer = Scorer(job.request, threads=1)

    def __call__(self, row: Row) -> Row:
        from service.files.local import encoded

        nothing: Row = row | {"rows": None, "rejects": None, "share": None}
        if not row["window"]:
            return nothing
        window = pickle.loads(row["window"])
        data, rejects = encoded(self._job, self._scorer, self._scorer.submit(window))
        part = Part(window.file, window.number, len(window.records), len(window.rejects))
        try:
            self._parts.keep(part, data, rejects)
        except ModelError as error:
            return nothing | {"error": str(error)}
        except OSError as error:
            return nothing | {
                "error": f"{self._parts.directory} cannot be written: {error.strerror or error}"
            }
        counts = {"rows": part.rows, "rejects": part.rejects, "share": window.share}
        return row | {"window": b"kept"} | counts
