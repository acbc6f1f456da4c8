"""The delete files of a job as files: position deletes in Parquet, deletion vectors in Puffin.

A job says under `positions` which rows of which data files each of its delete files deletes. Both Iceberg and the tower
read them: Iceberg to tell what is left of a snapshot, the tower to see what two commits delete.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icetower.iceberg.puffin import write
from icetower.iceberg.vectors import Vector, as_blob

Job = dict[str, Any]
Positions = Mapping[str, Mapping[str, list[int]]]

SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={b"PARQUET:field_id": b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={b"PARQUET:field_id": b"2147483545"}),
    ]
)


def path_of(job: Mapping[str, Any], name: str) -> str:
    """The path of a file of a job, by its name there."""
    file = job["files"][name]
    ending = "puffin" if file["content"] == "dv" else "parquet"
    return file.get("path") or f"mem://t/data/{name}.{ending}"


def positions_of(job: Mapping[str, Any]) -> Positions:
    """The rows that the delete files of a job delete; a job that was shrunk tells of files that it has no more."""
    return {name: rows for name, rows in job.get("positions", {}).items() if name in job["files"]}


def written(job: Mapping[str, Any], directory: Path) -> Job:
    """The job with its delete files written into a directory, and what it says of them made true."""
    directory.mkdir(parents=True, exist_ok=True)
    files = dict(job["files"])
    for name, targets in positions_of(job).items():
        rows = {path_of(job, target): positions for target, positions in targets.items()}
        said = {key: value for key, value in files[name].items() if key != "path"}
        records = sum(map(len, rows.values()))
        if said["content"] == "dv":
            ((target, positions),) = rows.items()
            data, (blob,) = write([as_blob(Vector.of(positions), target)], created_by="a job")
            path = directory / f"{name}.puffin"
            path.write_bytes(data)
            said |= {"offset": blob.offset, "length": blob.length_bytes}
        else:
            path = directory / f"{name}.parquet"
            table = [(target, at) for target, positions in sorted(rows.items()) for at in positions]
            columns = [[target for target, _ in table], [at for _, at in table]]
            pq.write_table(pa.table(columns, schema=SCHEMA), path)
        files[name] = said | {"path": path.as_uri(), "size": path.stat().st_size, "records": records}
    return {**{key: value for key, value in job.items() if key != "positions"}, "files": files}
