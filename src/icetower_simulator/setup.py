"""The setup of a run: the workload, the storage and catalog of the table, and how its writers commit.

Three models of plain optimistic concurrency are known by name:

published   reproduces the published tables: the first attempt works from the snapshot taken at the start
corrected   the same after its author's correction: all metadata is read and written, round trips take effect half-way
client      as Iceberg's clients: they refresh before they commit, back off, and read several files at a time
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from icetower.errors import ConfigurationError
from icetower_simulator.latencies import INSTANT, KIB, PROVIDERS, Latency, Provider, constant
from icetower_simulator.validation import validated

FAST_APPEND, MERGE_APPEND, OVERWRITE = 0, 1, 2
KINDS = ("append", "merge_append", "overwrite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """How writers commit.

    Attributes:
        effect: the fraction of a catalog's round trip after which it takes effect.
        refreshes_first: the first attempt works from the head, not from the snapshot at the start.
        metadata_files: table metadata is a file of its own, read and written by each attempt.
        manifest_each: each attempt writes the manifest, too.
        keeps_without_overlap: prepared files stay valid if the swap lost to a commit to other partitions.
        reads_what_it_lacks: nothing is read or written again while the table has not changed.
        counts_catalog_versions: an overwrite reads a list for each commit to the catalog that it missed; else for each
            version of its table that it missed, except the head, in each of its partitions that has changed.
        mean_runtime: the runtime of the setup is the mean; else the median.
    """

    name: str
    effect: float
    refreshes_first: bool = False
    metadata_files: bool = True
    manifest_each: bool = False
    keeps_without_overlap: bool = False
    reads_what_it_lacks: bool = False
    counts_catalog_versions: bool = False
    mean_runtime: bool = False
    arrivals: str = "lognormal"
    swap_scope: str = "catalog"
    retries: int = 10
    backoff_ms: float = 0.0
    backoff_max_ms: float = 60_000.0
    backoff_jitter: float = 0.1
    commit_timeout_s: float = math.inf
    reads_at_once: int = 1


MODELS: MappingProxyType[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            Model(
                name="published",
                effect=1.0,
                metadata_files=False,
                manifest_each=True,
                keeps_without_overlap=True,
                counts_catalog_versions=True,
            ),
            Model(name="corrected", effect=0.5),
            Model(
                name="client",
                effect=0.5,
                refreshes_first=True,
                reads_what_it_lacks=True,
                mean_runtime=True,
                arrivals="exponential",
                swap_scope="table",
                retries=4,
                backoff_ms=100.0,
                commit_timeout_s=1800.0,
                reads_at_once=4,
            ),
        )
    }
)

PATTERNS: MappingProxyType[str, str] = MappingProxyType(
    {
        "optimistic": "each writer swaps by itself, and retries",
        "lock": "each writer holds the table's lock while it commits",
        "group": "the tower commits all waiting writes as one",
        "appends": "the tower folds named data files into one snapshot",
        "wal": "appends to a write-ahead log, merged by a mediator",
        "slots": "each agent commits in its own time slot",
        "collector": "change rows go into a delta table, and a job folds them in",
        "intents": "partitions are reserved before the work, then the tower commits",
    }
)
ARRIVALS = ("lognormal", "exponential")
SCOPES = ("catalog", "table")
ARRIVALS_MAX, AT_ONCE_MAX = 100_000_000, 10_000_000
"""Limits on the transactions in a run, and on those in flight at once: minutes of time, and about a gigabyte."""
FROM_MODEL = (
    "arrivals", "swap_scope", "retries", "backoff_ms", "backoff_max_ms", "backoff_jitter", "commit_timeout_s",
    "reads_at_once",
)  # fmt: skip
"""Fields of the model that a setup may override."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One configuration. A field that is None takes the model's value.

    Attributes:
        inter_arrival_ms: scale of the gaps between arrivals: their median if lognormal, their mean if exponential.
        fast_append_ratio, merge_append_ratio: shares of the transactions; the rest are validated overwrites.
        storage, catalog: names of providers; `catalog_latency_ms` is for the catalog `instant` alone.
        catalog_append: the catalog is a log to which commits are appended; a commit loses only to its own table's.
        swap_scope: whether a swap loses to every other commit to the catalog, or to those of its table.
        table_skew, partition_skew: exponent of Zipf's law by which tables and partitions are chosen; 0 is uniform.
        partitions_per_commit: how many different partitions a transaction writes.
        conflict_probability: the probability that an overlap, once examined, is a true conflict; whoever coordinates
            the writers, too.
        lists_appended: manifest lists are appended to, not read and written again.
        metadata_inlined: the catalog holds the table metadata. The last four are for the pattern `optimistic` alone.
        runtime_s, runtime_sigma, runtime_floor_s: how long a transaction works before it commits: lognormal.
        manifest_bytes, list_bytes, metadata_bytes: sizes of the files written.
        merge_manifests_max: the most manifests that a merge append reads, one for each version that it missed.
        window_s: the figures are of the transactions that begin in this window; None: the middle half of the run.
        pattern: how writers are coordinated (`PATTERNS`); `optimistic`: not at all.
        writers: the number of writers, each of which begins its next transaction as soon as the last has ended; 0:
            transactions arrive on their own.
        cold: a writer that begins to commit has nothing of the table and reads its metadata, as in benchmarks whose
            writers load the table each time.
        client_cpu_ms: processor time of a writer for each attempt, where all writers share one processor; 0: each has
            a machine of its own. The fields below are for other patterns than `optimistic`.
        agents: the number of agents that share the slots.
        interval_s: the interval of the mediator or the collector, or the length of a slot.
        job_s: how long a job of the mediator or collector takes besides its reads and writes.
        server_cpu_ms: processor time of the tower for each commit, before it waits for its group.
        group_cpu_ms, member_cpu_ms: the same for each group, and for each of its members, before its files are written.
        deadline_s: how long a commit or an intent waits for its turn.
        group_max, appends_max, pipeline_max, append_interval_s, append_spread_s, append_interval_max_s: the tower's
            limits on groups.
        prepared: clients have written the files of their own commits beforehand.
        data_bytes: size of the data file of a fast-path append, a log entry or a collector's delta.
    """

    model: str = "published"
    inter_arrival_ms: float = 1000.0
    arrivals: str | None = None
    arrival_sigma: float = 0.5
    fast_append_ratio: float = 1.0
    merge_append_ratio: float = 0.0
    storage: str = "s3"
    catalog: str = INSTANT
    catalog_latency_ms: float = 1.0
    catalog_append: bool = False
    swap_scope: str | None = None
    tables: int = 1
    table_skew: float = 0.0
    partitions: int = 1
    partition_skew: float = 0.0
    partitions_per_commit: int = 1
    conflict_probability: float = 0.0
    lists_appended: bool = False
    metadata_inlined: bool = False
    runtime_s: float = 180.0
    runtime_sigma: float = 1.5
    runtime_floor_s: float = 30.0
    retries: int | None = None
    backoff_ms: float | None = None
    backoff_max_ms: float | None = None
    backoff_jitter: float | None = None
    commit_timeout_s: float | None = None
    reads_at_once: int | None = None
    manifest_bytes: int = 100 * KIB
    list_bytes: int = 10 * KIB
    metadata_bytes: int = 10 * KIB
    merge_manifests_max: int = 100
    duration_s: float = 3600.0
    window_s: tuple[float, float] | None = None
    pattern: str = "optimistic"
    writers: int = 0
    cold: bool = False
    client_cpu_ms: float = 0.0
    agents: int = 10
    interval_s: float = 10.0
    job_s: float = 5.0
    server_cpu_ms: float = 4.0
    group_cpu_ms: float = 0.0
    member_cpu_ms: float = 0.0
    deadline_s: float = 30.0
    group_max: int = 256
    appends_max: int = 2_048
    pipeline_max: int = 2
    append_interval_s: float = 0.02
    append_spread_s: float = 0.002
    append_interval_max_s: float = 0.052
    data_bytes: int = 1024 * KIB
    prepared: bool = False

    def __post_init__(self) -> None:
        for rule, holds in _rules(self).items():
            if not holds:
                raise ConfigurationError(f"the setup is invalid; {rule}")

    @property
    def effective_model(self) -> Model:
        """The model, with the values that the setup overrides."""
        model = MODELS[self.model]
        overrides = {name: value for name in FROM_MODEL if (value := getattr(self, name)) is not None}
        if self.catalog_append and self.swap_scope is None:
            overrides["swap_scope"] = "table"
        return Model(**{field.name: getattr(model, field.name) for field in fields(Model)} | overrides)

    @property
    def window(self) -> tuple[float, float]:
        return self.window_s or (self.duration_s / 4, 3 * self.duration_s / 4)

    @property
    def mean_gap_ms(self) -> float:
        """The mean time between two arrivals."""
        lognormal = self.effective_model.arrivals == "lognormal"
        return self.inter_arrival_ms * (math.exp(self.arrival_sigma**2 / 2) if lognormal else 1.0)

    @property
    def load(self) -> tuple[float, float]:
        """Roughly: how many transactions arrive in a run, and how many of them work at once."""
        if self.writers > 0:
            return self.writers * max(self.duration_s, 1.0), float(self.writers)
        mean_s = self.runtime_s * (1.0 if self.effective_model.mean_runtime else math.exp(self.runtime_sigma**2 / 2))
        arrivals = self.duration_s * 1000 / self.mean_gap_ms
        return arrivals, arrivals * min(max(mean_s, self.runtime_floor_s) / self.duration_s, 1.0)


def _rules(setup: Setup) -> Mapping[str, bool]:
    """The rules of every setup, as text, and whether this one meets them."""
    return _values(setup) | _bounds(setup)


def _bounds(setup: Setup) -> dict[str, bool]:
    """The limits that keep a run's memory and time bounded."""
    known = setup.model in MODELS and max(setup.runtime_sigma, setup.arrival_sigma) <= 10 and setup.mean_gap_ms > 0
    arrivals, at_once = setup.load if known and setup.duration_s > 0 else (0.0, 0.0)
    return {
        "arrival_sigma and runtime_sigma: 10 at most": max(setup.arrival_sigma, setup.runtime_sigma) <= 10,
        f"duration_s and inter_arrival_ms or writers: {ARRIVALS_MAX:,} transactions in a run at most": arrivals
        <= ARRIVALS_MAX,
        f"inter_arrival_ms, runtime_s and writers: {AT_ONCE_MAX:,} transactions at work at once at most": at_once
        <= AT_ONCE_MAX,
        "agents, retries, group_max, appends_max and merge_manifests_max: 1,000,000 at most": max(
            setup.agents, setup.retries or 0, setup.group_max, setup.appends_max, setup.merge_manifests_max
        )
        <= 1_000_000,
        "table_skew and partition_skew: 100 at most": max(setup.table_skew, setup.partition_skew) <= 100,
    }


def _values(setup: Setup) -> dict[str, bool]:
    start, end = setup.window
    ratios = setup.fast_append_ratio, setup.merge_append_ratio, setup.conflict_probability
    return {
        f"model: one of {', '.join(MODELS)}, not {setup.model!r}": setup.model in MODELS,
        f"arrivals: one of {', '.join(ARRIVALS)}": setup.arrivals in (None, *ARRIVALS),
        f"swap_scope: one of {', '.join(SCOPES)}": setup.swap_scope in (None, *SCOPES),
        "fast_append_ratio, merge_append_ratio and conflict_probability: from 0 to 1": all(0 <= r <= 1 for r in ratios),
        "fast_append_ratio and merge_append_ratio: 1 at most together": sum(ratios[:2]) <= 1 + 1e-9,
        "inter_arrival_ms, duration_s, runtime_s and catalog_latency_ms: above 0": min(
            setup.inter_arrival_ms, setup.duration_s, setup.runtime_s, setup.catalog_latency_ms
        )
        > 0,
        "arrival_sigma, runtime_sigma, runtime_floor_s, table_skew and partition_skew: 0 or more": min(
            setup.arrival_sigma, setup.runtime_sigma, setup.runtime_floor_s, setup.table_skew, setup.partition_skew
        )
        >= 0,
        "tables and partitions: 1 or more, and 1,000,000 at most together": setup.tables >= 1
        and setup.partitions >= 1
        and setup.tables * setup.partitions <= 1_000_000,
        "partitions_per_commit: from 1 to partitions, and 64 at most": 1
        <= setup.partitions_per_commit
        <= min(setup.partitions, 64),
        "retries, backoff_ms, backoff_max_ms and backoff_jitter: 0 or more": min(
            setup.retries or 0, setup.backoff_ms or 0, setup.backoff_max_ms or 0, setup.backoff_jitter or 0
        )
        >= 0,
        "reads_at_once: from 1 to 64": setup.reads_at_once is None or 1 <= setup.reads_at_once <= 64,
        f"pattern: one of {', '.join(PATTERNS)}, not {setup.pattern!r}": setup.pattern in PATTERNS,
        "writers, client_cpu_ms, server_cpu_ms, group_cpu_ms and member_cpu_ms: 0 or more": min(
            setup.writers, setup.client_cpu_ms, setup.server_cpu_ms, setup.group_cpu_ms, setup.member_cpu_ms
        )
        >= 0,
        "agents, group_max, appends_max and data_bytes: 1 or more": min(
            setup.agents, setup.group_max, setup.appends_max, setup.data_bytes
        )
        >= 1,
        "pipeline_max: 1 or 2": setup.pipeline_max in (1, 2),
        "interval_s: 0.001 or more; deadline_s: above 0; job_s and append_*_s: 0 or more": setup.interval_s >= 0.001
        and setup.deadline_s > 0
        and min(setup.job_s, setup.append_interval_s, setup.append_spread_s, setup.append_interval_max_s) >= 0,
        "manifest_bytes, list_bytes, metadata_bytes and merge_manifests_max: 0 or more": min(
            setup.manifest_bytes, setup.list_bytes, setup.metadata_bytes, setup.merge_manifests_max
        )
        >= 0,
        "window_s: two times within the run, the first before the second": 0 <= start < end <= setup.duration_s,
    }


def setup_from(section: Mapping[str, Any], source: str) -> Setup:
    """A setup from a file's section. Raises `ConfigurationError`, which names the source."""
    values = validated(Setup, section, "a setup", source)
    try:
        return Setup(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error.message}") from error


@dataclass(frozen=True, slots=True)
class Timing:
    """The latencies of a setup's operations."""

    get: Latency
    put_manifest: Latency
    put_list: Latency
    put_metadata: Latency
    append_list: Latency | None
    put_data: Latency
    catalog_read: Latency
    commit: Latency

    @property
    def in_order(self) -> tuple[Latency, ...]:
        """As `latencies.py` numbers them."""
        append = self.append_list or self.put_list  # a placeholder where the storage has no appends
        return (self.get, self.put_manifest, self.put_list, self.put_metadata, append, self.catalog_read, self.commit)


def timing(setup: Setup, providers: Mapping[str, Provider] = PROVIDERS) -> Timing:
    """The latencies of a setup. Raises `ConfigurationError` if a provider is unknown, or lacks a needed operation."""
    storage = _provider(setup.storage, providers)
    catalog = _provider(setup.catalog, providers)
    if setup.catalog == INSTANT:
        catalog = constant(INSTANT, setup.catalog_latency_ms)
    if setup.lists_appended and storage.append is None:
        raise ConfigurationError(f"lists_appended: the storage {storage.name!r} has no conditional append")
    if setup.catalog_append and catalog.append is None:
        raise ConfigurationError(f"catalog_append: the catalog {catalog.name!r} has no conditional append")
    return Timing(
        get=storage.get,
        put_manifest=storage.put(setup.manifest_bytes),
        put_list=storage.put(setup.list_bytes),
        put_metadata=storage.put(setup.metadata_bytes),
        append_list=storage.append,
        put_data=storage.put(setup.data_bytes),
        catalog_read=catalog.catalog_read,
        commit=catalog.append if setup.catalog_append and catalog.append is not None else catalog.swap,
    )


def _provider(name: str, providers: Mapping[str, Provider]) -> Provider:
    if name not in providers:
        raise ConfigurationError(f"no provider is called {name!r}; there are {', '.join(sorted(providers))}")
    return providers[name]
