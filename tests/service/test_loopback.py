"""Names and addresses of this machine, to which no key is asked for and no proxy leads."""

import pytest

from headroom.service.loopback import leads_to_loopback

HERE = """
http://localhost http://LOCALHOST:8000/x http://localhost. http://a.localhost:1 http://127.8.0.1 //[::1]:8
"""
ELSEWHERE = """
http://127.0.0.1.nip.io http://127.evil.example http://localhost.example http://10.0.0.7 //[fe80::1] //[x
"""


@pytest.mark.parametrize("url", HERE.split())
def test_a_url_of_this_machine_leads_to_it(url: str) -> None:
    assert leads_to_loopback(url)


@pytest.mark.parametrize("url", ELSEWHERE.split())
def test_a_url_that_only_looks_like_this_machine_leads_elsewhere(url: str) -> None:
    assert not leads_to_loopback(url)
