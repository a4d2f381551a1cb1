"""Keys of scores: the weights, a row's mask, and the tokens that the network reads of a query and a title."""

from hashlib import blake2b

from headroom.models.checkpoint.tokenizer import EncodedPair
from headroom.models.masks.head_mask import HeadMask


def mask_hash(mask: HeadMask, weights: bytes, *, size: int, secret: bytes = b"") -> blake2b:
    """Return the hash of a mask, to which a row's tokens are to be added.

    weights: names the weights and their number format. size: bytes of the key. secret: without it nobody can
    look for two rows with one key.
    """
    # Not the mask's id: of its 48 bits, another mask with the same can be found.
    digest = blake2b(key=secret, digest_size=size)
    for part in (weights, mask.matrix.tobytes(), mask.structure):
        digest.update(len(part).to_bytes(4) + part)
    return digest


def row_key(hash_of_mask: blake2b, pair: EncodedPair) -> bytes:
    """Return the key of a pair under the mask whose hash this is."""
    hashed = hash_of_mask.copy()
    hashed.update(pair.query_tokens.to_bytes(4))
    hashed.update(pair.ids.tobytes())
    return hashed.digest()
