"""The five grades of the shipped model, and pairs to learn from."""

from dataclasses import dataclass

GRADES = ("irrelevant", "related", "partial", "close", "exact")

Target = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A pair to learn from. target: a distribution over the grades. weight: of its loss."""

    query: str
    title: str
    target: Target
    weight: float = 1.0


def graded_target(grade: float, *, smoothing: float = 0.06, grades: int = len(GRADES)) -> Target:
    """Return a grade between 0 and grades - 1 as a distribution over the grades.

    A whole grade gets all the mass and 2.25 gets three quarters on 2 and one on 3; then `smoothing` of the
    mass moves to the neighbours, so that a near miss costs less than a far one.
    """
    last = grades - 1
    exact = [max(0.0, 1.0 - abs(grade - at)) for at in range(grades)]
    mass = [(1.0 - smoothing) * share for share in exact]
    for at, share in enumerate(exact):
        below, above = max(at - 1, 0), min(at + 1, last)
        mass[below] += smoothing / 2 * share
        mass[above] += smoothing / 2 * share
    return tuple(mass)
