"""Signs a release: `python deploy/sign.py KEY [STATEMENT SUMS]`, by the Python that has securesystemslib.

KEY: a private key in PEM, for ECDSA on P-256, which OpenSSL and cosign can both verify. SIGNING_PASSWORD is
its password, if it has one. It writes the statement NAME.provenance.json in a signed envelope (DSSE) to
NAME.intoto.json, and a signature of SUMS to SUMS.sig. Without files it only says whether the key can sign.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from securesystemslib.dsse import Envelope
from securesystemslib.signer import CryptoSigner

MAKE_KEY = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out ~/release.key"


def load(path: Path) -> CryptoSigner:
    """Return the signer of a key's file. Raises SystemExit if it cannot sign."""
    password = os.environ.get("SIGNING_PASSWORD")
    try:
        key = load_pem_private_key(path.read_bytes(), password.encode() if password else None)
    except (OSError, TypeError, ValueError) as error:
        raise SystemExit(f"KEY={path} cannot be read: {error}") from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise SystemExit(f"KEY={path} is not a private key for ECDSA on P-256; make one: {MAKE_KEY}")
    return CryptoSigner(key)


def main(key: str, *files: str) -> None:
    """Sign the statement and the digests, if they are given."""
    signer = load(Path(key))
    if files:
        statement, sums = map(Path, files)
        envelope = Envelope(statement.read_bytes(), "application/vnd.in-toto+json", {})
        envelope.sign(signer)
        text = json.dumps(envelope.to_dict()) + "\n"
        name = statement.name.removesuffix(".provenance.json")
        statement.with_name(f"{name}.intoto.json").write_text(text, "utf-8")
        signature = bytes.fromhex(signer.sign(sums.read_bytes()).signature)
        sums.with_name(f"{sums.name}.sig").write_bytes(signature)


if __name__ == "__main__":
    main(*sys.argv[1:])
