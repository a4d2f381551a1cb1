"""Keys of scores: a row's mask, and the tokens that the network reads of a query and a title."""

from hashlib import blake2b

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.masks.head_mask import HeadMask

KEY_BYTES = 16
"""Nobody finds two rows with the same key of 128 bits, all the less as the hash has a secret."""


def mask_hash(mask: HeadMask, secret: bytes, network: bytes = b"") -> blake2b:
    """Return the hash of a mask, to which a row's tokens are to be added.

    network: names the weights, if the keys of several are kept together.
    """
    # Not the mask's id: of its 48 bits, another mask with the same can be found.
    digest = blake2b(key=secret, digest_size=KEY_BYTES)
    for part in (network, mask.matrix.tobytes(), mask.structure):
        digest.update(len(part).to_bytes(4) + part)
    return digest


def row_key(hash_of_mask: blake2b, pair: EncodedPair) -> bytes:
    """Return the key of a pair under the mask whose hash this is."""
    hashed = hash_of_mask.copy()
    hashed.update(pair.query_tokens.to_bytes(4))
    hashed.update(pair.ids.tobytes())
    return hashed.digest()
