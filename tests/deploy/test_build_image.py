"""What the image is built from without a Docker daemon. `make images` builds it."""

from __future__ import annotations

from tests.deploy.build_image import DOCKERFILE, SUITE, pip_settings


def test_the_steps_find_packages_where_this_machine_finds_them() -> None:
    listed = "\n".join(
        [
            ":env:.default-timeout='180'",
            ":env:.find-links='/srv/wheels https://mirror.example/wheels'",
            "global.cert='/etc/ssl/mirror.pem'",
            "global.extra-index-url='file:///srv/one\\nfile:///srv/two'",
            "global.find-links='/srv/old'",
            "global.require-virtualenv='true'",
        ]
    )
    assert pip_settings(listed, "/mnt").splitlines() == [
        "[global]",
        "retries = 1",
        "extra-index-url = file:///mnt/srv/one file:///mnt/srv/two",
        "find-links = /mnt/srv/wheels https://mirror.example/wheels",
        "cert = /mnt/etc/ssl/mirror.pem",
        "timeout = 180",
    ]


def test_the_base_is_the_release_that_the_dockerfile_names() -> None:
    (base,) = [line for line in DOCKERFILE.read_text("utf-8").splitlines() if line.startswith("ARG BASE=")]
    assert base.startswith("ARG BASE=debian:12."), base
    assert SUITE == "bookworm"
