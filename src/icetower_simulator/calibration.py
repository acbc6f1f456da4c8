"""Turns measured latencies into a provider: fits lognormal distributions to samples, and shows how well they fit."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from icetower.errors import UsageError
from icetower_simulator.latencies import MIB, PROVIDERS, Latency

SAMPLES_MIN = 20
"""Fewer samples show too little of the spread."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted latency, and percentiles as (fraction, measured, fitted), in milliseconds."""

    latency: Latency
    percentiles: tuple[tuple[float, float, float], ...]


def fitted(samples_ms: Sequence[float]) -> Fit:
    """A lognormal distribution with the samples' median and spread; nothing is faster than the fastest sample.

    Raises:
        UsageError: there are too few samples.
    """
    if len(samples_ms) < SAMPLES_MIN:
        raise UsageError(f"{len(samples_ms)} samples are too few to fit a latency; at least {SAMPLES_MIN} are needed")
    ordered = sorted(max(sample, 0.001) for sample in samples_ms)
    middle = _at(ordered, 0.5)
    sigma = math.sqrt(fmean(math.log(sample / middle) ** 2 for sample in ordered))
    latency = Latency(middle, round(sigma, 4), ordered[0])
    shown = tuple((part, _at(ordered, part), _quantile(latency, part)) for part in (0.05, 0.25, 0.5, 0.75, 0.95, 0.99))
    return Fit(latency, shown)


def _at(ordered: Sequence[float], part: float) -> float:
    rank = part * (len(ordered) - 1)
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


def _quantile(latency: Latency, part: float) -> float:
    """By bisection, which is fast enough for the few calls."""
    low, high = -8.0, 8.0
    while high - low > 1e-9:
        z = (low + high) / 2
        if 0.5 * math.erfc(-z / math.sqrt(2)) < part:
            low = z
        else:
            high = z
    return max(latency.median_ms * math.exp(latency.sigma * low), latency.floor_ms)


def fitted_writes(samples_ms: Mapping[int, Sequence[float]]) -> tuple[float, float, float]:
    """A write's base in milliseconds, milliseconds per MiB, and sigma, from samples by size. Raises `UsageError`."""
    fits = {size: fitted(samples) for size, samples in samples_ms.items()}
    sizes = [size / MIB for size in fits]
    medians = [fit.latency.median_ms for fit in fits.values()]
    mean_size, mean_median = fmean(sizes), fmean(medians)
    spread = sum((size - mean_size) ** 2 for size in sizes)
    together = sum((size - mean_size) * (found - mean_median) for size, found in zip(sizes, medians, strict=True))
    slope = max(together / spread, 0.0) if spread > 0 else 0.0
    base = max(mean_median - slope * mean_size, min(medians) / 2)
    return base, slope, median(fit.latency.sigma for fit in fits.values())


def require_name(name: str) -> None:
    """Raises `UsageError` if a provider cannot have that name."""
    if name in PROVIDERS or not _NAME.fullmatch(name):
        raise UsageError(
            f"a provider cannot be called {name!r}: use letters, digits, - and _, and none of the known names, "
            f"{', '.join(PROVIDERS)}"
        )


def provider_section(
    name: str, read: Fit, writes_ms: Mapping[int, Sequence[float]], catalog_read: Fit, commit: Fit
) -> str:
    """A provider for an experiment's file, as TOML. None of its calls is faster than the fastest of all samples."""
    base, slope, sigma = fitted_writes(writes_ms)
    fits = (read, catalog_read, commit, *(fitted(samples) for samples in writes_ms.values()))
    floor = min(fit.latency.floor_ms for fit in fits)

    def pair(fit: Fit) -> str:
        return f"[{fit.latency.median_ms:.4g}, {fit.latency.sigma:.4g}]"

    lines = [
        f"[providers.{name}]",
        f"get_ms = {pair(read)}            # median, sigma",
        f"put_ms = [{base:.4g}, {slope:.4g}, {sigma:.4g}]     # base, milliseconds per MiB, sigma",
        f"catalog_read_ms = {pair(catalog_read)}",
        f"swap_ms = {pair(commit)}           # a whole commit, with the catalog's own write of the metadata",
        f"floor_ms = {floor:.4g}",
    ]
    return "\n".join(lines) + "\n"
