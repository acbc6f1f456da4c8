"""A small warehouse with something of everything that the page shows: one tower, a few agents, one of them stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from icetower.agent import Tower
from verify.kit.forger import Forger
from verify.kit.tower_process import TowerProcess

NAMESPACE = "shop"
TABLE = "shop.t"

LEASES = """\
tables:
  - {table: shop.t, operations: [overwrite], partitions: [{region: [5, 6]}]}
"""
BRANCHES = """\
tables:
  - {table: shop.t, operations: [append], write_location: table, partitions: [{region: 7}]}
  - {table: shop.t, operations: [refs], partitions: [{region: 7}]}
branches: {retain: 7d, checks: [row-counts, unique-ids], checked_by: [admin]}
"""
OWNER = """\
description: {description}
owner: {name} team <{name}@example.com>
tables:
  - table: shop.t
    operations: [append, delete]
    write_location: table
    blind_appends: {blind}
    partitions: [{{region: {region}}}]
escalation: {{after_failures: 3, within: 10m, to: Dana Ito <dana.ito@example.com>}}
"""
SLOTS = """\
tables:
  - table: shop.turns
    operations: [append]
    pattern: scheduler
    partitions:
      - slot: {every: 10m, from: 0s, to: 4m}
  - table: shop.turns
    operations: [append]
    pattern: scheduler
    partitions:
      - slot: {every: 10m, from: 5m, to: 9m}
"""


class PageWorld:
    """The warehouse.

    Attributes:
        secrets: of the principals, by name.
        leases: the intents that are there: one is held, and one waits for it.
    """

    def __init__(self, data: Path, *arguments: str) -> None:
        self.tower = TowerProcess(data, *arguments)
        self.secrets: dict[str, str] = {}
        self.leases: list[str] = []
        self._forgers: list[Forger] = []

    def stop(self) -> int:
        for forger in self._forgers:
            forger.http.close()
        return self.tower.stop()

    def forger(self, name: str | None = None) -> Forger:
        """A writer: a principal's, or the administrator's."""
        forger = Forger(self.tower.client(None if name is None else self.secrets[name]), NAMESPACE)
        self._forgers.append(forger)
        return forger

    def principal(self, name: str, contract: str) -> None:
        self.secrets[name] = self.tower.principal(name, contract)

    def owner(self, name: str, region: int, description: str, blind: str = "true") -> None:
        self.principal(name, OWNER.format(name=name, region=region, description=description, blind=blind))

    def hold(self) -> None:
        """One agent holds rows, another waits for them, and a third has a branch, of which one check has passed."""
        for name in ("rewriter", "rewriter-2"):
            self.principal(name, LEASES)
            wanted = {"table": TABLE, "partitions": [{"region": [5, 6]}]}
            with Tower(self.tower.uri, self.secrets[name]) as agent:
                self.leases.append(agent.declare_intent([wanted], ttl_s=3_600, queue=True)["intent"])
        self.principal("audited", BRANCHES)
        forger = self.forger("audited")
        base = forger.load()
        stands = [
            {"type": "assert-table-uuid", "uuid": base["table-uuid"]},
            {"type": "assert-ref-snapshot-id", "ref": "audit", "snapshot-id": None},
        ]
        made = {"ref-name": "audit", "type": "branch", "snapshot-id": base["refs"]["main"]["snapshot-id"]}
        _landed(forger.commit(stands, [{"action": "set-snapshot-ref", **made}]))
        _landed(forger.send(forger.append("b.parquet", partition=(7, 1), ref="audit")))
        metadata = self.tower.admin.load(TABLE)["metadata"]
        snapshot = metadata["refs"]["audit"]["snapshot-id"]
        self.tower.admin.report_check(TABLE, snapshot, "row-counts", passed=True, details="12 rows")

    def work(self) -> None:
        """Agents at work: some land, one is refused until it is stopped, one is sent back, one sends twice."""
        with self.tower.client() as http:
            http.post("/v1/namespaces", json={"namespace": [NAMESPACE]}).raise_for_status()
        self.forger().create()
        self.owner("pricing", 1, "keeps the prices of the region")
        self.owner("stock", 2, "counts what is on the shelves")
        self.owner("promotions", 3, "writes the promotions of the week")
        self.owner("returns", 1, "takes back what was returned", blind="false")
        self.principal("night-batch", SLOTS)
        pricing, stock, promotions, returns = map(self.forger, ("pricing", "stock", "promotions", "returns"))
        stale = pricing.load()
        for turn in range(4):
            _landed(pricing.send(pricing.append(f"p{turn}.parquet", partition=(1, turn))))
            _landed(stock.send(stock.append(f"s{turn}.parquet", partition=(2, turn), base=stale)))
        again = "01a0b1c2-d3e4-7f50-8a6b-0123456789ab"
        request = promotions.append("w1.parquet", partition=(3, 1))
        for _ in range(2):
            _landed(promotions.send(request, **{"Idempotency-Key": again}))
        sent_back = returns.send(returns.append("r.parquet", partition=(1, 2), base=stale))
        assert sent_back.status_code == 409, sent_back.text
        for turn in range(3):
            refused = promotions.send(promotions.append(f"x{turn}.parquet", partition=(1, 2)))
            assert refused.status_code == 403, refused.text
        stopped = promotions.send(promotions.append("y.parquet", partition=(3, 2)))
        assert stopped.json()["error"]["rule"] == "contract.escalated", stopped.text
        asked = Tower(self.tower.uri, self.secrets["promotions"])
        asked.request_partitions(
            TABLE, ["region=1/product=2"], operations=["append"], reason="The week's promotion is about that product."
        )
        asked.close()
        self.hold()
        self.tower.admin.report_orphans(
            [TABLE], [{"table": TABLE, "principal": "promotions", "files": 3, "bytes": 4096}]
        )
        self.tower.admin.report_lag("wal", {TABLE: 12.5})
        wrong = {
            "table": TABLE,
            "rule": "files.twice",
            "verdict": "definite",
            "times": 2,
            "witness": "<b>a.parquet</b>",
        }
        self.tower.admin.report_audit({TABLE: True}, [wrong])
        self.tower.admin.apply_contract(
            "version: 1\nagent: stock\n"
            + OWNER.format(name="stock", region="[2, 4]", description="counts", blind="true")
        )


def _landed(answer: Any) -> None:
    assert answer.status_code == 200, answer.text
