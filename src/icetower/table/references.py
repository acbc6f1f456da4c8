"""The files that a metadata file names itself. Pure.

The commands that delete or report orphaned files go by this list: a kind of file that is missing here is lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icetower.errors import BadRequest
from icetower.protocol.marks import GROUP_FILE


def named_by(metadata: Mapping[str, Any]) -> set[str]:
    """Manifest lists, statistics, earlier metadata files, and the group files of the fast path (trap K1).

    Manifests and data files are named by the manifest lists. A group file is named in its snapshot's summary; it holds
    the keys of appends, so it must stay for as long as its snapshot.

    Raises `BadRequest` where the metadata names a file in a way that nobody could read.
    """
    named: set[Any] = set()
    try:
        snapshots = metadata.get("snapshots") or ()
        named |= {s["manifest-list"] for s in snapshots if s.get("manifest-list") is not None}
        # The first writers of version 1 listed manifests inside a snapshot.
        named |= {path for s in snapshots for path in s.get("manifests") or ()}
        summaries = [s.get("summary") or {} for s in snapshots]
        named |= {summary[GROUP_FILE] for summary in summaries if GROUP_FILE in summary}
        for part in ("statistics", "partition-statistics"):
            named |= {entry["statistics-path"] for entry in metadata.get(part) or ()}
        named |= {entry["metadata-file"] for entry in metadata.get("metadata-log") or ()}
    except (AttributeError, KeyError, TypeError) as error:
        raise BadRequest(f"the table's metadata names a file in no known way: {error}", rule="metadata") from error
    if not all(isinstance(path, str) for path in named):
        raise BadRequest("the table's metadata names a file by what is no text", rule="metadata")
    return named
