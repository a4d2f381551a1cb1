"""The plan of a run, made from a scenario file and options, for the client process and the report.

It never holds a secret: it names the environment variable that holds an API key.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

SCENARIOS = Path(__file__).parent / "scenarios"
API_KEY_VARIABLE = "HEADROOM_API_KEY"
STEPS = 5
"""Number of equal steps from `rate` to `rate_to`."""

_UNITS = {"": 1.0, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


class LoadTestError(Exception):
    """The load test cannot continue; the message is one sentence for the user.

    Errors of single requests are counted and never raised.
    """


class PlanError(LoadTestError):
    """The plan is wrong: an option, a scenario file or an input file."""


def seconds(text: str | float) -> float:
    """Return the seconds of text such as `30`, `500ms`, `30s`, `5m` or `2h`. Raises ValueError."""
    if isinstance(text, (int, float)):
        return float(text)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(us|ms|s|m|h|)\s*", text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as 30, 500ms, 30s, 5m or 2h")
    return float(match[1]) * _UNITS[match[2]]


def share(text: str) -> float:
    """Return the share of text such as `5%` or `0.05`. Raises ValueError, also for a 5 without a %."""
    is_percent = text.endswith("%")
    number = float(text.removesuffix("%"))
    if not 0 <= number <= (math.inf if is_percent else 1) or math.isinf(number):
        raise ValueError(f"{text!r} is neither a percentage nor a number from 0 to 1")
    return number / 100 if is_percent else number


def weights(text: str | list[str] | dict[str, float]) -> dict[str, float]:
    """Return weights by name of `a,b` or `a=3,b=1`, or with `;` if names hold commas. Raises ValueError."""
    if isinstance(text, dict):
        return text
    items = text if isinstance(text, list) else text.split(";" if ";" in text else ",")
    result: dict[str, float] = {}
    for item in filter(None, map(str.strip, items)):
        name, _, weight = item.rpartition("=")
        try:
            result[name.strip() or weight] = float(weight) if name else 1.0
        except ValueError:
            raise ValueError(f"{item!r}: a number must follow the =") from None
    return result


def rate(value: str | float) -> str | float:
    """Return a rate as a number, or a multiple of the saturation such as `2x` as text. Raises ValueError."""
    is_multiple = isinstance(value, str) and re.fullmatch(r"[0-9]*\.?[0-9]+x", value) is not None
    try:
        number = float(str(value).removesuffix("x") if is_multiple else value)
    except ValueError:
        raise ValueError(f"{value!r} is neither a number nor a multiple such as 2x") from None
    if not 0 < number < math.inf:
        raise ValueError("must be above 0 and finite")
    return value if is_multiple else number


Seconds = Annotated[float, BeforeValidator(seconds)]
Weights = Annotated[dict[str, Annotated[float, Field(ge=0)]], BeforeValidator(weights)]
Rate = Annotated[float | str, BeforeValidator(rate)]
Arrivals = Literal["poisson", "constant", "ramp", "step", "trace"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


class Traffic(_Model):
    """One kind of request, such as a tenant's or an endpoint's; a run mixes several by weight."""

    name: str = "all"
    weight: float = Field(1.0, gt=0)
    endpoint: str = "score"
    titles: str | int = "20"
    masks: Weights = Field(default_factory=dict)
    variants: Weights = Field(default_factory=dict)
    units: int = Field(0, ge=0, description="Number of different units for experiments; 0 sends no unit.")
    zipf: float = Field(0.0, ge=0, le=10, description="Exponent of Zipf's law for how often queries repeat.")
    deadline_ms: float | None = Field(None, gt=0)
    on_failure: Literal["error", "original_order"] | None = None
    api_key_env: str = API_KEY_VARIABLE

    @model_validator(mode="after")
    def _check(self) -> Traffic:
        for name in ("masks", "variants", "units", "zipf", "deadline_ms", "on_failure"):
            if self.endpoint.startswith("GET ") and getattr(self, name):
                raise ValueError(f"{name}: {self.endpoint} sends no body that could hold it")
        return self


class Phase(_Model):
    """A stretch of time with one rate, or with a rate that changes linearly from `rate` to `to`."""

    for_: Seconds = Field(alias="for", gt=0)
    rate: float = Field(ge=0)
    to: float | None = Field(None, ge=0)

    @property
    def last_rate(self) -> float:
        """The rate at the end."""
        return self.rate if self.to is None else self.to

    @property
    def requests(self) -> float:
        """The expected number of requests."""
        return self.for_ * (self.rate + self.last_rate) / 2


class Event(_Model):
    """A shell command to run during the traffic, such as a fault.

    It finds the process of --start in $SERVER_PID, the server in $URL, the report's directory in $OUT, and
    Python in $PYTHON. If it prints a JSON object, the report shows it.
    """

    at: Seconds = Field(ge=0, description="Time since the measured part began.")
    every: Seconds | None = Field(None, ge=1)
    name: str
    run: str


class Plan(_Model):
    """The plan of a whole run."""

    url: str
    description: str = ""
    seed: int = Field(1, ge=0)
    arrivals: Arrivals = "poisson"
    rate: Rate = 50.0
    rate_to: float | None = Field(None, gt=0, description="Last rate of a ramp or step.")
    phases: tuple[Phase, ...] = ()
    trace: Path | None = None
    duration: Seconds = Field(30.0, gt=0)
    warmup: Seconds = Field(3.0, ge=0)
    timeout: Seconds = Field(10.0, gt=0)
    connections: int = Field(1024, ge=1)
    traffic: tuple[Traffic, ...] = Field((Traffic(),), min_length=1)
    pairs: Path | None = None
    max_lag: Seconds = Field(0.010, gt=0, description="Send lag at p99 above which a run is invalid.")
    slo: str | None = None
    events: tuple[Event, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _imply_trace(cls, values: Any) -> Any:
        """Set `arrivals` to trace if there is a trace file."""
        return {"arrivals": "trace", **values} if values.get("trace") else values

    @model_validator(mode="after")
    def _check(self) -> Plan:
        parts = urlsplit(self.url)
        if "@" in parts.netloc:  # the message must not repeat it
            raise ValueError("url: must not hold a user name or password, because reports show the address")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url: {self.url!r} is not an http(s) address such as http://127.0.0.1:8000")
        if self.arrivals == "trace" and self.trace is None:
            raise ValueError("arrivals: trace needs a trace file")
        if self.arrivals != "trace" and self.trace is not None:
            raise ValueError(f"arrivals: {self.arrivals} and a trace exclude each other")
        if self.arrivals in ("ramp", "step") and self.rate_to is None and not self.phases:
            raise ValueError(f"arrivals: {self.arrivals} needs rate_to (--rate-to) or phases")
        if self.rate_to is not None and self.arrivals not in ("ramp", "step"):
            raise ValueError("rate_to (--rate-to): it needs arrivals (--arrivals) ramp or step")
        if self.rate_to is not None and self.phases:
            raise ValueError("rate_to (--rate-to): phases have rates of their own; --rate replaces them")
        if self.phases and not any(phase.rate or phase.to for phase in self.phases):
            raise ValueError("phases: at least one needs a rate above 0")
        if self.phases and self.arrivals == "trace":
            raise ValueError("phases: a trace has its own times")
        if len({traffic.name for traffic in self.traffic}) < len(self.traffic):
            raise ValueError("traffic: every entry needs a name of its own")
        return self

    @property
    def saturation_factor(self) -> float | None:
        """The factor f if the rate is `fx`, f times the server's saturation; else None."""
        return float(self.rate[:-1]) if isinstance(self.rate, str) else None

    def changed(self, **changes: Any) -> Plan:
        """Return a copy with these changes, validated again."""
        return make_plan({**self.model_dump(by_alias=True), **changes})


def make_plan(values: dict[str, Any]) -> Plan:
    """Return a plan from plain values. Raises PlanError that says which value is wrong and why."""
    try:
        return Plan.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = first["msg"].removeprefix("Value error, ")
        raise PlanError(f"{where}: {reason}" if where else reason) from None


def combined(scenario: str | None, options: dict[str, Any]) -> Plan:
    """Return the plan of a scenario, changed by options of the plan and of every kind of traffic in it.

    Raises PlanError.
    """
    values = {} if scenario is None else read_scenario(scenario)
    if "trace" in options:
        options = {"arrivals": "trace", **options}
    replaced = _replaced_by(options)
    traffic = {name: options[name] for name in Traffic.model_fields if name in options}
    of_plan = {name: options[name] for name in Plan.model_fields if name in options}
    entries = [{**entry, **traffic} for entry in values.get("traffic") or [{}]]
    kept = {name: value for name, value in values.items() if name not in replaced}
    given = {**kept, **of_plan, "traffic": entries}
    for schedule in ("trace", "phases"):
        for name in ("rate", "duration"):
            if given.get(schedule) and name in given:
                raise PlanError(f"{name} (--{name}): it has no effect together with {schedule}")
    return make_plan(given)


def _replaced_by(options: dict[str, Any]) -> set[str]:
    """Return the scenario's values about rates and times that these options replace."""
    replaced: set[str] = set()
    if "trace" in options:
        replaced |= {"phases", "rate", "rate_to", "duration"}
    if {"rate", "duration", "arrivals"} & options.keys():
        replaced.add("phases")
    if options.get("arrivals", "trace") != "trace":
        replaced.add("trace")
    if options.get("arrivals", "ramp") not in ("ramp", "step"):
        replaced.add("rate_to")
    return replaced


def read_scenario(name: str) -> dict[str, Any]:
    """Return the values of a shipped scenario or of a YAML file. Raises PlanError."""
    shipped = {path.stem: path for path in sorted(SCENARIOS.glob("*.yaml"))}
    path = shipped.get(name, Path(name))
    try:
        # All scalars are text, which the fields read: YAML 1.1 would read 010 as 8, and 1:30 as 90.
        values = yaml.load(path.read_text("utf-8"), yaml.CBaseLoader)
    except (OSError, UnicodeDecodeError):
        raise PlanError(
            f"--scenario: {name!r} is none of {', '.join(shipped)} and no readable file"
        ) from None
    except yaml.YAMLError as error:
        raise PlanError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise PlanError(f"{path}: expected a mapping of plan fields")
    for name in ("pairs", "trace"):
        if values.get(name):
            values[name] = str(path.parent / Path(values[name]).expanduser())
    return values
