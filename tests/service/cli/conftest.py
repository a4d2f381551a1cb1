"""The `headroom` program as a fixture, and the options that name a small network."""

from tests.prompt import options as options
from tests.prompt import run as run
from tests.prompt import score as score
