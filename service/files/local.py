"""Scores a job on this machine: one thread reads and tokenizes, the pool computes, the main thread writes."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

from service.files import writing
from service.files.job import Job, Progress, read_windows
from service.files.job import writing as errors_of_writing
from service.files.parts import Part, Parts
from service.files.reading import Window
from service.files.scoring import Pending, Scorer

AHEAD = 1
"""Windows that wait between the reader and the writer, beside one in the hands of each."""


def score(job: Job, parts: Parts, progress: Progress, *, scorer: Scorer | None = None) -> None:
    """Keep a part for every window of the job that has none yet.

    scorer: of the job's request, which stays open; default: one that is loaded for this job.
    """
    own = scorer is None
    try:
        for file in job.files:
            if progress.is_read(file.number):
                continue
            scorer = scorer or Scorer(job.request)
            last = -1
            for item in _ahead(job, file.number, scorer, progress):
                window = item.window if isinstance(item, Pending) else item
                last = window.number
                if isinstance(item, Pending):
                    data, rejects = encoded(job, scorer, item)
                    part = Part(file.number, last, len(window.records), len(window.rejects))
                    with errors_of_writing(parts.directory):
                        parts.keep(part, data, rejects)
                    progress.kept(part, window.share)
                else:
                    progress.passed(file.number, window.share)
            with errors_of_writing(parts.directory):
                parts.end(file.number, last + 1)
            progress.ends[file.number] = last + 1
    finally:
        if scorer is not None and own:
            scorer.close()


def encoded(job: Job, scorer: Scorer, pending: Pending) -> tuple[bytes, bytes]:
    """Wait for a window's scores and return its part and its rejects as they are written."""
    window = pending.window
    file = job.files[window.file]
    results = scorer.finish(pending)
    data = writing.encode(window, results, job.layout, file.format)
    return data, writing.encode_rejects(file.name, window.rejects)


def _ahead(job: Job, number: int, scorer: Scorer, progress: Progress) -> Iterator[Pending | Window]:
    """Yield a file's windows, under way already, or as they are read if they are kept."""
    made: queue.Queue[Pending | Window | BaseException | None] = queue.Queue(AHEAD)
    stop = threading.Event()

    def put(item: Pending | Window | BaseException | None) -> bool:
        while not stop.is_set():
            try:
                made.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for window in read_windows(job, number):
                is_kept = progress.is_done(number, window.number)
                if not put(window if is_kept else scorer.submit(window)):
                    return
            put(None)
        except BaseException as error:
            put(error)

    reader = threading.Thread(target=read, name="reader", daemon=True)
    reader.start()
    try:
        while (item := made.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        reader.join()
