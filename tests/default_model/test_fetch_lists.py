"""Lists made from public files: what people said stays, and no bad title is one of their good ones."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from default_model.drawers import LISTS, SENTENCES
from default_model.fetch import PUBLIC
from default_model.fetch_lists import MAKERS, Row, make_lists
from default_model.recipes import RECIPES

pytestmark = pytest.mark.more

TOPICS = 2
MEANINGS = 3


def write_raw(root: Path) -> Path:
    """A few rows of every set, in the sets' own formats."""
    for name in MAKERS:
        (root / name).mkdir(parents=True)
    phrases = [
        "책상 조명 켜 줄래\t책상 조명 켜기\t4",
        "거실 조명 켜 줄래\t거실 조명 켜기\t4",
        "몇 도니\t기온\t2",
    ]
    (root / "sae4k" / "sae4k_v1.txt").write_text("\ufeff" + "\n".join(phrases) + "\n", encoding="utf-8")
    wordings = [
        f"{topic}\t주제 {topic} 뜻 {meaning} 말 {wording}"
        for topic in range(TOPICS)
        for meaning in range(MEANINGS)
        for wording in range(10)
    ]
    for name in ("train", "dev", "test"):
        rows = wordings if name == "train" else []
        (root / "stylekqc" / f"{name}.tsv").write_text("\n".join(["topic\tsentence", *rows]) + "\n")
    raters = 'sentence1,sentence2,label\n비가 온다,"비, 온다",4.7\n비가 온다,해가 뜬다,0.3\n'
    (root / "klue_sts_train" / "klue_sts_train.csv").write_text(raters)
    _write_shop(root / "openbg_slice")
    pages = [{"title": f"网页{n}", "is_selected": n == 1} for n in range(3)]
    other = {"question": "天气", "documents": [{"title": f"天气{n}", "is_selected": False} for n in range(2)]}
    _write_lines(root / "dureader_demo" / "search.train.json", [{"question": "网页", "documents": pages}])
    _write_lines(root / "dureader_demo" / "search.dev.json", [other])
    _write_words(root)
    return root


def _write_shop(folder: Path) -> None:
    names = [
        ("家电", "电视", "4K电视"),
        ("家电", "冰箱", "双门冰箱"),
        ("家电", "风扇", "静音扇"),
        ("服饰", "袜子", "棉袜"),
    ]
    rows = [
        {"sentences": f"{title}\t颜色#:#白", "labels": {"coarse": [coarse], "fine": [fine]}}
        for coarse, fine, title in names
    ]
    _write_lines(folder / "item_fine_classify.json", rows[:2])
    _write_lines(folder / "item_coarse_classify.json", rows[2:])
    pairs = [
        {
            "sentences": f"Item 1: 白  风扇, 颜色#:#白,\nItem 2: {title}, 颜色#:#黑",
            "labels": {"en": [label], "zh": [""]},
        }
        for title, label in (("风扇 白色, 大", "same"), ("黑 风扇", "not same"))
    ]
    _write_lines(folder / "item_align.json", pairs)


def _write_words(root: Path) -> None:
    shops = {
        "shop/bakery": ("Bakery", ["bread"]),
        "shop/florist": ("Florist", ["flowers"]),
        "bench": ("Bench", []),
    }
    signs = {"🍞": ("bread", ["loaf", "toast"]), "🥖": ("baguette", ["loaf"]), "🔑": ("key", ["lock"])}
    for language, file in (("en", "en"), ("ko", "ko"), ("zh", "zh-CN")):
        presets = {
            key: {"name": f"{name} {language}", "terms": terms} for key, (name, terms) in shops.items()
        }
        content: dict[str, Any] = {language: {"presets": {"presets": presets}}}
        (root / "osm_presets" / f"{file}.json").write_text(json.dumps(content))
        rows = {
            sign: {"default": words, "tts": [f"{name} {language}"]} for sign, (name, words) in signs.items()
        }
        content = {"annotations": {"annotations": rows}}
        (root / "cldr_annotations" / f"{language}.json").write_text(json.dumps(content))


def _write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_raw(tmp_path)


def rows_of(name: str, raw: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in make_lists(name, raw / name).decode().splitlines()]


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_a_pair_has_one_grade_and_the_same_files_make_the_same_lists(raw: Path, name: str) -> None:
    rows = rows_of(name, raw)
    assert rows == rows_of(name, raw)
    assert {row.grade for row in rows} <= {0, 1, 2, 3, 4}
    by_pair = sorted((row.query, row.title, row.lang) for row in rows if row.grade >= 3)
    assert len(by_pair) == len(set(by_pair))
    bad = {(row.query, row.title, row.lang) for row in rows if row.grade < 3}
    assert name in ("osm_presets", "cldr_annotations") or not bad & set(by_pair)


def test_every_set_that_is_fetched_can_be_made_and_every_recipes_source_is_known() -> None:
    listed = [row["set"] for row in yaml.safe_load(PUBLIC.read_text(encoding="utf-8"))["lists"]]
    assert sorted(listed) == sorted(MAKERS)
    directories = {**LISTS, **SENTENCES}
    for recipe in ("written", "everything", "longer"):
        drawn = {directories[name] for name in RECIPES[recipe].shares if name in directories}
        assert drawn <= set(listed)
