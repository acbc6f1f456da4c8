"""Latencies of storage and catalogs: lognormal distributions with a floor, and the measured providers.

A write's median grows with its size. All of it is data: a provider measured elsewhere is a `Provider` like any other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from icetower.errors import ConfigurationError
from icetower_simulator.compiled import compiled
from icetower_simulator.randoms import normal

KIB, MIB = 1024, 1024 * 1024
LARGEST_MS = 1e7
"""Longer than any call waits for an answer."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Lognormal(ln median, sigma), never below the floor. With sigma 0 it is constant."""

    median_ms: float
    sigma: float = 0.0
    floor_ms: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.median_ms <= LARGEST_MS and 0 <= self.sigma <= 10 and 0 <= self.floor_ms <= LARGEST_MS):
            raise ConfigurationError(
                f"a latency with median {self.median_ms} ms, sigma {self.sigma} and floor {self.floor_ms} ms is "
                "invalid: the median must be positive, the others not negative, sigma at most 10, times at most "
                f"{LARGEST_MS:g} ms"
            )

    @property
    def mean_ms(self) -> float:
        """The exact mean, the floor included."""
        if self.sigma == 0:
            return max(self.median_ms, self.floor_ms)
        plain = self.median_ms * math.exp(self.sigma**2 / 2)
        if self.floor_ms == 0:
            return plain
        z = math.log(self.floor_ms / self.median_ms) / self.sigma
        return self.floor_ms * normal_below(z) + plain * (1 - normal_below(z - self.sigma))


def normal_below(z: float) -> float:
    """The fraction of a standard normal distribution below `z`."""
    return 0.5 * math.erfc(-z / math.sqrt(2))


@dataclass(frozen=True, slots=True)
class Provider:
    """The latencies of a storage's or a catalog's operations.

    Attributes:
        get: a read of any size: fixed costs dominate with small objects.
        put_base_ms, put_ms_per_mib, put_sigma: a write.
        swap: a conditional write, as a catalog's compare-and-swap.
        append: a conditional append; None where there is none.
        catalog_read: reading the catalog's state.
    """

    name: str
    get: Latency
    put_base_ms: float
    put_ms_per_mib: float
    put_sigma: float
    swap: Latency
    append: Latency | None
    floor_ms: float
    catalog_read: Latency

    def put(self, size_bytes: int) -> Latency:
        return Latency(self.put_base_ms + self.put_ms_per_mib * size_bytes / MIB, self.put_sigma, self.floor_ms)


def _measured(
    name: str,
    get: tuple[float, float],
    put: tuple[float, float, float],
    swap: tuple[float, float],
    append: tuple[float, float] | None,
    floor_ms: float,
) -> Provider:
    read = Latency(*get, floor_ms)
    return Provider(
        name,
        read,
        *put,
        swap=Latency(*swap, floor_ms),
        append=None if append is None else Latency(*append, floor_ms),
        floor_ms=floor_ms,
        catalog_read=read,
    )


def provider_from(name: str, section: Mapping[str, Any], source: str) -> Provider:
    """A user's own provider, from a file's section; each latency is a list, as in `PROVIDERS`.

    Raises:
        ConfigurationError: the section is invalid; the message names the source.
    """
    lengths = {"get_ms": 2, "put_ms": 3, "swap_ms": 2, "append_ms": 2, "catalog_read_ms": 2}
    subject = f"{source}: the provider {name!r}"
    if name in PROVIDERS:
        raise ConfigurationError(f"{subject}: one of the package's providers already has that name; choose another")
    unknown = sorted(set(section) - {*lengths, "floor_ms"})
    lacking = sorted({"get_ms", "put_ms", "swap_ms"} - set(section))
    if unknown or lacking:
        raise ConfigurationError(
            f"{subject} {'has no setting' if unknown else 'lacks'} {', '.join(unknown or lacking)}; it has get_ms, "
            "put_ms and swap_ms, and may have append_ms, catalog_read_ms and floor_ms"
        )
    for key, length in lengths.items():
        values = section.get(key, [1] * length)
        if not isinstance(values, list) or len(values) != length or not all(_is_number(v) for v in values):
            kinds = "median and sigma" if length == 2 else "base, milliseconds per MiB, and sigma"
            raise ConfigurationError(f"{subject}: {key} must be a list of {length} numbers: {kinds}")
    floor = section.get("floor_ms", 0)
    if not _is_number(floor):
        raise ConfigurationError(f"{subject}: floor_ms must be a number, not {floor!r}")
    get, put, swap = section["get_ms"], section["put_ms"], section["swap_ms"]
    try:
        found = _measured(name, get, put, swap, section.get("append_ms"), floor)
        if "catalog_read_ms" in section:
            median, sigma = section["catalog_read_ms"]
            found = replace(found, catalog_read=Latency(median, sigma, floor))
        found.put(0)
    except ConfigurationError as error:
        raise ConfigurationError(f"{subject}: {error.message}") from error
    if found.put_ms_per_mib < 0:
        raise ConfigurationError(
            f"{subject}: put_ms: milliseconds per MiB must be 0 or more, not {found.put_ms_per_mib}"
        )
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= LARGEST_MS


def constant(name: str, latency_ms: float) -> Provider:
    """Every operation takes the same time."""
    always = Latency(latency_ms)
    return Provider(name, always, latency_ms, 0.0, 0.0, always, always, 0.0, always)


INSTANT = "instant"
"""The catalog that takes a fixed time, 1 ms unless said otherwise."""

PROVIDERS: MappingProxyType[str, Provider] = MappingProxyType(
    {
        provider.name: provider
        for provider in (
            _measured("s3", (27, 0.62), (60, 20, 0.29), (61, 0.14), None, 10),
            _measured("s3x", (2.5, 0.57), (6.5, 10, 0.24), (22, 0.22), (21, 0.25), 1),
            _measured("azure", (38, 0.66), (45, 25, 0.50), (93, 0.82), (87, 0.28), 20),
            _measured("azurex", (35, 0.08), (41, 15, 0.10), (64, 0.73), (70, 0.23), 20),
            _measured("gcp", (200, 0.30), (200, 17, 0.30), (170, 0.91), None, 80),
            constant(INSTANT, 1.0),
        )
    }
)
"""Medians and spreads of "Simulating Catalog and Table Conflicts"; the writes of gcp and s3x are estimates."""

# Rows of the table that compiled code takes its latencies from.
GET, PUT_MANIFEST, PUT_LIST, PUT_METADATA, APPEND_LIST, CATALOG_READ, COMMIT = range(7)
LATENCIES = np.dtype((np.float64, (7, 4)))


def table(rows: Sequence[Latency]) -> Any:
    """Latencies for compiled code, in the order of the numbers above: ln median, sigma, floor, mean."""
    return np.array([(math.log(each.median_ms), each.sigma, each.floor_ms, each.mean_ms) for each in rows])


@compiled
def duration_of(io: Any, which: int) -> float:
    """Draw how long an operation takes, in milliseconds. `io`: a record of `sums.IO`."""
    sigma = io.latencies[which, 1]
    if sigma == 0.0:
        return io.latencies[which, 3]
    return max(math.exp(io.latencies[which, 0] + sigma * normal(io.state)), io.latencies[which, 2])
