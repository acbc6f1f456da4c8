"""`icetower export`: a PySpark job that writes the tower's log into Iceberg tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from icetower.cli.registry import DEFAULT_URI, Json, Uri, connect
from icetower.cli.spark import Conf, Master, job_session, need_spark, spark_errors, waiting
from icetower.cli.terminal import say, warn
from icetower.counting import number_of


@spark_errors("interrupted; what is committed stays, and the next run continues from there")
def export(
    uri: Uri = DEFAULT_URI,
    system: Annotated[str, typer.Option(help="Namespace of the system tables.")] = "system",
    team: Annotated[
        list[str] | None,
        typer.Option(
            help="Also write tables of a team, in the namespace SYSTEM_NAME: NAME=WHO,WHO with owners or names of "
            "contracts, or NAME alone."
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    as_json: Json = False,
) -> None:
    """Write what the tower has logged into its system tables.

    These are attempts to commit, the keys of commits, the metrics of agents' writes, and the versions of contracts, in
    Iceberg tables that Spark and PyIceberg read. Each attempt is written once, however often this is killed and run
    again; two runs at once are safe. For administrators.

    \b
    Example:
      icetower export --team pricing=pricing@example.com
    """
    need_spark()
    from icetower.pipelines.export import Source
    from icetower.pipelines.export import export as write
    from icetower.pipelines.session import CATALOG
    from icetower.pipelines.system_teams import Team

    with connect(uri) as tower:
        tower.commits_after(0, 1)  # who may not read the log is told before Spark starts
        source = Source.of(tower)
        contracts, bindings = (source.contracts(), source.bindings()) if team else ((), {})
        teams = [Team.of(each, contracts, bindings) for each in team or ()]
        spark = job_session("icetower-export", uri, master, conf)
        try:
            with waiting("exporting"):
                done = write(spark, f"{CATALOG}.{system}", source, teams=teams)
        finally:
            spark.stop()
    if done.lost_at_most:
        warn(
            f"the log had let go of up to {number_of(done.lost_at_most, 'attempt')} since the last export: "
            "run it more often"
        )
    if as_json:
        say(json.dumps(asdict(done)))
    else:
        say(
            f"{number_of(done.attempts, 'attempt')}, {number_of(done.keys, 'key')}, "
            f"{number_of(done.windows, 'window')} of metrics, {number_of(done.contracts, 'version')} of contracts"
        )
