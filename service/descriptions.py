"""Descriptions of the fields of answers in the OpenAPI document, from the strings below them.

Pydantic reads those of requests and of the config in the same way (`use_attribute_docstrings`).
"""

import ast
import dataclasses
import inspect
from itertools import pairwise
from typing import Annotated, TypeVar

from pydantic import Field

T = TypeVar("T")


def documented(answer: type[T]) -> type[T]:
    """Describe each field of a dataclass or TypedDict by the string below it.

    Pydantic can do the same, but not for the fields of a parent class, and it would read the source again
    for every app.
    """
    (definition,) = ast.parse(inspect.getsource(answer)).body
    assert isinstance(definition, ast.ClassDef)
    fields = (
        {each.name: each for each in dataclasses.fields(answer)} if dataclasses.is_dataclass(answer) else {}
    )
    for statement, text in pairwise(definition.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(text, ast.Expr):
            name = ast.unparse(statement.target)
            description = Field(description=inspect.cleandoc(ast.literal_eval(text.value)))
            if name in fields:
                fields[name].type = Annotated[fields[name].type, description]
            else:
                answer.__annotations__[name] = Annotated[answer.__annotations__[name], description]
    return answer
