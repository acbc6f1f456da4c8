"""The write settings of contracts on the tables of a catalog: finds the differences, and commits the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from icetower.cli.lake import JSON, Lake, part
from icetower.cli.polaris import Polaris
from icetower.contracts.model import Contract
from icetower.contracts.write_settings import properties_of, written_patterns
from icetower.errors import NotFound, UpstreamFailed
from icetower.protocol.names import Identifier


@dataclass(frozen=True, slots=True)
class Setting:
    """Properties of one table that must change.

    Attributes:
        uuid: the table's; a re-created table with the same name is not changed.
        wanted: the new values.
        now: the current values, None if unset.
    """

    table: Identifier
    uuid: str
    wanted: Mapping[str, str]
    now: Mapping[str, str | None]


class Tables:
    """The tables of one catalog.

    Args:
        http: its `uri` is that of the catalog's routes, without ``/v1``.
        warehouse: the catalog's name.
    """

    def __init__(self, http: Polaris, warehouse: str) -> None:
        self._http = http
        self._lake = Lake(http, warehouse)

    def settings(self, contracts: Sequence[Contract]) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
        """The settings to change, by table; and the tables that contracts name but that do not exist."""
        found: dict[Identifier, JSON] = {}
        missing: list[str] = []
        for pattern in written_patterns(contracts):
            for table in self._lake.matching(pattern):
                try:
                    if table not in found:
                        found[table] = part(self._lake.load(table), "metadata")
                except NotFound:
                    if pattern.last not in ("*", "**"):
                        missing.append(str(table))
        settings = (self._setting(table, metadata, contracts) for table, metadata in sorted(found.items()))
        return tuple(setting for setting in settings if setting.wanted), tuple(missing)

    def commit(self, setting: Setting) -> None:
        """Set the properties that differ, if the table is still the same one."""
        body = {
            "requirements": [{"type": "assert-table-uuid", "uuid": setting.uuid}],
            "updates": [{"action": "set-properties", "updates": dict(setting.wanted)}],
        }
        self._http.send("POST", self._lake.path(setting.table), body)

    def _setting(self, table: Identifier, metadata: JSON, contracts: Sequence[Contract]) -> Setting:
        now = part(metadata, "properties")
        uuid = metadata.get("table-uuid")
        if not isinstance(uuid, str):
            raise UpstreamFailed(f"{self._http.uri} describes {table} without its uuid", rule="grants.tables")
        wanted = {name: value for name, value in properties_of(table, contracts).items() if now.get(name) != value}
        return Setting(table, uuid, wanted, {name: now.get(name) for name in wanted})
