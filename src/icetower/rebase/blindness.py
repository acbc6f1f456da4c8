"""Is an append blind? A blind append has read nothing that it depends on, so it may be rebased without checks.

The summary's word "append" is not enough: a MERGE that only inserts, an overwrite whose filter matched nothing and a
cherry-picked snapshot are all recorded as `append`, and rebasing them unchecked doubles rows (trap R1). So an append
counts as blind only where it is *known* to be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from icetower.protocol.marks import BLIND
from icetower.rebase.revalidation import is_merge, only_its_client_validates, says_what_it_read

_SPARK_WITH_MARKS = (4, 1)


def known_blind(summary: Mapping[str, Any], *, declared: bool) -> bool:
    """Whether an append with this snapshot summary is known to be blind.

    Args:
        summary: the snapshot's summary as the client sent it.
        declared: the table property or the principal's contract declares every append blind.

    The caller has made sure from the manifests that the change only adds data files; this decides the rest.
    """
    if summary.get("operation") != "append":
        return False
    # What shows that it has read is not made blind by a declaration, whoever makes it (trap R10).
    if only_its_client_validates(summary) is not None or is_merge(summary) or says_what_it_read(summary):
        return False
    return declared or str(summary.get(BLIND, "")).lower() == "true" or _spark_says_so(summary)


def _spark_says_so(summary: Mapping[str, Any]) -> bool:
    """Spark 4.1 marks its MERGEs; the modules for 3.5 and 4.0 don't, so their silence proves nothing."""
    # Only its own writers say which application they run in: whoever uses Iceberg's API inside a Spark session, and
    # may have validated what he appends, does not.
    if summary.get("engine-name") != "spark" or not summary.get("spark.app.id"):
        return False
    version = re.match(r"(\d{1,9})\.(\d{1,9})", str(summary.get("engine-version", "")))
    return version is not None and (int(version[1]), int(version[2])) >= _SPARK_WITH_MARKS
