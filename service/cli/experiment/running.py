"""`headroom experiment report|ramp|stop|ship`: a running service's experiments, over HTTP."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from service.cli.experiment.tables import describe

TIMEOUT_S = 90
"""A report over millions of units takes its time."""

Name = Annotated[str, typer.Argument(help="The experiment, as the config calls it.")]
Url = Annotated[str, typer.Option(envvar="HEADROOM_URL", help="Where the service is.")]
Key = Annotated[
    str | None, typer.Option(envvar="HEADROOM_API_KEY", help="API key; changes need one with the admin role.")
]
Reason = Annotated[str, typer.Option(help="Goes into the experiment's log.")]
Json = Annotated[bool, typer.Option("--json", help="The answer as JSON.")]
HERE = "http://127.0.0.1:8000"


def report(
    name: Name,
    url: Url = HERE,
    key: Key = None,
    database: Annotated[
        str | None,
        typer.Option(help="Ask the database itself, for an experiment that has left the service's config."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="With --database: the config file that declares the experiment.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What an experiment says so far. Look as often as you like: the intervals hold at all looks together.

    Example: headroom experiment report prune20
    """
    if (database is None) != (config is None):
        raise typer.BadParameter("go together", param_hint="'--database' / '--config'")
    if database is not None and config is not None:
        found = from_database(name, database, config)
    else:
        found = call(url, key, name)
    show(found, as_json, analysed=True)


def ramp(
    name: Name,
    traffic: Annotated[
        float | None, typer.Option(help="Share of the units that is exposed.  [default: the next step]")
    ] = None,
    reinstate: Annotated[
        list[str] | None, typer.Option(help="An arm that was rolled back and gets units again.")
    ] = None,
    reason: Reason = "",
    url: Url = HERE,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Expose more units, or fewer. Nobody moves from one arm to another.

    Example: headroom experiment ramp prune20 --traffic 0.25 --reason "p99 is fine"
    """
    if traffic is not None and not 0 <= traffic <= 1:
        raise typer.BadParameter("a share from 0 to 1", param_hint="--traffic")
    body = {"traffic": traffic, "reinstate": reinstate or [], "reason": reason}
    show(call(url, key, name, "ramp", body), as_json)


def stop(name: Name, reason: Reason = "", url: Url = HERE, key: Key = None, as_json: Json = False) -> None:
    """End an experiment: every unit gets the default again.

    Example: headroom experiment stop prune20 --reason "sample ratio is off"
    """
    show(call(url, key, name, "stop", {"reason": reason}), as_json)


def ship(
    name: Name,
    arm: Annotated[str, typer.Argument(help="The arm that everybody gets.")],
    reason: Reason = "",
    url: Url = HERE,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End an experiment: every unit gets this arm's variant.

    Example: headroom experiment ship prune20 pruned --reason "good enough on clicks"
    """
    show(call(url, key, name, "ship", {"arm": arm, "reason": reason}), as_json)


def call(
    url: str, key: str | None, name: str, action: str | None = None, body: dict[str, Any] | None = None
) -> dict[str, Any]:
    """GET /v1/experiments/{name}, or POST to an action of it. Raises RuntimeError: what the server said."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise typer.BadParameter("an address such as http://127.0.0.1:8000", param_hint="--url")
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
            raise RuntimeError(_reason(error)) from None
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        raise RuntimeError(f"no answer from {url}: {getattr(error, 'reason', error)}") from None


def from_database(name: str, url: str, path: Path) -> dict[str, Any]:
    """The analysis and the log of an experiment that no service runs any more."""
    import dataclasses
    import time

    from service.deployment.config_file import Overrides, load
    from service.experiments.analysis.report import ReportSpec, analyse
    from service.experiments.storage.store import Store

    declared = {config.name: config for config in load(path, Overrides()).live.experiments}
    if name not in declared:
        names = ", ".join(declared) or "none"
        raise RuntimeError(f"{path} declares no experiment {name!r}; there are: {names}")
    config = declared[name]
    store = Store(url)
    try:
        now = time.time()
        actions = [action for _, action in store.actions([name])]
        spec = ReportSpec.of(config, actions, now)
        return {
            "name": name,
            "history": [dataclasses.asdict(action) for action in actions],
            "report": dataclasses.asdict(analyse(store, spec, now)),
        }
    finally:
        store.close()


def show(found: dict[str, Any], as_json: bool, *, analysed: bool = False) -> None:
    """The answer as it came, or for people."""
    print(json.dumps(found, indent=2, ensure_ascii=False) if as_json else describe(found, analysed=analysed))


def _reason(error: urllib.error.HTTPError) -> str:
    """The sentence of our error shape, or the status where something else answered."""
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{error.url} answered {error.code} {error.reason}"
