"""`headroom experiment`: plan an experiment; start, report, ramp, stop, ship and roll it back, over HTTP."""

from __future__ import annotations

import json
import re
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer

from headroom.service.cli import experiment_plan
from headroom.service.loopback import leads_to_loopback

TIMEOUT_S = 90
"""Time limit of one request; a report over millions of units is slow."""

Name = Annotated[str, typer.Argument(help="Name of the experiment.")]
Url = Annotated[str, typer.Option(envvar="HEADROOM_URL", help="Address of the service.")]
Key = Annotated[
    str | None, typer.Option(envvar="HEADROOM_API_KEY", help="API key; changes need one with the admin role.")
]
Reason = Annotated[str, typer.Option(help="Reason to write into the experiment's log.")]
Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")]
DEFAULT_URL = "http://127.0.0.1:8000"

app = typer.Typer(
    help="Plan an experiment, interleaved or A/B; start, report, ramp, stop, ship and roll it back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


app.command("plan")(experiment_plan.command)


@app.command()
def start(
    file: Annotated[
        Path, typer.Argument(help="YAML or JSON file with the experiment, as the config would declare it.")
    ],
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Start an experiment now, on all replicas, without the config. It lasts over restarts.

    Example: headroom experiment start prune20.yaml
    """
    from headroom.service.config.file import load_experiment

    experiment = load_experiment(file)
    answer = call(url, key, body=experiment.model_dump(mode="json", exclude_unset=True))
    show(answer, as_json)


@app.command()
def report(
    name: Name,
    url: Url = DEFAULT_URL,
    key: Key = None,
    out: Annotated[
        Path | None, typer.Option(help="Self-contained HTML file to write, to share the results.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print an experiment's results so far. You may look as often as you like: the intervals stay valid.

    Example: headroom experiment report prune20 --out prune20.html
    """
    from headroom.service.experiments import report_page

    experiment = call(url, key, name)
    if out is not None:
        from headroom.models.files import write_whole

        write_whole(out, report_page.html(experiment).encode())
    show(experiment, as_json)
    if experiment["report"] is None and not as_json:
        print(f"\n{report_page.NO_REPORT}")
    if out is not None and not as_json:
        print(f"\n{out}")


@app.command()
def ramp(
    name: Name,
    traffic: Annotated[float, typer.Option(min=0, max=1, help="Share of the units to expose.")],
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Expose more units, or fewer. No unit moves from one arm to another.

    Example: headroom experiment ramp prune20 --traffic 0.25 --reason "p99 is fine"
    """
    show(call(url, key, name, "ramp", {"traffic": traffic, "reason": reason}), as_json)


@app.command()
def stop(
    name: Name,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End an experiment and give every unit the default variant again.

    Example: headroom experiment stop prune20 --reason "sample ratio is off"
    """
    show(call(url, key, name, "stop", {"reason": reason}), as_json)


@app.command()
def ship(
    name: Name,
    arm: Annotated[str, typer.Argument(help="Arm whose variant every unit gets.")],
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """End an experiment and give every unit this arm's variant.

    Example: headroom experiment ship prune20 pruned --reason "good enough on clicks"
    """
    show(call(url, key, name, "ship", {"arm": arm, "reason": reason}), as_json)


@app.command()
def export(
    name: Name,
    out: Annotated[Path, typer.Option(help="File to write, .parquet, .csv or .csv.gz; it must not exist.")],
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Write an experiment's exposures, interleaved lists and outcomes to a file for a warehouse.

    With a service that has API keys, this needs one with the admin role. The experiment may be gone from the
    config.

    Example: headroom experiment export prune20 --out prune20.parquet
    """
    from headroom.service.cli.export import check_suffix, export_rows
    from headroom.service.experiments.export import Page

    try:
        check_suffix(out)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--out") from None

    def get_page(source: str, after: str) -> Page:
        answer = call(url, key, name, f"rows?{urlencode({'source': source, 'after': after})}")
        return Page(answer["rows"], answer["next"])

    rows = export_rows(get_page, out)
    print(f"{out}: {rows:,} rows")


@app.command()
def rollback(
    name: Name,
    reason: Reason = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
    as_json: Json = False,
) -> None:
    """Take a ship back: every unit gets the default variant again.

    Example: headroom experiment rollback prune20 --reason "more complaints"
    """
    show(call(url, key, name, "rollback", {"reason": reason}), as_json)


def call(
    url: str,
    key: str | None,
    name: str | None = None,
    action: str | None = None,
    body: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """GET /v1/experiments/{name}, or POST a body: to an action below it, or without a name to the whole.

    Raises RuntimeError.
    """
    import httpx2

    url = url.strip()
    key = key.strip() if key else None  # a Secret made with `echo` ends in a line end
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter("must be an address such as http://127.0.0.1:8000", param_hint="--url")
    address = f"{url.rstrip('/')}/v1/experiments"
    if name is not None:
        address += f"/{quote(name, safe='')}"
    if action is not None:
        address += f"/{action}"
    try:
        answer = httpx2.request(
            "GET" if body is None else "POST",
            address,
            json=body,
            headers={"authorization": f"Bearer {key}"} if key else {},
            timeout=TIMEOUT_S,
            trust_env=not leads_to_loopback(url),  # no proxy of HTTP_PROXY leads to this machine
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        reason = str(error).rpartition("] ")[-1] or type(error).__name__  # without "[Errno 111]"
        raise RuntimeError(
            f"no answer from {without_password(url)}: {reason}; does it run there? --url names another"
        ) from None
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        if key:
            raise RuntimeError("the service does not know this API key (--key, or HEADROOM_API_KEY)")
        raise RuntimeError("the service wants an API key: give it by --key, or in HEADROOM_API_KEY")
    try:
        document = answer.json()
        if answer.is_success:
            return dict(document)
        message = str(document["error"]["message"])
    except (ValueError, KeyError, TypeError):  # another program answered
        message = f"{without_password(address)} answered {answer.status_code} {answer.reason_phrase}"
    raise RuntimeError(message)


def without_password(url: str) -> str:
    """Return a URL as a message may show it: without a name and a key before the host."""
    return re.sub(r"//[^/]*@", "//", url, count=1)


def show(experiment: dict[str, Any], as_json: bool) -> None:
    """Print the answer as JSON, or as text for people."""
    from headroom.service.experiments import report_page

    if as_json:
        print(json.dumps(experiment, indent=2, ensure_ascii=False))
    else:
        print(report_page.text(experiment))
