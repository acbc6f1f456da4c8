"""What the tests of the auditor share: audits of tables in memory, and cases whose writers say what they have read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from icetower.audit.auditor import Options, audit
from icetower.audit.findings import Report
from icetower.protocol.marks import FILTER, ISOLATION, READ_SNAPSHOT
from icetower_client_model.sketch import BY_CATEGORY, eq
from verify.histories.memory import Table

Case = Mapping[str, Any]
Said = tuple[str, str, tuple[int, ...]]


def audited(table: Table, options: Options | None = None) -> Report:
    return asyncio.run(audit(table.head, table.files, options))


def said(report: Report) -> list[Said]:
    """Rule, verdict and snapshots of each violation."""
    return [(each.rule.value, each.verdict.value, each.snapshots) for each in report.violations]


def with_words(case: Case, level: str = "snapshot") -> dict[str, Any]:
    """The case, with what the SDK has its writers say: what was the head when they began, and their filter."""
    head: int | None = None
    steps: list[dict[str, Any]] = []
    for step in case["steps"]:
        step = dict(step)
        if step["do"] in ("begin", "write") and step["op"]["kind"] not in ("append", "fast-append"):
            op = dict(step["op"])
            words = {READ_SNAPSHOT: "none" if head is None else str(head)}
            read = op.get("conflict_filter", op.get("filter"))
            if op["kind"] == "replace-partitions" and case["specs"] == [*BY_CATEGORY]:
                read = eq("category", case["files"][op["add"][0]]["partition"][0])
            if read is not None:
                words |= {FILTER: json.dumps(read), ISOLATION: level}
            step["op"] = op | {"summary": words}
        if step["do"] in ("commit", "write"):
            head = step["id"]
        steps.append(step)
    return {**case, "steps": steps}
