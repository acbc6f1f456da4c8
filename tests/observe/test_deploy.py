"""`deploy/` and docs/metrics.md name what `/metrics` has, and are of the shape that Prometheus and Grafana read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from icetower.gateway.exposition import PAIRS_MAX, Figures, Local, expose
from icetower.gateway.intents import families
from icetower.intents.model import State
from icetower.ledger.attempts import Attempt, Outcome
from icetower.ledger.metrics import ORPHANS, WAL_LAG, Report
from icetower.ledger.tallies import Counted, Tally

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
FUNCTIONS = {
    "max", "min", "sum", "by", "rate", "increase", "and", "or", "topk", "bottomk", "histogram_quantile",
}  # fmt: skip
ELSEWHERE = {"up"}
"""Prometheus's own."""


def tally(count: int = 1, outcome: Outcome = Outcome.DIRECT) -> Tally:
    found = Tally()
    one = Attempt(
        "p", "t", "append", outcome, latency_ms=1_000, decided_ms=0, group_size=1, metadata_bytes=9, manifests=1
    )
    for _ in range(count):
        found.add(Counted.of(one, 2_000, first=True))
    return found


def figures(pairs: int = 1) -> Figures:
    recent = {(f"p{n}", "ns.t"): tally(1 + n) for n in range(pairs)}
    every = tally(sum(each.attempts for each in recent.values()) + 3, Outcome.DIRECT)
    reports = [Report(ORPHANS, "ns.t", "a", 3, 1, {"bytes": 9}), Report(WAL_LAG, "ns.t", "", 7, 1)]
    outcomes = {("direct", ""): 5, ("refused", "contract.partitions"): 2}
    return Figures(outcomes, recent, every, {"ns.t": tally()}, tally(), 1.0, every, reports, 1)


def exposed(found: Figures | None) -> str:
    from prometheus_client.core import GaugeMetricFamily

    alerts = GaugeMetricFamily("icetower_alerts", "Alerts.", labels=["rule", "state"])
    alerts.add_metric(["retry-rate", "firing"], 0)
    return expose(
        Local(0, 0, 0.0, 0, 0, 1, fences={"fenced": 1}), found, [alerts, *families({State.HELD: 1}, 2, 3)]
    ).decode()


NAMES = {sample.name for family in text_string_to_metric_families(exposed(figures())) for sample in family.samples}


def names_in(expression: str) -> set[str]:
    """The metrics that an expression of PromQL names."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\bby\s*\([^)]*\)|\"[^\"]*\"", " ", expression)
    return set(re.findall(r"[a-zA-Z_:][a-zA-Z0-9_:]*", bare)) - FUNCTIONS - ELSEWHERE


def rules() -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load((DEPLOY / "prometheus-rules.yml").read_text())["groups"]:
        assert group.keys() == {"name", "rules"}
        yield from group["rules"]


@pytest.mark.parametrize("rule", list(rules()), ids=lambda rule: rule["alert"])
def test_each_rule_of_prometheus_names_what_there_is(rule: dict[str, Any]) -> None:
    assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "0s"))
    assert rule["annotations"].keys() == {"summary", "description"}
    assert rule["expr"].count("(") == rule["expr"].count(")")
    assert names_in(rule["expr"]) <= NAMES
    assert names_in(rule["expr"]) or "up{" in rule["expr"]


def test_the_rules_cover_the_five_metrics() -> None:
    five = {"icetower_agent_write_retry_rate", "icetower_commit_first_try_success", "icetower_metadata_churn_per_hour"}
    five |= {"icetower_orphaned_files", "icetower_write_latency_seconds_bucket"}
    assert five <= {name for rule in rules() for name in names_in(rule["expr"])}
    assert names_in("max(icetower_no_such_name) > 0") - NAMES == {"icetower_no_such_name"}  # the check can fail


def test_the_dashboard_can_be_imported_and_names_what_there_is() -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    assert dashboard["uid"] == "icetower"
    seen: set[str] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["datasource"]["uid"] == "${datasource}"
        for target in panel["targets"]:
            assert names_in(target["expr"]) <= NAMES, panel["title"]
            seen |= names_in(target["expr"])
    assert len(seen) >= 12


def test_what_scrapes_is_configured_as_the_documentation_says() -> None:
    found = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    (job,) = found["scrape_configs"]
    assert (job["metrics_path"], job["authorization"]["type"]) == ("/metrics", "Bearer")
    assert all((DEPLOY / name).is_file() for name in found["rule_files"])


def test_every_name_of_the_page_is_there_and_every_one_is_on_the_page() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = set(re.findall(r"`(icetower_\w+)`", page))
    families = {
        re.sub(r"_(bucket|count|sum|total|created)$", "", name) for name in NAMES if name.startswith("icetower")
    }
    assert families == {re.sub(r"_total$", "", name) for name in named}


def test_labels_are_bounded_and_the_rest_is_other() -> None:
    text = exposed(figures(PAIRS_MAX + 50))
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    attempts = [s for s in samples if s.name == "icetower_agent_write_attempts"]
    assert len(attempts) == PAIRS_MAX + 1
    (other,) = [s for s in attempts if s.labels["principal"] == "other"]
    assert other.value == 3 + sum(range(1, 51))
    assert sum(s.value for s in attempts) == 3 + sum(range(1, PAIRS_MAX + 51))


def test_without_the_control_database_the_process_is_still_shown() -> None:
    names = {s.name: s.value for family in text_string_to_metric_families(exposed(None)) for s in family.samples}
    assert names["icetower_control_up"] == 0
    assert "icetower_queue_depth" in names
    assert "icetower_write_attempts_total" not in names


def test_hostile_names_are_escaped() -> None:
    pair = ('a"\n\\evil{x="y"} 1', "ns.\u2028t")
    text = exposed(Figures({}, {pair: tally()}, tally(), {}, Tally(), 1.0, Tally(), [], 0))
    (found,) = [
        s.labels
        for family in text_string_to_metric_families(text)
        for s in family.samples
        if s.name == "icetower_agent_write_attempts"
    ]
    assert (found["principal"], found["table"]) == pair
