"""Clock, randomness, identifiers and sleep: the only door to what is not a function of its input.

The engine takes an `Ambient`; under the gateway it is the machine's own, under a seeded simulation one that replays.
Nothing else in the package may call `time`, `random`, `uuid` or `asyncio.sleep`; ruff refuses it.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import threading
import time
import uuid
from typing import Protocol

from icetower.errors import UsageError

ENVIRONMENT = "env:"
_RANDOM_BYTES = 4096


class Ambient(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 (UTC)."""
        ...

    def monotonic_s(self) -> float:
        """A clock that never goes back, in seconds; for deadlines and durations."""
        ...

    def uuid4(self) -> str:
        """A random UUID, 36 characters."""
        ...

    def uuid7(self) -> str:
        """A time-ordered UUID (RFC 9562), 36 characters."""
        ...

    def snapshot_id(self) -> int:
        """A positive random 63-bit snapshot id."""
        ...

    def secret(self) -> str:
        """An unguessable URL-safe secret of 256 bits."""
        ...

    def uniform(self) -> float:
        """A number in [0, 1), for jitter."""
        ...

    async def sleep(self, seconds: float) -> None: ...


def uuid7_of(now_ms: int, random_bits: int) -> str:
    """UUID version 7 of a time in milliseconds and 74 random bits (RFC 9562, section 5.7)."""
    value = (now_ms & ((1 << 48) - 1)) << 80
    value |= 0x7 << 76
    value |= ((random_bits >> 62) & 0xFFF) << 64
    value |= 0b10 << 62
    value |= random_bits & ((1 << 62) - 1)
    return str(uuid.UUID(int=value))


class _RandomBytes:
    """The system's randomness, for identifiers, asked for many at a time.

    Each question gives the interpreter's lock away, and a commit makes several identifiers. A child process begins
    anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process_id, self._bytes, self._used = 0, b"", 0

    def take(self, count: int) -> bytes:
        with self._lock:
            if self._used + count > len(self._bytes) or self._process_id != os.getpid():
                self._process_id, self._bytes, self._used = os.getpid(), secrets.token_bytes(_RANDOM_BYTES), 0
            self._used += count
            return self._bytes[self._used - count : self._used]


class SystemAmbient:
    """The machine's own clock and randomness."""

    def __init__(self) -> None:
        self._random = _RandomBytes()

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251

    def monotonic_s(self) -> float:
        return time.monotonic()  # noqa: TID251

    def uuid4(self) -> str:
        return str(uuid.UUID(bytes=self._random.take(16), version=4))

    def uuid7(self) -> str:
        return uuid7_of(self.now_ms(), int.from_bytes(self._random.take(10), "big") >> 6)

    def snapshot_id(self) -> int:
        return (int.from_bytes(self._random.take(8), "big") >> 2) + 1

    def secret(self) -> str:
        return secrets.token_urlsafe(32)

    def uniform(self) -> float:
        return random.random()  # noqa: TID251, S311 - jitter is no secret

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # noqa: TID251


def from_environment(value: str) -> str:
    """A value as it is, or for ``env:NAME`` that of the variable NAME. Raises `UsageError` where it is not set."""
    if not value.startswith(ENVIRONMENT):
        return value
    name = value.removeprefix(ENVIRONMENT)
    if name not in os.environ:
        raise UsageError(f"the environment variable {name} is not set, and an option takes its value from there")
    return os.environ[name]
