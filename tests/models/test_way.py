"""The way of a pair through the code stays short enough to read in one sitting."""

from pathlib import Path

from models import Classifier, HeadMask
from models.batch import pack
from tests.calls import counted


def test_a_score_passes_few_files_and_functions(tiny_checkpoint: Path) -> None:
    clf = Classifier.load(tiny_checkpoint, "cpu")
    mask = HeadMask.parse("2.3,1.*", layers=3, heads=4)
    for _ in range(3):  # weights are copied when a mask comes again
        clf.score([("angle", "bracket")], mask)
    with counted() as calls:
        clf.score([("angle bracket", "steel screws")], mask)
    files, functions = calls.of("models/")
    assert files <= 10, sorted(calls.by_file)
    assert functions <= 62, calls.by_file

    with counted() as calls:
        clf.score([("angle bracket", "wooden screws")])
    assert calls.of("models/")[1] <= 50, calls.by_file

    batch = pack(clf.tokenizer.encode([("angle bracket", "steel screws")]), device=clf.network.device)
    with counted() as calls:
        clf.network.forward(batch)
    files, functions = calls.of("models/")
    assert files <= 6, sorted(calls.by_file)
    assert functions <= 30, calls.by_file
