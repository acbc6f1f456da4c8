"""Names of any length as ids of 16 bytes. What is stored is found by them: the function stays as it is for ever."""

from __future__ import annotations

from hashlib import blake2b

KEY = b"key"
APPLICATION = b"application"
GROUP = b"group"
ANSWER = b"answer"


def hashed(kind: bytes, *names: str) -> bytes:
    """An id for some names of a kind; others for the same names in other places or of another kind.

    128 bits of BLAKE2b: among a hundred million, two meet with a probability of about 1 in 10^23.
    """
    digest = blake2b(kind, digest_size=16, person=b"icetower")
    for name in names:
        data = name.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(4, "big"))
        digest.update(data)
    return digest.digest()
