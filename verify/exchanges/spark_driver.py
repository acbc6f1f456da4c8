"""Spark as a driver of a session; run by `run.py`.

    spark_driver.py URI

An act is ``{"attach": NAME, "token": TOKEN}`` or ``{"sql": STATEMENT}``.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from icetower.pipelines.session import catalog_settings, spark_session


def main() -> None:
    spark = spark_session("exchanges", settings={"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1"})
    for line in sys.stdin:
        act: dict[str, Any] = json.loads(line)
        try:
            if "attach" in act:
                access = {"type": "rest", "uri": sys.argv[1], "token": act["token"]}
                access["rest-metrics-reporting-enabled"] = "false"  # reports come when they come
                for name, value in catalog_settings(act["attach"], access).items():
                    spark.conf.set(name, value)
            else:
                spark.sql(act["sql"]).collect()
        except Exception as error:  # noqa: BLE001 - whatever the client raises is how it failed
            said = "failed: " + " ".join(str(error).split())[:500]
        else:
            said = "done"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
