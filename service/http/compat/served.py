"""Finds what a name in another server's shape means here: a checkpoint, a variant, or `NAME@VARIANT`."""

from __future__ import annotations

from typing import NamedTuple

from service.errors import NotFound
from service.http.backend import Backend
from service.schemas.requests import shown


class Served(NamedTuple):
    """A model as other servers know it.

    model: the checkpoint's name. variant: as requests name it; None if the default or an experiment decides.
    """

    model: str
    variant: str | None


def served(backend: Backend, name: str) -> Served:
    """Return what a name means. Raises NotFound.

    A checkpoint's name alone is its first variant, or, if the default variant runs it, what requests without
    a variant get.
    """
    variants = backend.variants().variants
    for variant in variants:
        if name in (variant.name, f"{variant.model}@{variant.name}"):
            return Served(variant.model, variant.name)
    of_model = sorted((v for v in variants if v.model == name), key=lambda variant: not variant.default)
    if not of_model:
        known = ", ".join(f"{variant.model}@{variant.name}" for variant in variants)
        raise NotFound(f"There is no model {shown(name)!r}; there are {known}.")
    first = of_model[0]
    return Served(first.model, None if first.default else first.name)


def grades(backend: Backend, model: str) -> list[str]:
    """Return the names of a checkpoint's grades, least relevant first; none for a one-label model."""
    return next(info.grades for info in backend.models().models if info.name == model) or []
