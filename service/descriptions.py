"""Descriptions of the fields of answers in the OpenAPI document."""

import ast
import dataclasses
import inspect
import re
from itertools import pairwise
from typing import Annotated, TypeVar

from pydantic import Field

T = TypeVar("T")


def documented(answer: type[T]) -> type[T]:
    """Describe each field of a dataclass by the string below it. A line that the source wraps becomes one.

    Pydantic can do the same, but not for the fields of a parent class, and it would read the source again
    for every app.
    """
    (definition,) = ast.parse(inspect.getsource(answer)).body
    assert isinstance(definition, ast.ClassDef)
    fields = {field.name: field for field in dataclasses.fields(answer)}  # type: ignore[arg-type]
    for statement, text in pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Expr):
            field = fields[ast.unparse(statement.target)]
            description = re.sub(r"\n +", " ", ast.literal_eval(text.value))
            field.type = Annotated[field.type, Field(description=description)]
    return answer
