"""Figures over the wire: what the control API and `/metrics` say of real clients' writes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from pyiceberg.exceptions import ForbiddenError

from icetower.agent import Tower
from icetower.errors import Forbidden
from verify.kit.tower_process import SCHEMA, TowerProcess

ROWS = pa.table({"id": pa.array([1], pa.int64()), "region": ["eu"]})
TOKEN = "a-token-for-scraping-only"
CONTRACT = """owner: eve@example.com
tables:
  - table: {table}
    operations: [append]
    partitions: all
"""


def samples(text: str) -> list[Sample]:
    """Every sample, as prometheus-client's own parser reads them. It raises for what is not OpenMetrics."""
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def value(found: list[Sample], name: str, **labels: str) -> float:
    (sample,) = [each for each in found if each.name == name and labels.items() <= each.labels.items()]
    return sample.value


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TowerProcess]:
    folder = tmp_path_factory.mktemp("scraped")
    settings = folder / "icetower.toml"
    settings.write_text('[server]\nmetrics_token_env = "SCRAPE"\n')
    tower = TowerProcess(folder / "data", "--config", str(settings), environment={"SCRAPE": TOKEN})
    yield tower
    assert tower.stop() == 0, tower.log.read_text()


def scrape(tower: TowerProcess, token: str | None) -> httpx2.Response:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return httpx2.get(f"{tower.uri}/metrics", headers=headers, timeout=30)


def get(tower: TowerProcess, secret: str, path: str) -> Any:
    with httpx2.Client(headers={"Authorization": f"Bearer {secret}"}, timeout=30) as http:
        return http.get(f"{tower.uri}/icetower/v1/metrics{path}").raise_for_status().json()


def made(tower: TowerProcess, namespace: str) -> str:
    tower.catalog().create_namespace(namespace)
    with tower.client() as http:
        http.post(f"/v1/namespaces/{namespace}/tables", json={"name": "t", "schema": SCHEMA}).raise_for_status()
    return f"{namespace}.t"


def test_what_agents_did_is_in_the_figures_and_each_sees_its_own(scraped: TowerProcess) -> None:
    table = made(scraped, "figures")
    secrets = {name: scraped.principal(name, CONTRACT.format(table=table)) for name in ("fig-a", "fig-b")}
    mine = scraped.catalog(secrets["fig-a"]).load_table(table)
    mine.append(ROWS)
    with pytest.raises(ForbiddenError):
        mine.delete("id = 1")
    shown = get(scraped, scraped.secret, f"?table={table}")
    rows = {row["principal"]: row for row in shown["windows"]}
    assert (rows["fig-a"]["attempts"], rows["fig-a"]["landed"], rows["fig-a"]["refused"]) == (2, 1, 1)
    assert rows["fig-a"]["commit_success_rate"] == 0.5
    assert shown["window_s"] == 300
    assert rows["fig-a"]["window_ms"] % 300_000 == 0
    assert rows["fig-a"]["latency_p99_ms"] <= rows["fig-a"]["latency_max_ms"]
    own = get(scraped, secrets["fig-b"], "?principal=fig-a")
    assert {row["principal"] for row in [*own["windows"], *own["totals"]]} <= {"fig-b"}


def test_a_monitoring_system_reads_openmetrics_with_its_own_token(scraped: TowerProcess) -> None:
    table = made(scraped, "scraping")
    secret = scraped.principal("scraped", CONTRACT.format(table=table))
    scraped.catalog(secret).load_table(table).append(ROWS)
    with scraped.client() as http:
        report = {"tables": [table], "orphans": [{"table": table, "files": 3, "bytes": 99}]}
        http.put("/icetower/v1/metrics/orphans", json=report).raise_for_status()
        http.put("/icetower/v1/metrics/wal-lag", json={"lags": [{"table": table, "lag_s": 7}]}).raise_for_status()
    answer = scrape(scraped, TOKEN)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    found = samples(answer.text)
    assert value(found, "icetower_agent_write_attempts", principal="scraped", table=table) == 1
    assert value(found, "icetower_agent_write_retry_rate", principal="scraped", table=table) == 0
    assert value(found, "icetower_metadata_churn_per_hour", table=table, kind="versions") > 0
    assert value(found, "icetower_orphaned_files", table=table) == 3
    assert value(found, "icetower_pattern_lag_seconds", table=table, kind="wal") == 7
    landed = sum(s.value for s in found if s.name == "icetower_write_attempts_total" and not s.labels["rule"])
    counted = value(found, "icetower_write_latency_seconds_count", step="commit")
    assert 1 <= counted <= landed
    assert value(found, "icetower_swaps_total") >= 1
    assert value(found, "icetower_control_up") == 1
    assert value(found, "process_cpu_seconds_total") > 0
    assert {"icetower_queue_depth", "icetower_ledger_backlog", "icetower_bypasses_total"} <= {s.name for s in found}
    assert scrape(scraped, scraped.secret).text == answer.text  # made once for all who ask within seconds


@pytest.mark.parametrize("token", [None, "wrong", TOKEN[:-1], TOKEN + "x", hashlib.sha256(TOKEN.encode()).hexdigest()])
def test_nobody_else_reads_it(scraped: TowerProcess, token: str | None) -> None:
    answer = scrape(scraped, token)
    assert answer.status_code == 401
    assert "icetower_" not in answer.text


def test_an_agent_s_credential_does_not_open_it_and_its_token_opens_nothing_else(scraped: TowerProcess) -> None:
    secret = scraped.principal("curious", CONTRACT.format(table="no.table"))
    assert scrape(scraped, secret).status_code == 403
    with httpx2.Client(headers={"Authorization": f"Bearer {TOKEN}"}) as http:
        assert http.get(f"{scraped.uri}/icetower/v1/metrics").status_code == 401
        assert http.get(f"{scraped.uri}/v1/config").status_code == 401


def test_agents_report_nothing(scraped: TowerProcess) -> None:
    secret = scraped.principal("reporter", CONTRACT.format(table="no.table"))
    with httpx2.Client(headers={"Authorization": f"Bearer {secret}"}) as http:
        for kind, body in (("orphans", {"tables": [], "orphans": []}), ("wal-lag", {"lags": []})):
            assert http.put(f"{scraped.uri}/icetower/v1/metrics/{kind}", json=body).status_code == 403


def test_a_pipeline_says_how_far_the_tables_are_behind_that_it_writes_to(scraped: TowerProcess) -> None:
    table = made(scraped, "behind")
    secret = scraped.principal("bringer", "role: pipeline\n" + CONTRACT.format(table=table))
    with Tower(scraped.uri, secret) as mine:
        mine.report_lag("collector", {table: 12.5})
        with pytest.raises(Forbidden, match=r"behind\.other"):
            mine.report_lag("wal", {table: 1.0, "behind.other": 1.0})
    with scraped.client() as http:
        shown = http.get("/icetower/v1/metrics/reports").json()["reports"]
    assert [(each["kind"], each["value"]) for each in shown if each["table"] == table] == [("collector-lag", 12.5)]


def test_maintenance_says_which_orphans_are_left_in_tables_that_it_reads(scraped: TowerProcess) -> None:
    table = made(scraped, "left")
    secret = scraped.principal("keeper", "role: maintenance\n" + CONTRACT.format(table=table).replace("append", "read"))
    found = {"table": table, "principal": "gone", "files": 2, "bytes": 10}
    with Tower(scraped.uri, secret) as mine:
        mine.report_orphans([table], [found])
        with pytest.raises(Forbidden, match=r"left\.other"):
            mine.report_orphans(["left.other"], [])
        with pytest.raises(Forbidden, match="not an administrator"):
            mine.report_lag("wal", {table: 1.0})
    with scraped.client() as http:
        shown = http.get("/icetower/v1/metrics/reports").json()["reports"]
    assert [(each["principal"], each["value"]) for each in shown if each["table"] == table] == [("gone", 2)]


def test_findings_of_a_whole_audit_replace_earlier_ones_and_those_of_a_part_stay(scraped: TowerProcess) -> None:
    table = made(scraped, "audited")
    admin, first = scraped.admin, {"table": table, "rule": "files.twice", "verdict": "definite"}

    def found() -> list[tuple[str, float]]:
        with scraped.client() as http:
            shown = http.get("/icetower/v1/metrics/reports").json()["reports"]
        return sorted((each["principal"], each["value"]) for each in shown if each["table"] == table)

    admin.report_audit({table: True}, [first])
    admin.report_audit({table: False}, [{**first, "rule": "rows.back", "times": 3}])
    assert found() == [("", 0), ("files.twice", 1), ("rows.back", 3)]
    admin.report_audit({table: True}, [])
    assert found() == [("", 0)]
    secret = scraped.principal("auditor", "role: maintenance\n" + CONTRACT.format(table=table))
    with Tower(scraped.uri, secret) as other, pytest.raises(Forbidden, match="not an administrator"):
        other.report_audit({table: True}, [])


def test_figures_outlive_a_restart(start_tower: Callable[..., TowerProcess], tmp_path: Path) -> None:
    first = start_tower()
    table = made(first, "restart")
    first.catalog().load_table(table).append(ROWS)
    before = get(first, first.secret, "")
    assert first.stop() == 0
    second = TowerProcess(tmp_path / "data")
    try:
        assert get(second, second.secret, "")["totals"] == before["totals"]
    finally:
        assert second.stop() == 0
