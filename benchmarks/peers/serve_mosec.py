"""mosec: a Rust front, Python workers with dynamic batching."""

from __future__ import annotations

import sys

from benchmarks.peers import scoring


def main() -> None:
    """Serve POST /v1/score until SIGTERM."""
    options = scoring.arguments()
    milliseconds = str(scoring.TIMEOUT_S * 1000)
    sys.argv = ["mosec", "--address", "127.0.0.1", "--port", str(options.port), "--timeout", milliseconds]
    sys.argv += ["--log-level", "warning"]
    from mosec import Server

    from benchmarks.peers.mosec_worker import ScoreWorker

    server = Server()
    server.append_worker(
        ScoreWorker,
        num=options.workers,
        max_batch_size=scoring.MAX_REQUESTS,
        max_wait_time=int(scoring.WAIT_S * 1000),
        route="/v1/score",
    )
    server.run()


if __name__ == "__main__":
    main()
