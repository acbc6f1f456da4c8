"""Clock, randomness, identifiers and sleep: the only door to what is not a function of its input.

The engine takes an `Ambient`; under the gateway it is the machine's own, under a seeded simulation one that replays.
Nothing else in the package may call `time`, `random`, `uuid` or `asyncio.sleep`; ruff refuses it.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import time
import uuid
from typing import Protocol

from icetower.errors import UsageError

ENVIRONMENT = "env:"


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


class SystemAmbient:
    """The machine's own clock and randomness."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000  # noqa: TID251

    def monotonic_s(self) -> float:
        return time.monotonic()  # noqa: TID251

    def uuid4(self) -> str:
        return str(uuid.uuid4())  # noqa: TID251

    def uuid7(self) -> str:
        return uuid7_of(self.now_ms(), secrets.randbits(74))

    def snapshot_id(self) -> int:
        return secrets.randbits(62) + 1

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
