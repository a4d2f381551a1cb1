"""The `headroom` program as a fixture."""

from tests.prompt import run as run
