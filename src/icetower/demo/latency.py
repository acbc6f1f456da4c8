"""The storage latency that the demo and the benchmarks simulate: lognormal, with a floor, as measured on S3.

GET: median 27 ms, σ 0.62. PUT: median 60 ms + 20 ms a MiB, σ 0.29. No call is faster than 10 ms. The
catalog's database has none: it is a local SQLite file on every side.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Profile:
    """How long one storage call takes, in milliseconds."""

    name: str
    get_median_ms: float
    get_sigma: float
    put_base_ms: float
    put_ms_per_mib: float
    put_sigma: float
    floor_ms: float


NONE = Profile("none", 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
S3 = Profile("s3", 27.0, 0.62, 60.0, 20.0, 0.29, 10.0)
PROFILES = {profile.name: profile for profile in (NONE, S3)}


class Latency:
    """Draws the duration of storage calls. The same seed draws the same numbers, in the order of the calls."""

    def __init__(self, profile: Profile, seed: int) -> None:
        self.profile = profile
        self._random = random.Random(seed)  # noqa: S311 - simulated latency is no secret

    def get_s(self) -> float:
        """A GET, HEAD or DELETE, in seconds."""
        return self._draw_s(self.profile.get_median_ms, self.profile.get_sigma)

    def put_s(self, size_bytes: int) -> float:
        """A PUT of `size_bytes`, in seconds."""
        median_ms = self.profile.put_base_ms + self.profile.put_ms_per_mib * size_bytes / MIB
        return self._draw_s(median_ms, self.profile.put_sigma)

    def _draw_s(self, median_ms: float, sigma: float) -> float:
        if median_ms == 0:
            return 0.0
        return max(self.profile.floor_ms, self._random.lognormvariate(math.log(median_ms), sigma)) / 1000
