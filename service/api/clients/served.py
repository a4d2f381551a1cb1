"""Finds what a name in another server's shape means here: a checkpoint, a variant, or `NAME@VARIANT`."""

from __future__ import annotations

from typing import NamedTuple

from service.api.backend import Backend
from service.errors import NotFound
from service.schemas.listings import VariantInfo
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
    variant, by_its_name = _variant(backend, name)
    return Served(variant.model, variant.name if by_its_name or not variant.default else None)


def grades(backend: Backend, name: str) -> list[str]:
    """Return the grades of what a name means, least relevant first; none for a one-label model.

    Raises NotFound.
    """
    variant, _ = _variant(backend, name)
    return backend.model_of(variant.name).grades or []


def _variant(backend: Backend, name: str) -> tuple[VariantInfo, bool]:
    """Return the variant that a name means, and whether the name is the variant's own."""
    variants = backend.variants().variants
    for variant in variants:
        if name in (variant.name, f"{variant.model}@{variant.name}"):
            return variant, True
    of_model = sorted((v for v in variants if v.model == name), key=lambda variant: not variant.default)
    if not of_model:
        known = ", ".join(f"{variant.model}@{variant.name}" for variant in variants)
        raise NotFound(f"There is no model {shown(name)!r}; there are {known}.")
    return of_model[0], False
