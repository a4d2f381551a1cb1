"""A signed release, verified as its users do: with OpenSSL and sha256sum, which know nothing of our code."""

import base64
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deploy import release
from deploy.provenance import Image, sign
from headroom.version import ROOT
from tests.clients import environments

pytestmark = pytest.mark.more

P256 = ("EC", "-pkeyopt", "ec_paramgen_curve:P-256")
SCHEMA = """
import json, sys
from google.protobuf.json_format import Parse, ParseDict
from in_toto_attestation.predicates.provenance.v1.provenance_pb2 import Provenance
from in_toto_attestation.v1.statement import Statement
from in_toto_attestation.v1.statement_pb2 import Statement as Message
text = sys.stdin.read()
Statement.copy_from_pb(Parse(text, Message())).validate()
provenance = ParseDict(json.loads(text)["predicate"], Provenance())
assert provenance.build_definition.build_type and provenance.run_details.builder.id
"""


def openssl(*words: str | Path, check: bool = True) -> int:
    return subprocess.run(["openssl", *words], capture_output=True, check=check).returncode


def make_key(folder: Path, *algorithm: str) -> Path:
    """Make a key pair, release.key and release.pub."""
    key = folder / "release.key"
    openssl("genpkey", "-algorithm", *algorithm, "-out", key)
    openssl("pkey", "-in", key, "-pubout", "-out", folder / "release.pub")
    return key


def is_signed(public: Path, file: Path, signature: Path) -> bool:
    return openssl("dgst", "-sha256", "-verify", public, "-signature", signature, file, check=False) == 0


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a release's last steps done, and release.pub beside it."""
    folder = tmp_path_factory.mktemp("release")
    key = make_key(folder, *P256)
    dist = folder / "dist"
    dist.mkdir()
    (dist / "headroom-0.3.0.dev7+g1a2b3c4d-py3-none-linux_x86_64.whl").write_bytes(b"wheel")
    (dist / "headroom-0.3.0.dev7+g1a2b3c4d-cpu.tar.gz").write_bytes(b"image")
    image = Image("headroom:0.3.0.dev7-g1a2b3c4d-cpu", "ab" * 32)
    release.seal(dist, "0.3.0.dev7+g1a2b3c4d", image, datetime.now(UTC), key)
    return dist


def envelope(dist: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((dist / "headroom-0.3.0.dev7+g1a2b3c4d.intoto.json").read_text())
    return content


def encoded(kind: str, payload: bytes) -> bytes:
    """What is signed (https://github.com/secure-systems-lab/dsse/blob/master/protocol.md)."""
    return f"DSSEv1 {len(kind)} {kind} {len(payload)} ".encode() + payload


def test_the_digests_are_signed_and_right(signed: Path, tmp_path: Path) -> None:
    public, signature = signed.parent / "release.pub", signed / "SHA256SUMS.sig"
    assert is_signed(public, signed / "SHA256SUMS", signature)
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"], cwd=signed, capture_output=True, text=True
    )
    assert checked.returncode == 0
    assert checked.stdout.count(": OK") == 3, "wheel, image and provenance"
    changed = tmp_path / "SHA256SUMS"
    changed.write_text((signed / "SHA256SUMS").read_text().replace("0", "1", 1))
    assert not is_signed(public, changed, signature)


def test_the_provenance_is_signed_as_an_in_toto_envelope(signed: Path, tmp_path: Path) -> None:
    content = envelope(signed)
    assert content["payloadType"] == "application/vnd.in-toto+json"
    payload = base64.b64decode(content["payload"])
    (signature,) = content["signatures"]
    (tmp_path / "sig").write_bytes(base64.b64decode(signature["sig"]))
    message = tmp_path / "message"
    for text, valid in ((payload, True), (payload.replace(b"0.3.0", b"0.3.1"), False)):
        message.write_bytes(encoded(content["payloadType"], text))
        assert is_signed(signed.parent / "release.pub", message, tmp_path / "sig") is valid


def test_the_statement_is_slsa_provenance_of_every_file_and_of_the_image_by_its_id(signed: Path) -> None:
    payload = base64.b64decode(envelope(signed)["payload"])
    judged = subprocess.run(
        [environments.python("deploy"), "-c", SCHEMA], input=payload, capture_output=True, check=False
    )
    assert judged.returncode == 0, judged.stderr.decode()
    statement = json.loads(payload)
    subjects = {subject["name"]: subject["digest"]["sha256"] for subject in statement["subject"]}
    assert subjects.pop("headroom:0.3.0.dev7-g1a2b3c4d-cpu") == "ab" * 32
    listed = dict(reversed(line.split()) for line in (signed / "SHA256SUMS").read_text().splitlines())
    listed.pop("headroom-0.3.0.dev7+g1a2b3c4d.provenance.json")
    assert subjects == listed
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    if head.returncode == 0:
        commit = statement["predicate"]["buildDefinition"]["resolvedDependencies"][0]
        assert commit["digest"] == {"gitCommit": head.stdout.strip()}


@pytest.mark.parametrize("algorithm", [("RSA",), ("ED25519",), ("EC", "-pkeyopt", "ec_paramgen_curve:P-384")])
def test_a_key_that_its_users_could_not_verify_with_is_refused_before_the_build(
    algorithm: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    key = make_key(tmp_path, *algorithm)
    with pytest.raises(SystemExit):
        sign(key)
    assert capfd.readouterr().err.startswith(
        f"KEY={key} is not a private key for ECDSA on P-256; make one: openssl"
    )
