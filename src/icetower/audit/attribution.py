"""Who stands behind snapshots of the fast path: their group files name the principals whose appends they hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from icetower.audit.auditor import Source
from icetower.audit.wording import listed
from icetower.errors import IcetowerError
from icetower.protocol.marks import GROUP_FILE, PRINCIPAL
from icetower.table.groups import read_group

JSON = Mapping[str, Any]


async def attributed(source: Source, chain: Sequence[JSON], positions: Collection[int]) -> list[JSON]:
    """The same snapshots; those at some positions with the principals of their group files in their summaries.

    A group file that is gone or damaged names nobody.
    """
    named = [at for at in positions if GROUP_FILE in (chain[at].get("summary") or {})]
    read = await asyncio.gather(*(_principals(source, chain[at]) for at in named))
    found = list(chain)
    for at, principals in zip(named, read, strict=True):
        if principals:
            found[at] = {**chain[at], "summary": {**chain[at]["summary"], PRINCIPAL: principals}}
    return found


async def _principals(source: Source, snapshot: JSON) -> str:
    try:
        group = read_group(await source.read(str(snapshot["summary"][GROUP_FILE])))
    except IcetowerError:
        return ""
    return listed(sorted({append.principal for append in group.appends}))
