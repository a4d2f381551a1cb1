"""Reads the lists of what two titles that read alike may differ in: data/differences.yaml."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from default_model.attributes import ATTRIBUTES, LANGUAGES, Forms, axis_values

DIFFERENCES = Path(__file__).resolve().parents[1] / "data" / "differences.yaml"

Axis = Sequence[Forms]
"""Values that contradict each other, each with its forms. A form that begins with "-" follows the noun."""


@dataclass(frozen=True, slots=True)
class Differences:
    """What data/differences.yaml holds in one language.

    axes: with those of data/attributes.yaml that have no numbers. same: forms of one thing. kinds: things
    that are alike and meet different needs. before, after: what shops put around a kind's name. homonyms:
    a query, a title that is meant, and one that only shares the word.
    """

    axes: Sequence[Axis]
    same: Sequence[Forms]
    kinds: Sequence[Sequence[str]]
    before: Sequence[str]
    after: Sequence[str]
    homonyms: Sequence[tuple[str, str, str]]


@cache
def read_differences(language: str) -> Differences:
    """Return the lists in one language."""
    raw = yaml.safe_load(DIFFERENCES.read_text(encoding="utf-8"))
    attributes = yaml.safe_load(ATTRIBUTES.read_text(encoding="utf-8"))
    index = LANGUAGES.index(language)
    axes = [*raw["axes"].values(), *(axis for axis in attributes["axes"].values() if isinstance(axis, list))]
    return Differences(
        axes=[axis_values(axis, index) for axis in axes],
        same=axis_values(raw["same"], index),
        kinds=[_texts(kinds, index) for kinds in raw["kinds"]],
        before=_texts(raw["titles"]["before"], index),
        after=_texts(raw["titles"]["after"], index),
        homonyms=[(str(query), str(meant), str(other)) for query, meant, other in raw["homonyms"][language]],
    )


def _texts(texts: Sequence[str], index: int) -> list[str]:
    return [text.split("|")[index] if text else "" for text in texts]


def written(form: str, noun: str, separator: str = " ") -> str:
    """Return a noun with a form of an attribute before it, or behind it if the form begins with "-"."""
    if form.startswith("-"):
        return f"{noun} {form[1:].strip()}"
    return f"{form}{separator}{noun}"


def pattern_of(form: str, language: str) -> re.Pattern[str]:
    """Return a pattern that finds a form in a title: whole words in English."""
    text = re.escape(form.removeprefix("-"))
    if language == "en":
        text = rf"(?<![\w'-]){text}(?![\w'])"
    elif form.removeprefix("-").isascii():
        text = rf"(?<![A-Za-z0-9]){text}(?![A-Za-z0-9])"
    return re.compile(text, re.IGNORECASE)


UNITS: Mapping[str, Sequence[Sequence[str]]] = {
    "en": (
        ("inch", "inches", "in", '"'),
        ("ft", "feet", "foot"),
        ("oz", "ounce", "ounces", "fl oz"),
        ("gb",),
        ("tb",),
        ("lb", "lbs", "pound", "pounds"),
        ("pack", "pk", "count", "ct", "pcs", "pieces"),
        ("v", "volt", "volts"),
        ("w", "watt", "watts"),
        ("mm",),
        ("cm",),
        ("ml",),
        ("kg",),
        ("qt", "quart"),
        ("gallon", "gal", "gallons"),
        ("mah",),
        ("mg",),
        ("g", "gram", "grams"),
        ("hz",),
        ("dpi",),
        ("amp", "a"),
        ("person",),
        ("year", "years"),
        ("ppm",),
    ),
    "ko": (
        ("인치", "형"),
        ("ml", "미리"),
        ("L", "리터"),
        ("kg", "킬로"),
        ("g", "그램"),
        ("cm", "센치"),
        ("m", "미터"),
        ("개입", "개", "팩"),
        ("매", "장"),
        ("인용",),
        ("W", "와트"),
        ("mAh",),
        ("GB", "기가"),
        ("TB", "테라"),
        ("단",),
        ("호",),
        ("구",),
        ("포",),
        ("정",),
        ("mm",),
        ("V", "볼트"),
    ),
    "zh": (
        ("寸", "英寸"),
        ("ml", "毫升"),
        ("L", "升"),
        ("kg", "公斤", "千克"),
        ("g", "克"),
        ("cm", "厘米"),
        ("m", "米"),
        ("斤",),
        ("瓶", "瓶装"),
        ("袋", "袋装"),
        ("片", "片装"),
        ("包", "包装"),
        ("支", "支装"),
        ("只", "只装"),
        ("个", "个装"),
        ("W", "瓦"),
        ("mAh", "毫安"),
        ("GB",),
        ("TB",),
        ("V", "伏"),
        ("粒", "粒装"),
        ("罐", "罐装"),
        ("人",),
        ("码",),
        ("岁",),
        ("层",),
        ("度",),
    ),
}
"""Units of numbers in titles, each with the ways to write it."""


METRIC = (
    ("cm", "mm", 10),
    ("m", "cm", 100),
    ("kg", "g", 1000),
    ("g", "kg", 0.001),
    ("L", "ml", 1000),
    ("ml", "L", 0.001),
    ("TB", "GB", 1000),
)
CONVERSIONS: Mapping[str, Sequence[tuple[str, str, float]]] = {
    "en": (
        ("inch", "cm", 2.54),
        ("cm", "inch", 0.3937),
        ("cm", "mm", 10),
        ("mm", "cm", 0.1),
        ("ft", "inch", 12),
        ("lb", "oz", 16),
        ("lb", "kg", 0.4536),
        ("kg", "g", 1000),
        ("kg", "lb", 2.2046),
        ("oz", "ml", 29.57),
        ("gallon", "qt", 4),
        ("tb", "GB", 1000),
    ),
    "ko": (*METRIC, ("mm", "cm", 0.1), ("인치", "cm", 2.54)),
    "zh": (*METRIC, ("寸", "cm", 2.54), ("kg", "斤", 2), ("斤", "kg", 0.5), ("斤", "g", 500)),
}
"""Units, by the first way to write them, with others for the same amount and how many of these make one."""


def converted(number: str, unit: str, language: str) -> list[str]:
    """Return the same amount in other units. unit: the first way to write it."""
    amounts = []
    for from_unit, to_unit, factor in CONVERSIONS[language]:
        value = float(number) * factor
        if from_unit == unit and 0.1 <= value < 10_000:
            amounts.append(f"{value:.4g}{to_unit}" if value < 10 else f"{round(value, 1):g}{to_unit}")
    return amounts


def unit_patterns(language: str) -> list[tuple[re.Pattern[str], Sequence[str]]]:
    """Return a pattern per unit that finds a number with it, and the unit's forms."""
    end = r"(?![\w])" if language == "en" else r"(?![A-Za-z0-9])"
    found = []
    for forms in UNITS[language]:
        names = "|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True))
        pattern = rf"(?<![\w.,/*×xX-])(\d{{1,5}}(?:\.\d)?)[ -]?({names}){end}"
        found.append((re.compile(pattern, re.IGNORECASE), forms))
    return found


def other_numbers(number: str) -> list[str]:
    """Return numbers that a title may have instead, near and far."""
    if "." in number:
        value = float(number)
        return [f"{other:.1f}" for other in (value + 0.5, value + 1, value * 2)]
    whole = int(number)
    others = {2 * whole, whole + 2, max(whole // 2, 1), whole + 10 if whole > 20 else whole + 1, whole * 3}
    return [str(other) for other in sorted(others - {whole})]


def other_model(model: str, step: int) -> str:
    """Return a model number with another digit: the first of its longest number, or its last one.

    step: what is added to the digit, modulo 10, at least 1; an odd one changes the first digit.
    """
    longest = max(re.findall(r"\d+", model), key=len)
    last = max(index for index, sign in enumerate(model) if sign.isdigit())
    index = model.rfind(longest) if step % 2 else last
    digit = (int(model[index]) + step) % 10
    return f"{model[:index]}{digit}{model[index + 1 :]}"


def text_of(form: str) -> str:
    """Return a form as it stands in a text."""
    return form.removeprefix("-").strip()
