"""Names Python's arguments in errors that name options of the command line."""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from headroom.models.errors import ModelError

P = ParamSpec("P")
T = TypeVar("T")

_OPTION = re.compile(r"(?<![^\s(])--([a-z]+(?:-[a-z]+)*)")

COLUMNS = {"query_column": "query", "title_column": "title", "grade_column": "grade"}
"""Arguments that have other names than their options."""


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
