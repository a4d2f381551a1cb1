"""Writes tests/fixtures/databases: a database as a release leaves it, for SQLite and PostgreSQL.

python -m tests.service.experiments.dump_release 0.2.0

Run it with each release whose tables differ from the release before.
"""

import sqlite3
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.checkpoints import write_checkpoint
from tests.service.experiments.postgres import Cluster
from tests.service.experiments.releases import ROOT, extract, serving

DUMPS = ROOT / "tests" / "fixtures" / "databases"
UNITS = range(30)
WITH_OUTCOME = range(20)


def fill(path: Path, model: Path, database_url: str) -> None:
    """Run a release with an experiment until it has exposures, outcomes, shadow results and actions."""
    with serving(path, model, database_url) as release:
        release.arms(UNITS)
        release.send_outcomes(WITH_OUTCOME)
        release.act("ramp", traffic=0.5, reason="less")
        release.act("ramp", traffic=1.0, reason="all again")


def main(release: str) -> None:
    DUMPS.mkdir(exist_ok=True)
    with TemporaryDirectory() as directory:
        below = Path(directory)
        path, model = extract(release, below), write_checkpoint(below / "model")
        file = below / "experiments.db"
        fill(path, model, f"sqlite:///{file}")
        with sqlite3.connect(file) as database:
            text = "\n".join(database.iterdump()) + "\n"
        (DUMPS / f"{release}.sqlite.sql").write_text(text, "utf-8")
        cluster = Cluster()
        try:
            url = cluster.create("experiments")
            fill(path, model, url)
            dumped = subprocess.run(
                ["pg_dump", "--inserts", "--no-owner", url], capture_output=True, text=True, check=True
            )
        finally:
            cluster.remove()
        # Newer releases of pg_dump write \restrict, which older ones of psql do not know.
        lines = [line for line in dumped.stdout.splitlines() if not line.startswith("\\")]
        (DUMPS / f"{release}.postgresql.sql").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
