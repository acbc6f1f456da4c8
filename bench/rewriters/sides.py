"""A run of one case, from an empty table to the figures; and whether the table is what its agents were answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog

from bench.commits import servers
from bench.commits.operations import percentile
from bench.commits.sides import rest
from bench.rewriters import agents
from bench.rewriters.agents import IDS_OF_AN_AGENT, Appended, Rewrite
from bench.rewriters.seats import NAME, NAMESPACE, SCHEMA, SPEC, Seat, rows
from bench.rewriters.work import ALONE, BRANCHES, INTENTS, PLAIN, SEED_ROWS, Case
from icetower.agent import Tower
from icetower.demo import slow_io

Record = dict[str, Any]
SEED_IDS = 500 * IDS_OF_AN_AGENT
CONTRACT = f"""version: 1
agent: {{role}}
tables:
  - table: {NAME}
    operations: [{{operations}}]
    partitions: all
"""
CREATES_BRANCHES = f"  - {{table: {NAME}, operations: [refs], partitions: [{{part: [0]}}]}}\n"
"""Who may do so for a part of the table creates branches, and moves none of others."""

INTENDING = frozenset({INTENTS, BRANCHES})
BUSY_S = 60
"""So long a plain catalog's clients wait for SQLite's lock."""


def run(case: Case, folder: Path) -> Record:
    """Run a case in an empty folder. Raises `Trouble` where it cannot be run."""
    folder.mkdir(parents=True, exist_ok=True)
    if case.side == PLAIN:
        uri = f"sqlite:///{folder / 'catalog.db'}?timeout={BUSY_S}"
        properties = {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/warehouse"}
        catalog = load_catalog("bench", **properties)
        return _measured(case, catalog, [properties] * case.agents, folder)
    with servers.tower(folder, case.profile, case.seed) as server:
        properties = [rest(server, secret) for secret in _principals(case, server)]
        return _measured(case, load_catalog("bench", **rest(server)), properties, folder)


def _principals(case: Case, server: servers.Server) -> list[str]:
    """The secrets of the rewriters, then those of the appenders."""
    with Tower(server.uri, server.token) as tower:
        for role, operations in (("rewriter", "overwrite"), ("appender", "append")):
            more = CREATES_BRANCHES if role == "rewriter" and case.side in (BRANCHES, ALONE) else ""
            tower.apply_contract(CONTRACT.format(role=role, operations=operations) + more)
        roles = ["rewriter"] * case.rewriters + ["appender"] * case.appenders
        return [tower.create_principal(f"{role}-{number}", role) for number, role in enumerate(roles)]


def _measured(case: Case, catalog: Catalog, properties: Sequence[Mapping[str, str]], folder: Path) -> Record:
    seeds = _create(case, catalog)
    seats = [
        Seat(case.side, number, {**own, **slow_io.properties(case.profile, case.seed * 1000 + number)})
        for number, own in enumerate(properties)
    ]
    rewritten, appended, took_s = agents.run(case, seats, folder)
    return record(case, rewritten, appended, took_s) | {"wrong": wrong(seeds, rewritten, appended, _read(catalog))}


def _create(case: Case, catalog: Catalog) -> dict[int, int]:
    """Make the table; the ids of its rows, with their partitions."""
    catalog.create_namespace(NAMESPACE)
    declared = {} if case.side == PLAIN else {"icetower.blind-appends": "true"}
    declared |= {"icetower.intents": "required"} if case.side in INTENDING else {}
    table = catalog.create_table(NAME, SCHEMA, partition_spec=SPEC, properties=declared)
    seeds: dict[int, int] = {}
    for part in range(case.partitions):
        ids = [SEED_IDS + part * SEED_ROWS + at for at in range(SEED_ROWS)]
        table.append(rows(ids, part))
        seeds |= dict.fromkeys(ids, part)
    return seeds


def _read(catalog: Catalog) -> list[tuple[int, int]]:
    """The ids and versions of all rows."""
    found = catalog.load_table(NAME).scan().to_arrow()
    return list(zip(found["id"].to_pylist(), found["version"].to_pylist(), strict=True))


def record(case: Case, rewritten: Sequence[Rewrite], appended: Sequence[Appended], took_s: float) -> Record:
    """The figures of a run. Pure."""
    landed = [each for each in rewritten if each.landed]
    thought_s = sum(sum(each.thought_s) for each in rewritten)
    useful_s = sum(each.thought_s[-1] for each in landed)
    done_s = sorted(each.took_s for each in landed)
    append_s = sorted(each for its in appended for each in its.took_s)
    tries = sum(sum(each.failures.values()) for each in appended) + len(append_s)
    return {
        **asdict(case),
        "due": len(rewritten),
        "failed": len(rewritten) - len(landed),
        "attempts": sum(sum(each.failures.values()) for each in rewritten) + len(landed),
        "thought_s": thought_s,
        "wasted": 1 - useful_s / thought_s if thought_s else 0.0,
        "done_p50_s": percentile(done_s, 50) if done_s else None,
        "done_max_s": done_s[-1] if done_s else None,
        "took_s": took_s,
        "appended_rows": sum(len(each.ids) for each in appended),
        "appends_failed": sum(sum(each.failures.values()) for each in appended),
        "append_tries": tries,
        "append_p50_s": percentile(append_s, 50) if append_s else None,
        "append_max_s": append_s[-1] if append_s else None,
        "failures": dict(sum((each.failures for each in rewritten), Counter[str]())),
    }


def wrong(
    seeds: Mapping[int, int],
    rewritten: Sequence[Rewrite],
    appended: Sequence[Appended],
    found: Sequence[tuple[int, int]],
) -> int:
    """Rows that are missing, there twice, or in the wrong version. Pure.

    Each rewrite that landed has put every row of its partition into its next version: the rows that were there from the
    beginning have as many versions as rewrites landed on their partition. A rewrite that has undone another, or an
    append, shows here.
    """
    due = Counter(dict.fromkeys((*seeds, *(id_ for each in appended for id_ in each.ids)), 1))
    there = Counter(id_ for id_, _ in found)
    differ = sum(((due - there) + (there - due)).values())
    landed = Counter(each.partition for each in rewritten if each.landed)
    return differ + sum(version != landed[seeds[id_]] for id_, version in found if id_ in seeds)
