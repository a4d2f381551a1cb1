"""`headroom experiment`: plan an A/B test; report, ramp, stop and ship it while it runs, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.experiment import plan
from service.cli.experiment.tables import describe

TIMEOUT_S = 90
"""Time limit of one request; a report over millions of units is slow."""

Name = Annotated[str, typer.Argument(help="Name of the experiment in the config.")]
Url = Annotated[str, typer.Option(envvar="HEADROOM_URL", help="Address of the service.")]
Key = Annotated[
    str | None, typer.Option(envvar="HEADROOM_API_KEY", help="API key; changes need one with the admin role.")
]
Reason = Annotated[str, typer.Option(help="Reason to write into the experiment's log.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
HERE = "http://127.0.0.1:8000"

app = typer.Typer(
    help="A/B tests of variants: plan one, then report, ramp, stop and ship it while it runs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("plan")(plan.command)


@app.command()
def report(
    name: Name,
    url: Url = HERE,
    key: Key = None,
    database: Annotated[
        str | None,
        typer.Option(help="Database URL; for an experiment that is no longer in the service's config."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Config file that declares the experiment; needed with --database.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write, which needs no other, to share the results.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print an experiment's results so far. You may look as often as you like: the intervals stay valid.

    Example: headroom experiment report prune20 --out prune20.html
    """
    if (database is None) != (config is None):
        raise typer.BadParameter("must be given together", param_hint="'--database' / '--config'")
    if database is not None and config is not None:
        experiment = from_database(name, database, config)
    else:
        experiment = call(url, key, name)
    if out is not None:
        from models.study import page
        from service.experiments import report_page

        page.write(out, report_page.html(experiment))
    show(experiment, as_json, analysed=True)


@app.command()
def ramp(
    name: Name,
    traffic: Annotated[
        float | None,
        typer.Option(
            help="Share of the units to expose.  [default: the next step; with --reinstate, the last traffic]"
        ),
    ] = None,
    reinstate: Annotated[
        list[str] | None, typer.Option(help="Arm that was rolled back and should get units again.")
    ] = None,
    reason: Reason = "",
    url: Url = HERE,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Expose more units, or fewer. No unit moves from one arm to another.

    Example: headroom experiment ramp prune20 --traffic 0.25 --reason "p99 is fine"
    """
    if traffic is not None and not 0 <= traffic <= 1:
        raise typer.BadParameter("must be from 0 to 1", param_hint="--traffic")
    body = {"traffic": traffic, "reinstate": reinstate or [], "reason": reason}
    show(call(url, key, name, "ramp", body), as_json)


@app.command()
def stop(name: Name, reason: Reason = "", url: Url = HERE, key: Key = None, as_json: Json = False) -> None:
    """End an experiment and give every unit the default variant again.

    Example: headroom experiment stop prune20 --reason "sample ratio is off"
    """
    show(call(url, key, name, "stop", {"reason": reason}), as_json)


@app.command()
def ship(
    name: Name,
    arm: Annotated[str, typer.Argument(help="Arm whose variant every unit gets.")],
    reason: Reason = "",
    url: Url = HERE,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End an experiment and give every unit this arm's variant.

    Example: headroom experiment ship prune20 pruned --reason "good enough on clicks"
    """
    show(call(url, key, name, "ship", {"arm": arm, "reason": reason}), as_json)


def call(
    url: str, key: str | None, name: str, action: str | None = None, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """GET /v1/experiments/{name}, or POST to one of its actions. Raises RuntimeError if that fails."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise typer.BadParameter("must be an address such as http://127.0.0.1:8000", param_hint="--url")
    path = f"{url.rstrip('/')}/v1/experiments/{urllib.parse.quote(name, safe='')}"
    request = urllib.request.Request(
        path if action is None else f"{path}/{action}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {}),
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as error:
        with error:
            answer = error.read()
        try:
            message = str(json.loads(answer)["error"]["message"])
        except (ValueError, KeyError, TypeError):  # another program answered
            message = f"{error.url} answered {error.code} {error.reason}"
        raise RuntimeError(message) from None
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise RuntimeError(f"no answer from {url}: {getattr(error, 'reason', error)}") from None


def from_database(name: str, url: str, path: Path) -> dict[str, Any]:
    """Return the analysis and the log of an experiment that no service runs any more."""
    import dataclasses
    import time

    from service.config.file import Overrides, load
    from service.experiments.analysis import analyse
    from service.experiments.database import parse_url
    from service.experiments.store import Store

    parsed = parse_url(url)
    if parsed.drivername.startswith("sqlite") and not Path(str(parsed.database)).is_file():
        raise RuntimeError(f"--database: {parsed.database} does not exist")  # opening it would create it
    declared = {config.name: config for config in load(path, Overrides()).live.experiments}
    if name not in declared:
        names = ", ".join(declared) or "none"
        raise RuntimeError(f"{path} declares no experiment {name!r}; there are: {names}")
    config = declared[name]
    store = Store(url)
    try:
        now = time.time()
        actions = [action for _, action in store.actions([name])]
        return {
            "name": name,
            "history": [dataclasses.asdict(action) for action in actions],
            "report": dataclasses.asdict(analyse(store, config, actions, now)),
        }
    finally:
        store.close()


def show(experiment: dict[str, Any], as_json: bool, *, analysed: bool = False) -> None:
    """Print the answer as JSON, or as text for people."""
    if as_json:
        print(json.dumps(experiment, indent=2, ensure_ascii=False))
    else:
        print(describe(experiment, analysed=analysed))
