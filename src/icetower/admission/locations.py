"""Where a principal's data files go (trap A6): a place of its own under the table's, so that a file says whose it is.

The table itself doesn't know: each principal gets another `write.data.path` with the table, and Iceberg's clients
write there by themselves (`client_settings`).
In shadow mode it is given, too: so that what enforcing the contract would refuse is counted as it will be, and that
what runs while it is enforced writes to its own place already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from icetower.admission.refusals import LOCATION, Misplaced
from icetower.errors import ContractViolation
from icetower.iceberg.metadata import DATA_PATHS, data_location
from icetower.paths import is_under
from icetower.protocol.names import Identifier
from icetower.registry.principals import Principal
from icetower.rows.encoding import rows_folder
from icetower.table.client_properties import effect_of

JSON = Mapping[str, Any]

PATHS = (*DATA_PATHS, "write.metadata.path")
"""Properties that say where a table's files are written."""


def steers_clients(name: str) -> bool:
    """Whether a table's property of this name leads its clients elsewhere, or has them load code.

    PyIceberg and iceberg-go lay a table's properties over the settings of their catalog. Whoever sets one of these has
    all who read the table come to a storage, a proxy or a signer of the setter's choice, with their own credentials.
    """
    return effect_of(name) is not None


def own_path(principal: Principal, table: Identifier, location: str, properties: Mapping[str, str]) -> str | None:
    """The directory for a principal's own files of a table; None where it may write anywhere under the table.

    Args:
        location, properties: the table's own.
    """
    if principal.administrator or not principal.contract.on(table).own_location:
        return None
    return f"{data_location(location, properties)}/{principal.name}"


def roots_of(metadata: JSON) -> tuple[str, ...]:
    """Where a table's data files may lie; its location comes last."""
    properties: Mapping[str, str] = metadata.get("properties") or {}
    return (*(properties[name] for name in DATA_PATHS if properties.get(name)), metadata["location"])


def may_be_statistics(path: str, metadata: JSON) -> bool:
    """Whether a file of statistics may be called so: it is no data file, and no file of metadata.

    Iceberg's libraries write ``.stats`` and, for partitions, the table's file format; Trino writes ``.stats``, too.
    """
    folder = (metadata.get("properties") or {}).get("write.metadata.path") or f"{metadata['location']}/metadata"
    return is_under(path, folder) and path.endswith((".stats", ".puffin", ".parquet"))


def check_files(principal: Principal, table: Identifier, metadata: JSON, paths: Iterable[str]) -> None:
    """Raises `ContractViolation` for a file that is added outside of the table's places, and `Misplaced` for one that
    is in them, and not where the principal's own go."""
    roots = roots_of(metadata)
    properties: Mapping[str, str] = metadata.get("properties") or {}
    own = own_path(principal, table, metadata["location"], properties)
    # The folder of files made of rows is nobody's place: whose the rows are stands elsewhere. Such a file is added once
    # more where a commit that took it out is taken back.
    places = () if own is None else (own, rows_folder(metadata["location"], properties))
    apart: str | None = None
    for path in paths:
        if not any(is_under(path, root) for root in roots):
            raise ContractViolation(
                f"{principal.name} may not add the file {path} to {table}: it doesn't lie under "
                f"{' or '.join(reversed(roots))}, where the table's go",
                rule=LOCATION,
                files=(path,),
                next_step="fix_request",
            )
        if places and apart is None and not any(is_under(path, place) for place in places):
            apart = path
    if apart is not None:
        raise Misplaced(
            f"{principal.name} may not add the file {apart} to {table}: it doesn't lie under {own}, where its own "
            "files go; load the table, whose write.data.path says so, and write it there",
            rule=LOCATION,
            files=(apart,),
            next_step="refresh",
        )
