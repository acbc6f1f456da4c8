"""How a tower proves that it is the one of a data directory, before a command gives it the secret that lies there.

The port of a tower that was stopped may be another user's by now, and a configuration may name any address. So whoever
has read the secret sends a random number first. Only the tower has the secret too, and so only it knows the right
answer, which holds for the address at which the connection arrived: one that is fetched from the tower elsewhere is
worth nothing. Pure.
"""

from __future__ import annotations

import hashlib
import hmac

PROOF_PATH = "/icetower/v1/proof"
NONCE_CHARACTERS = 64


def proof_of(secret: str, nonce: str, host: str, port: int) -> str:
    """HMAC-SHA256 of a nonce and an address under a secret, in hexadecimal."""
    return hmac.new(secret.encode(), f"icetower\n{nonce}\n{host}\n{port}".encode(), hashlib.sha256).hexdigest()


def is_proof(answer: str, secret: str, nonce: str, host: str, port: int) -> bool:
    """Whether an answer is the right one, in a time that does not tell how far."""
    return hmac.compare_digest(answer.encode("utf-8", "surrogatepass"), proof_of(secret, nonce, host, port).encode())
