"""Collects everything that a recipe may draw its groups from, under the names that a recipe's shares use."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer

from default_model.attributes import LANGUAGES, NEGATIONS, AttributeLists
from default_model.changed_lists import WITHOUT, NegatedTitles, StuffedLists
from default_model.changed_titles import BEST, ChangedTitles, ShortTitles
from default_model.checks import FIRST, KINDS, read_contradictions, read_quadruples
from default_model.contradictions import ContradictedTitles, Fitting, OneWordApart
from default_model.groups import TRAINING_FOLDS
from default_model.mixture import BEGINNING, Drawer, Row, Sources, read_sources
from default_model.multilingual import (
    GradedLists,
    ListedPair,
    PairList,
    PiecedTitles,
    SentencePairs,
    read_lists,
    words_of,
)
from default_model.tuning import JUDGED_SHARES
from default_model.written_contradictions import WrittenContradictions
from default_model.written_lists import BrandLists, ShopLists, read_shop_lists
from default_model.yardstick import read_short_lists
from headroom.models.quality.lexical import TOKEN

LISTS = {
    "openbg": "openbg_slice",
    "dureader": "dureader_demo",
    "sae4k": "sae4k",
    "stylekqc": "stylekqc",
    "osm": "osm_presets",
    "cldr": "cldr_annotations",
}
SENTENCES = {"klue": "klue_sts_train"}
"""The kinds of groups that are drawn from data/multilingual, and their directories."""

CHINESE_TITLES = ("openbg", "dureader")
SHOPS = ("esci", "chorus")


def all_sources(data: Path, without: Collection[str], tokenizer: Tokenizer) -> Sources:
    """Read everything that a recipe may draw from.

    without: sources that take no part, not by their titles either.
    """
    shares = {name: share for name, share in JUDGED_SHARES.items() if name not in without}
    sources = read_sources(data, shares)
    lists = {
        name: read_lists(data, directory, TRAINING_FOLDS)
        for name, directory in {**LISTS, **SENTENCES}.items()
        if name not in without
    }
    drawers: dict[str, Drawer] = {
        name: (SentencePairs if name in SENTENCES else GradedLists)(own).group for name, own in lists.items()
    }
    judged = [rows for name in SHOPS if name in shares for rows in sources.judged[name]]
    openbg = [pair for pairs in lists.get("openbg", ()) for pair in pairs]
    drawers |= contradiction_drawers(sources, openbg)
    drawers |= title_drawers(sources.catalogue, judged, lists, partial(words_of, tokenizer=tokenizer))
    for language in LANGUAGES:
        drawers |= written_drawers(language)
    return replace(sources, drawers=drawers)


def written_drawers(language: str) -> dict[str, Drawer]:
    """Return the drawers of the lists that were written for headroom, in one language."""
    measured = measured_texts()
    titles = [title for one in read_short_lists() for title in one.titles]
    shops = ShopLists(language, without=measured)
    varied = partial(AttributeLists, language, without=measured)
    return {
        f"attributes_{language}": varied().group,
        f"negations_{language}": varied(axes=NEGATIONS).group,
        f"graded_attributes_{language}": varied(taught=True).group,
        f"graded_negations_{language}": varied(axes=NEGATIONS, taught=True).group,
        f"shops_{language}": shops.group,
        f"stuffed_{language}": StuffedLists(shops.group, language).group,
        f"without_{language}": ShopLists(language, WITHOUT[language], without=measured).group,
        f"brands_{language}": BrandLists(language, without=titles).group,
        f"graded_shops_{language}": ShopLists(language, without=measured, taught=True).group,
        f"graded_brands_{language}": BrandLists(language, without=titles, taught=True).group,
    }


def title_drawers(
    catalogue: Mapping[str, Sequence[Row]],
    judged: Sequence[PairList],
    lists: Mapping[str, Sequence[PairList]],
    split_chinese: Callable[[str], list[str]],
) -> dict[str, Drawer]:
    """Return the drawers that make queries and lists of real titles.

    judged: the English shops' lists. lists: those of data/multilingual, by name.
    """
    korean = catalogue_titles(catalogue, "ko")
    chinese = catalogue_titles(catalogue, "zh")
    negated = partial(NegatedTitles, without=measured_texts())
    shop_titles = [*chinese, *titles_of(lists.get("openbg", ()))]
    for name in CHINESE_TITLES:
        chinese += titles_of(lists.get(name, ()))
    drawers: dict[str, Drawer] = {
        "titled_ko": PiecedTitles(korean, str.split).group,
        "titled_zh": PiecedTitles(chinese, split_chinese).group,
        "changed_en": ChangedTitles(titles_of(judged), "en", first_words).group,
        "changed_zh": ChangedTitles(chinese, "zh", split_chinese).group,
        "short_en": ShortTitles(judged, first_words).group,
        "negated_en": negated(titles_of(judged), "en", first_words).group,
        "negated_ko": negated([*korean, *written_titles("ko")], "ko", str.split).group,
        "negated_zh": negated(shop_titles, "zh", split_chinese).group,
    }
    if "openbg" in lists:
        drawers["short_zh"] = ShortTitles(lists["openbg"], split_chinese).group
    return drawers


def contradiction_drawers(sources: Sources, openbg: Sequence[ListedPair]) -> dict[str, Drawer]:
    """Return the drawers of lists in which one title contradicts the query, in the three languages."""
    left_out = measured_texts()
    judged = [rows for name in SHOPS if name in sources.judged_shares for rows in sources.judged[name]]
    english = [Fitting([row.query], row.title) for rows in judged for row in rows if row.grade == BEST]
    english += fitting_things(sources.catalogue["en"])
    korean = fitting_things(sources.catalogue["ko"]) + fitting_shop_titles("ko")
    chinese = fitting_things(sources.catalogue["zh"]) + fitting_shop_titles("zh")
    chinese += [
        Fitting(pair.query.split(), pair.title)
        for pair in openbg
        if pair.grade == BEST and isinstance(pair, ListedPair) and pair.source == "openbg_category"
    ]
    drawers: dict[str, Drawer] = {}
    for language, pairs in (("en", english), ("ko", korean), ("zh", chinese)):
        real = ContradictedTitles(pairs, language, without=left_out)
        drawers[f"contradicted_{language}"] = real.group
        drawers[f"differing_{language}"] = WrittenContradictions(language, without=left_out).group
    titles = [row.title for rows in judged for row in rows] + [pair.title for pair in english]
    apart = OneWordApart(titles, first_words, without=left_out)
    if len(apart):
        drawers["apart_en"] = apart.group
    return drawers


def fitting_things(things: Sequence[Row]) -> list[Fitting]:
    """Return the titles of the catalogue's things with the names that they are asked for by."""
    return [Fitting(thing["names"], title) for thing in things for title in thing["titles"]]


def fitting_shop_titles(language: str) -> list[Fitting]:
    """Return the best titles of the written shop lists with their queries."""
    rows = [row for row in read_shop_lists() if row["language"] == language]
    return [
        Fitting(row["queries"].split("/"), row[column]) for row in rows for column in ("exact", "other_name")
    ]


def measured_texts() -> list[str]:
    """Return the queries and titles of the hand-written questions, which nothing is trained on."""
    texts = [text for one in read_short_lists() for text in (one.query, *one.titles)]
    texts += [text for row in read_contradictions() for text in (row.query, row.fits, row.contradicts)]
    rows = [row for name in FIRST for row in read_quadruples(name)]
    return texts + [row[column] for row in rows for column in ("query", *KINDS)]


def catalogue_titles(catalogue: Mapping[str, Sequence[Row]], language: str) -> list[str]:
    """Return the titles of the catalogue's things."""
    return [title for row in catalogue[language] for title in row["titles"]]


def written_titles(language: str) -> list[str]:
    """Return the titles of the shop lists that are what was asked for, or nearly."""
    rows = [row for row in read_shop_lists() if row["language"] == language]
    return [row[column] for row in rows for column in ("exact", "other_name", "variant")]


def titles_of(lists: Iterable[PairList]) -> list[str]:
    """Return the titles of all pairs."""
    return [pair.title for pairs in lists for pair in pairs]


def first_words(title: str) -> list[str]:
    """Return the first words of an English title, lower case: the later ones say less."""
    return TOKEN.findall(title.lower())[:BEGINNING]
