"""Files that are no files: a FIFO has no end to wait for, a device has no end at all."""

from pathlib import Path

import pytest

from headroom.models import files
from headroom.models.numbers import GIVEN, number, percent, rounded


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """As Kubernetes mounts a config map."""
    (tmp_path / "data").write_text("é")
    (tmp_path / "link").symlink_to("data")
    assert files.read_text(tmp_path / "link") == "é"
    with pytest.raises(OSError, match="larger than 0 MiB"):
        files.read_text(tmp_path / "link", max_bytes=1)


def test_only_the_whole_is_printed_as_the_whole() -> None:
    assert percent(3899 / 3900, digits=3) == "99.97 %"
    assert percent(0.996) == "99.6 %"
    assert (percent(1), percent(1.2)) == ("100 %", "120 %")
    assert (number(0.9996, whole=1), number(1, whole=1)) == ("0.9996", "1")


def test_an_end_is_rounded_away_from_what_it_would_claim_and_a_given_number_keeps_its_digits() -> None:
    assert number(rounded(0.1249, up=True)) == "0.125"
    assert number(rounded(0.12491, up=True)) == "0.125"
    assert number(rounded(0.0204, up=True)) == "0.0204"
    assert number(rounded(0.020401, up=True)) == "0.0205"
    assert number(rounded(0.020499, up=False)) == "0.0204"
    assert number(rounded(-0.020401, up=True)) == "−0.0204"
    assert rounded(0.0, up=True) == 0
    assert [percent(share, digits=GIVEN) for share in (0.125, 0.0125, 0.07, 0.1 + 0.2)] == [
        "12.5 %",
        "1.25 %",
        "7 %",
        "30 %",
    ]
