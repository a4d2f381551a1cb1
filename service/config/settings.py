"""The operator's settings: `Settings` for the start, from the environment, and `LiveConfig` for later."""

import hashlib
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

import orjson
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from headroom.service.config.keys import ApiKey, parse_api_keys
from headroom.service.config.variants import (
    DegradeConfig,
    MaskForm,
    VariantConfig,
    fault_of_degrade,
    faults_of_cascades,
)
from headroom.service.experiments.definition import ORIGINAL, ExperimentConfig, doubled, faults_together
from headroom.service.fields import ConfigName, ConfigPart

ENVIRONMENT_PREFIX = "HEADROOM_"

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
_ApiKeys = Annotated[
    tuple[ApiKey, ...], NoDecode, BeforeValidator(parse_api_keys), WithJsonSchema({"type": "string"})
]
ORIGIN_PATTERN = r"^(?i:https?://[^/\s*@?#]+)$"


def _as_sent(origin: str) -> str:
    """Return an origin that a browser could send. Raises ValueError.

    https://html.spec.whatwg.org, "serialization of an origin": without the scheme's own port, and the host in
    ASCII.
    """
    try:
        url = urlsplit(origin)
        port = url.port
    except ValueError:
        raise ValueError("has no such port; give one from 1 to 65535, or none") from None
    if not origin.isascii():
        raise ValueError("a browser sends the host in ASCII: write its xn--… form")
    if port == 0 or url.netloc.endswith(":"):
        raise ValueError("has no such port; give one from 1 to 65535, or none")
    if port == {"http": 80, "https": 443}[url.scheme]:
        raise ValueError(f"a browser leaves out :{port}, the port of {url.scheme}; leave it out, too")
    return origin


_Origin = Annotated[
    str,
    StringConstraints(strip_whitespace=True, to_lower=True, pattern=ORIGIN_PATTERN),
    AfterValidator(_as_sent),
]
_Origins = Annotated[
    tuple[_Origin, ...],
    NoDecode,
    BeforeValidator(lambda value: value.split(",") if isinstance(value, str) else value),
    WithJsonSchema({"type": "string"}),
]


CACHE_SCHEMES = ("redis://", "rediss://", "unix://")
"""The beginnings of a `score_cache`."""

LogFormat = Literal["text", "json"]
"""Form of what `headroom serve` reports."""


def variable_of(setting: str) -> str:
    """Return the environment variable of a setting."""
    return f"{ENVIRONMENT_PREFIX}{setting.upper()}"


REMOVED = {
    "score_store": "scores are kept in a Redis or Valkey server now; give its URL as score_cache",
    "score_store_mb": "give score_cache, and the server's own limit (maxmemory)",
    "body_timeout_s": "a body has 15 seconds to arrive; request_timeout_s limits the whole request",
    "max_held_bytes": "a replica holds 64 MB of bodies at once; max_body_bytes limits each",
    "score_store_warm": "give score_cache, and fill it with `headroom score --input FILE --cache URL`",
}
"""Settings that are gone, and what replaces them."""


class Settings(BaseSettings):
    """Settings that are fixed while the process runs; each is an environment variable `HEADROOM_<NAME>`.

    The HTTP contract gives the limits and their defaults. docs/settings.md is made from these strings.
    """

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX,
        frozen=True,
        extra="forbid",
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    model: str | None = Field(None, min_length=1)
    """Checkpoint directory or hub id (`name@revision`). Unset: the shipped model."""
    label_order: tuple[str, ...] | None = Field(None, min_length=2)
    """Names of the model's labels from least to most relevant. Unset: what its config.json or the names say;
    if neither does, `GET /v1/models` and the log say which label counts as best."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Device of the computation. `auto`: CUDA if there is any, else the CPU. `CUDA_VISIBLE_DEVICES` says
    which GPUs."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the weights. `auto`: bfloat16 if the device has it, else float32, or float16 on a GPU
    such as a T4."""
    mps: bool = True
    """Let replicas that share a GPU compute at once, through CUDA MPS, where `nvidia-cuda-mps-control` is
    installed; an error that one causes on the GPU then ends all of them. `false`: they take turns. For
    `headroom serve`."""
    deterministic: bool = False
    """Give a pair the same float32 score, bit by bit, alone and in any batch; slower, and on a CPU only."""
    score_cache_size: int = Field(0, ge=0)
    """Number of pairs, each under one mask, whose scores a replica keeps; 0: none. 1,000,000 take about 310
    MB."""
    score_cache: str | None = Field(None, repr=False)
    """Redis or Valkey server in which all replicas keep scores: `redis://`, `rediss://` or `unix://`; it
    needs the extra `redis`. Unset: none."""

    max_pairs: int = Field(1000, ge=1)
    """Maximum titles or pairs of one request."""
    max_compare_rows: int = Field(4096, ge=1)
    """Maximum rows that one request may have scored: the pairs times the columns of a `/v1/compare`, and the
    chunks of long titles (`overflow: chunks`)."""
    max_body_bytes: int = Field(4_000_000, ge=1)
    """Largest request body in bytes; more gets 413."""
    request_timeout_s: _Positive = 60.0
    """Seconds from a request to its answer; later, it gets 504."""

    max_batch_tokens: int | None = Field(None, ge=1)
    """Maximum tokens of one batch. Unset: 1,024 on a CPU, 16,384 on CUDA."""
    max_queue_tokens: int | None = Field(None, ge=1)
    """Number of queued tokens from which a replica answers 429. Unset: 64 full batches."""
    max_queue_s: _Positive = 1.0
    """Longest expected wait in seconds, at the measured token rate; longer gets 429."""
    drain_timeout_s: float = Field(30.0, ge=0, allow_inf_nan=False)
    """Seconds to answer accepted requests when `headroom serve` stops (on a Ray cluster:
    `graceful_shutdown_timeout_s` of the deployment)."""
    ray_timeout_s: _Positive = 60.0
    """Seconds that Ray may take to answer `headroom serve` or a replica."""

    database_url: str | None = Field(None, repr=False)
    """Experiments' database: `sqlite:////path/file.db` or `postgresql://user:password@host/name`. Unset: a
    SQLite file in `~/.local/state/headroom` (or in `$XDG_STATE_HOME`)."""
    service_name: ConfigName = "headroom"
    """Name of this service, needed with PostgreSQL. The experiments' database belongs to the service that
    first used it; one of another name is refused. Give staging and production names, and databases, of their
    own."""
    outcome_days: _Positive = 30.0
    """Days after an experiment's end that its interleaved lists, their clicks and its outcomes are kept."""
    api_keys: _ApiKeys = Field((), repr=False, exclude=True)
    """API keys: `KEY[;role=admin][;rate=50]`, comma-separated, or a list in the config file. `rate` is in
    pairs per second, on each replica. `sha256:HEX` may replace a key. Without keys, the service answers only
    at localhost; with an empty variable it does not start."""
    api_keys_file: Path | None = None
    """File of API keys in place of `api_keys` (an absolute path), one per line or comma-separated; lines that
    begin with # are comments. It is read again every 5 seconds; while it is wrong, the keys before stay."""

    cors_origins: _Origins = ()
    """Origins whose web pages may call the service and read its answers, such as `https://shop.example`:
    comma-separated, or a list in the config file. Unset: its own page alone."""

    access_log: Literal["off", "json"] = "off"
    """Write one line of JSON per request to standard output, without texts and keys. Health checks have
    none."""
    log_format: LogFormat = "text"
    """Form of what `headroom serve` and its replicas report: lines of text, or of JSON. On a Ray cluster,
    replicas always write JSON."""

    @model_validator(mode="before")
    @classmethod
    def _not_removed(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name, advice in REMOVED.items():
            if name in values or variable_of(name) in os.environ:
                raise ValueError(f"{name}: this setting is gone: {advice}")
        return values

    @field_validator("*", mode="before")
    @classmethod
    def _without_line_end(cls, value: object) -> object:
        """Drop blanks and line ends around a value, such as `echo` leaves in a Secret."""
        return value.strip() if isinstance(value, str) else value

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: object, info: ValidationInfo) -> object:
        kind = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)}:
            raise ValueError("should be a number")
        return value

    @field_validator("api_keys_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError(f"{value} is not an absolute path: replicas have another working directory")
        return value

    @field_validator("score_cache")
    @classmethod
    def _cache_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(CACHE_SCHEMES):
            raise ValueError(f"must begin with {', '.join(CACHE_SCHEMES[:-1])} or {CACHE_SCHEMES[-1]}")
        return value

    @field_validator("access_log", mode="before")
    @classmethod
    def _off(cls, value: object) -> object:
        return "off" if value is False else value  # how YAML reads an off without quotes

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        if self.api_keys and self.api_keys_file is not None:
            raise ValueError("api_keys_file: give it or api_keys, not both")
        return self

    @model_validator(mode="after")
    def _check_service_name(self) -> Self:
        if (self.database_url or "").startswith("postgres") and "service_name" not in self.model_fields_set:
            raise ValueError(
                "service_name: is missing, and a database server needs it: two services without a name would "
                "take one database for their own, and steer each other's experiments; give each its name, "
                "such as HEADROOM_SERVICE_NAME=production"
            )
        return self

    @model_validator(mode="after")
    def _check_number_format(self) -> Self:
        if self.deterministic and self.dtype not in ("auto", "float32"):
            raise ValueError(f"dtype: deterministic scores need float32 (or auto), not {self.dtype}")
        if self.deterministic and self.device == "cuda":
            raise ValueError(f"device: deterministic scores need cpu, not {self.device}")
        if self.dtype == "float16" and self.device == "cpu":
            raise ValueError("dtype: float16 needs a GPU; give auto, float32 or bfloat16")
        return self

    @property
    def needs_keys(self) -> bool:
        """Whether callers need an API key."""
        return bool(self.api_keys) or self.api_keys_file is not None

    @cached_property
    def max_json_parts(self) -> int:
        """The most values and keys of a body: enough for `max_pairs` documents of 60 fields.

        Unbounded, a million empty arrays would cost seconds of garbage collection on the event loop, 350,000
        keys half a second of looking for duplicates, and two million numbers in place of texts nine seconds
        of validation.
        """
        return max(100_000, 128 * self.max_pairs)

    def batch_tokens(self, device_type: str) -> int:
        """Return the token budget of one batch on this type of device (`cpu`, `cuda`)."""
        return self.max_batch_tokens or (16_384 if device_type == "cuda" else 1_024)

    def request_tokens(self, window: int) -> int:
        """Return the maximum tokens of one request, for a model that reads `window` tokens of a pair."""
        return max(self.max_pairs, self.max_compare_rows) * window

    def queue_tokens(self, device_type: str) -> int:
        """Return the number of queued tokens from which a request gets 429."""
        return self.max_queue_tokens or 64 * self.batch_tokens(device_type)


EXPERIMENTS_WAIT = "experiments_wait"
"""Key of a `user_config` whose new experiments do not start yet, because not every replica has it."""


FAULTS = "faults"
"""Key under which pydantic's context, if there is one, gets a list of how the parts of a LiveConfig do not
fit together. Without a context, the first such fault is raised."""

OnFailure = Literal["error", "original_order"]
"""What a request gets that cannot be scored: an error, or its titles in the order in which they came."""


class LiveConfig(ConfigPart):
    """Settings that may change while the service runs; Ray Serve's `user_config`."""

    # Validation here needs no model; `resolve_masks` checks the masks against one.

    masks: dict[ConfigName, MaskForm] = Field(default_factory=dict)
    """Masks by name, for `@name` in requests and variants; these may switch units off."""
    variants: tuple[VariantConfig, ...] = Field(
        (VariantConfig(name="full"),), min_length=1, max_length=64, strict=False
    )
    """Servables."""
    default: ConfigName | None = None
    """The variant of requests that name none. Unset: the first."""
    degrade: DegradeConfig | None = None
    """The variant that answers in place of the default while the queue is long."""
    on_failure: OnFailure = "error"
    """Default answer to a request that cannot be scored: an `error`, or its titles in their original order
    (`original_order`). A request's own field overrides it."""
    experiments: tuple[ExperimentConfig, ...] = Field((), max_length=64, strict=False)
    """A/B tests of variants."""
    digests: dict[str, Digest] = Field(default_factory=dict)
    """SHA-256 of each checkpoint's files by its path (`''`: the service's own), as `python -m
    headroom.models.checkpoint.files DIRECTORY` prints it. `headroom serve` fills it in for directories; a
    replica refuses files with another content."""

    @model_validator(mode="after")
    def _parts_fit(self, info: ValidationInfo) -> Self:
        faults = list(self._faults())
        if info.context is not None:
            info.context[FAULTS] = faults
        elif faults:
            raise ValueError(faults[0])
        return self

    def _faults(self) -> Iterator[str]:
        """Yield a sentence for each part that does not fit the others."""
        yield from doubled("variants", [variant.name for variant in self.variants])
        names = [*(variant.name for variant in self.variants), ORIGINAL]
        if self.default is not None and self.default not in names:
            yield f"default: there is no variant {self.default!r}; there are {', '.join(names)}"
        yield from faults_of_cascades({variant.name: variant for variant in self.variants})
        yield from faults_together(self.experiments, names)
        if (fault := fault_of_degrade(self.degrade, self.default_variant, names)) is not None:
            yield fault

    @property
    def default_variant(self) -> str:
        return self.default or self.variants[0].name

    @property
    def default_network(self) -> str:
        """The variant of requests that name none and need a network: the first, if the default has none."""
        return self.variants[0].name if self.default == ORIGINAL else self.default_variant

    def check_limits(self, max_queue_tokens: int) -> None:
        """Raise InvalidConfig if `degrade` would begin where requests are refused already."""
        if self.degrade is not None and self.degrade.above_queue_tokens >= max_queue_tokens:
            raise InvalidConfig(
                f"degrade.above_queue_tokens: {self.degrade.above_queue_tokens} is not below "
                f"max_queue_tokens, {max_queue_tokens}, from which requests are refused; "
                f"give 1 to {max_queue_tokens - 1}"
            )

    @cached_property
    def version(self) -> str:
        """12 hex digits that change with the content: the start of the canonical JSON's SHA-256."""
        canonical = orjson.dumps(self.model_dump(mode="json"), option=orjson.OPT_SORT_KEYS)
        return hashlib.sha256(canonical).hexdigest()[:12]


class InvalidConfig(ValueError):
    """A config that cannot be served; the message says where and why."""
