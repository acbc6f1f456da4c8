"""Where a job runs: nobody's choice of a master is overridden. Without a JVM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkConf, SparkContext

from icetower.errors import ConfigurationError
from icetower.pipelines import placement, session
from icetower.pipelines.placement import MASTER, Placement, Start


@pytest.fixture(autouse=True)
def _nobody_has_started_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    for name in ("PYSPARK_GATEWAY_PORT", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONF_DIR", "SPARK_HOME"):
        monkeypatch.delenv(name, raising=False)


def submitted(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda: None)
    monkeypatch.setattr(SparkConf, "__init__", lambda _: None)
    monkeypatch.setattr(SparkConf, "getAll", lambda _: list(settings.items()))


def wanted(asked: dict[str, str]) -> dict[str, str]:
    return session._wanted_of(placement.find(asked), asked) | asked


def test_without_anybodys_choice_spark_runs_on_all_cores_of_this_machine() -> None:
    chosen = wanted({})
    assert (chosen[MASTER], chosen["spark.driver.host"]) == ("local[*]", "127.0.0.1")
    assert chosen["spark.jars.packages"] == session.ICEBERG_RUNTIME


def test_workers_start_from_our_module_where_our_package_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    module = "spark.python.daemon.module"
    assert wanted({})[module] == "icetower.pipelines.python_workers"
    assert module not in wanted({MASTER: "spark://there:7077"})
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/another/python")
    assert module not in wanted({})


def test_a_driver_whose_executors_are_elsewhere_does_not_hide_on_loopback() -> None:
    chosen = wanted({MASTER: "spark://there:7077"})
    assert chosen[MASTER] == "spark://there:7077"
    assert not {"spark.driver.host", "spark.driver.bindAddress"} & chosen.keys()


def test_spark_defaults_are_heard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.master local[9]\n  spark.master   spark://there:7077\nspark.sql.ansi.enabled=false\n\nspark.x\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    chosen = wanted({})
    # What the file says is not repeated: Spark itself reads it.
    assert not {MASTER, "spark.sql.ansi.enabled", "spark.driver.host"} & chosen.keys()
    assert wanted({MASTER: "local[3]"})[MASTER] == "local[3]"


def test_the_master_of_spark_submit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    submitted(monkeypatch, {MASTER: "yarn", "spark.sql.session.timeZone": "Asia/Tokyo"})
    chosen = wanted({})
    assert not {MASTER, "spark.jars.packages", "spark.driver.host", "spark.sql.session.timeZone"} & chosen.keys()
    assert chosen["spark.sql.extensions"] == session._EXTENSIONS
    assert placement.find({MASTER: "yarn"}).master == "yarn"
    with pytest.raises(ConfigurationError, match=r"asks for the master local\[2\], but spark-submit has yarn"):
        placement.find({MASTER: "local[2]"})


def test_a_running_session_keeps_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    class Running:
        _jsc = object()

        def getConf(self) -> Any:  # noqa: N802 - PySpark's name
            return self

        def getAll(self) -> list[tuple[str, str]]:  # noqa: N802
            return [(MASTER, "local[5]")]

    monkeypatch.setattr(SparkContext, "_active_spark_context", Running())
    assert placement.find({}) == Placement(Start.RUNNING, {MASTER: "local[5]"})
    assert wanted({"spark.sql.ansi.enabled": "false"}) == {"spark.sql.ansi.enabled": "false"}
    assert placement.find({MASTER: "yarn"}).master == "local[5]"


def test_spark_connect_is_refused_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="no access to Iceberg's Java classes"):
        placement.find({MASTER: "sc://there:15002"})
    monkeypatch.setenv("SPARK_REMOTE", "sc://there:15002")
    with pytest.raises(ConfigurationError, match="unset SPARK_REMOTE"):
        placement.find({})
