"""`GET /icetower/v1/shadow`: what contracts in shadow mode would have refused, and the retries that rebasing spares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.responses import Response
from starlette.routing import Route

from icetower.contracts.model import ENFORCE, SHADOW
from icetower.errors import NotFound
from icetower.gateway.http import Call, Front, json_response, route
from icetower.ledger.attempts import Outcome, percentile
from icetower.ledger.shadow import Ended, ShadowCount
from icetower.registry.registry import Registry
from icetower.registry.versions import ContractVersion, parsed
from icetower.service.journal import Journal

REVOKED = "revoked"
PERCENTILES = (50, 95, 99)
WORDS: Mapping[str, tuple[str, str]] = {
    "rebase.not-blind": ("blind_appends: true", "what it appends depends on nothing that it has read of the table"),
    "rebase.reads": ("read_scope: owned", "its writes depend on no rows but those of partitions that it owns"),
}
"""By the rule of a refusal that sent a commit back: the clause that lets it go on, and what must be true for that."""


class ShadowRoutes:
    """The route of the shadow report."""

    def __init__(self, front: Front, registry: Registry, journal: Journal) -> None:
        self._front = front
        self._registry = registry
        self._journal = journal

    def routes(self) -> list[Route]:
        return [route(self._front, "GET", "/icetower/v1/shadow", self.shadow_report)]

    async def shadow_report(self, call: Call) -> Response:
        """For administrators: of all contracts in shadow mode, or of one, `?contract=`, whatever its mode.

        Raises `NotFound` for a contract that there has never been.
        """
        call.require_overseer()
        name = call.query("contract")
        ledger, registry = await self._journal.read_through(), self._registry
        newest = {version.name: version for version in await registry.contracts()}
        if name is not None and name not in newest:
            raise NotFound(f"there has never been a contract {name}", rule="contract.exists")
        shown = [v for v in newest.values() if v.name == name or (name is None and _mode(v) == SHADOW)]
        counted = await ledger.shadowed(name)
        bound = [record for record in await registry.principals() if record.revoked_ms is None]
        reports: list[dict[str, Any]] = []
        for version in shown:
            principals = [record.name for record in bound if record.contract == version.name]
            endings = await ledger.endings(principals, since_ms=version.applied_ms)
            reports.append(
                _report(version, principals, [row for row in counted if row.last.contract == version.name], endings)
            )
        return json_response({"contracts": reports})


def _mode(version: ContractVersion) -> str:
    if version.text is None:
        return REVOKED
    return SHADOW if parsed(version.name, version.text).shadow else ENFORCE


def _report(
    version: ContractVersion, principals: Sequence[str], counted: Sequence[ShadowCount], endings: Sequence[Ended]
) -> dict[str, Any]:
    """One contract: what its versions would have refused, and how attempts have ended under the newest."""
    return {
        "contract": version.name,
        "version": version.version,
        "mode": _mode(version),
        "since_ms": version.applied_ms,
        "refusals": [_refusal(row) for row in counted],
        "principals": [_spared(name, [each for each in endings if each.principal == name]) for name in principals],
    }


def _refusal(row: ShadowCount) -> dict[str, Any]:
    said = asdict(row.last)
    return {"count": row.count, "first_ms": row.first_ms, "last_ms": said.pop("at_ms"), **said}


def _spared(principal: str, endings: Sequence[Ended]) -> dict[str, Any]:
    """The refusals that rebasing has spared a principal, and those that it would have spared with a declaration."""
    outcomes: Counter[str] = Counter()
    latencies: dict[str, list[float]] = {}
    for ended in endings:
        outcomes[ended.outcome] += len(ended.latencies_ms)
        latencies.setdefault(ended.outcome, []).extend(ended.latencies_ms)
    sent_back = {ended.rule: len(ended.latencies_ms) for ended in endings if ended.outcome == Outcome.CONFLICT}
    return {
        "principal": principal,
        "outcomes": dict(sorted(outcomes.items())),
        "retries_spared": outcomes[Outcome.REBASED],
        "latency_ms": {
            outcome.value: {f"p{at}": percentile(latencies[outcome], at) for at in PERCENTILES}
            for outcome in (Outcome.DIRECT, Outcome.REBASED, Outcome.APPENDED)
            if outcome in latencies
        },
        "retries_to_spare": [
            {"rule": rule, "count": sent_back[rule], "clause": clause, "provided": provided}
            for rule, (clause, provided) in WORDS.items()
            if rule in sent_back
        ],
    }
