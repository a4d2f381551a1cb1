"""Draws people's questions with names that may answer them, for networks that learn from a model's answers.

The questions are WebQuestions' (Berant et al. 2013, CC BY 4.0). Queries made of a title's own words ask for
nothing that goes by another name, and a smaller network forgets that first
(docs/decisions/020-students.md).
"""

import json
import random
import re
from collections import defaultdict
from pathlib import Path

from default_model.groups import COMMON, TRAINING_FOLDS, Group, ranked_example
from default_model.mixture import read_judged

FILES = ("trainmodel.json", "val.json")
"""Files of `main/` in brmson/dataset-factoid-webquestions. `test.json` is for `default_model.agreement`."""

OWN = 2
"""The most answers in a group."""

NEAR_OF_WORD = 4
NEAR = 3
"""The most names that share a word with the question: drawn for each word, and in a group."""

NAMES = 6
"""Names in a group, or a few less."""

_WORD = re.compile(r"[a-z0-9]+")


class AskedNames:
    """Questions, their answers, and the names that other questions have for answers or DBpedia has."""

    def __init__(self, data: Path, webquestions: Path) -> None:
        """data: the directory of the training data. webquestions: that of FILES."""
        rows = [row for name in FILES for row in json.loads((webquestions / name).read_text("utf-8"))]
        self._answers = {row["qText"]: row["answers"] for row in rows}
        self._questions = sorted(self._answers)
        names = {row.title for row in read_judged(data, TRAINING_FOLDS) if row.family == "dbpedia"}
        names.update(answer for answers in self._answers.values() for answer in answers)
        self._names = sorted(names)
        self._with_word = defaultdict[str, list[str]](list)
        for name in self._names:
            for word in words_of(name):
                self._with_word[word].append(name)

    def group(self, rng: random.Random) -> Group:
        """Draw a question; return it with answers, names that share a word with it, and others.

        Their grades say no more than which are answers.
        """
        question = rng.choice(self._questions)
        answers = self._answers[question]
        names = rng.sample(answers, min(OWN, len(answers)))
        near = list[str]()
        for word in sorted(words_of(question)):
            holders = self._with_word.get(word, [])
            near += rng.sample(holders, min(NEAR_OF_WORD, len(holders)))
        names += rng.sample(near, min(NEAR, len(near)))
        names += rng.sample(self._names, NAMES - len(names))
        return [
            ranked_example(question, name, 4.0 if name in answers else 0.0) for name in dict.fromkeys(names)
        ]


def words_of(text: str) -> set[str]:
    """Return the words of an English text but the commonest, lower case."""
    return set(_WORD.findall(text.lower())) - COMMON
