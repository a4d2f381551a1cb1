"""The arguments of Python's functions and of commands: their valid values, and their names in errors."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import ParamSpec, TypeVar

from headroom.models.errors import ModelError

P = ParamSpec("P")
T = TypeVar("T")

_OPTION = re.compile(r"(?<![^\s(])--([a-z]+(?:-[a-z]+)*)")

COLUMNS = {"query_column": "query", "title_column": "title", "grade_column": "grade"}
"""Arguments that have other names than their options."""

MARGINS = (0.001, 0.5)
"""The range of a margin: the fall of a metric that is accepted."""

SPEEDUPS = (1.05, 20.0)
"""The range of how many times as fast a network is to be."""

SEEDS = (3, 20)
"""The range of how many starts of each kind are trained: fewer say little about the spread between them."""

STEPS = (1, 100_000)
"""The range of the steps of each of these trainings."""

MIN_MINUTES = 0.01
"""The lowest number of minutes of a student's training."""


def check_range(
    name: str,
    value: float | None,
    lowest: float,
    highest: float | None = None,
    *,
    whole: bool = False,
) -> None:
    """Raise ModelError if an argument is outside its range, both ends included; None is the default's.

    highest: None for no limit. whole: only whole numbers are valid.
    """
    if value is None:
        return
    limits = f"{lowest:g} or more" if highest is None else f"{lowest:g} to {highest:,g}"
    is_number = isinstance(value, Integral if whole else Real)
    if not is_number or not lowest <= value <= (float("inf") if highest is None else highest):
        what = "whole numbers" if whole else "range"
        raise ModelError(f"{name}: {value} is outside the valid {what}, {limits}")


def errors_name_arguments(**others: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator of a function that a command calls too, or whose work a command does.

    Its ModelErrors name its arguments, `layers`, in place of the command's options, `--layers`. others: the
    arguments of options that have another name (with underscores); an option without an argument stays.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        """Return a function that does the same; its ModelErrors name its arguments."""
        names = {name: name for name in inspect.signature(function).parameters} | COLUMNS | others

        @functools.wraps(function)
        def call(*args: P.args, **keywords: P.kwargs) -> T:
            try:
                return function(*args, **keywords)
            except ModelError as error:
                error.args = (_with_arguments(str(error), names),)
                raise

        return call

    return decorate


def _with_arguments(message: str, names: Mapping[str, str]) -> str:
    """Return a message with the names of arguments in place of those of options, by which `names` has
    them."""

    def argument(option: re.Match[str]) -> str:
        return names.get(option[1].replace("-", "_"), option[0])

    return _OPTION.sub(argument, message)
