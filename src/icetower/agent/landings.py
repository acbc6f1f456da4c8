"""After a lost answer: has the write landed, and will it never?"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from icetower.agent.failures import error_of
from icetower.agent.keys import request_key
from icetower.errors import IcetowerError, UsageError
from icetower.protocol.names import Identifier, namespace_to_path

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Landed:
    """What a tower knows of a write.

    Attributes:
        landed: True: it is in the table, or was until it expired. False: the table does not have it now, or not all of
            it. None: it is unknown, and `error` says why.
        snapshot: the snapshot as which it landed; of several requests, the last of those that did.
        fenced: nothing lands under its key, or its number, any more. Without a fence, what is not there may still land.
        error: what a tower would answer if the write were sent again; None if it would take it, or has it.
        partly: its rows went in several requests, of which the first have landed, and the others have not.
    """

    landed: bool | None
    snapshot: int | None
    fenced: bool
    error: IcetowerError | None
    partly: bool = False

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Landed:
        """An answer's body (JSON)."""
        error = answer.get("error")
        refused = None if error is None else error_of(int(error["code"]), json.dumps({"error": error}).encode())
        return cls(answer["landed"], answer["snapshot-id"], bool(answer["fenced"]), refused)


def of_names(ask: Callable[[str | None], Landed], key: str | None) -> Landed:
    """What is known of a write by its key, or of the requests of rows that were sent under it.

    Several requests are sent one after the other: what is not there was followed by none. So the first of them tells
    whether any has landed, and a fence at the first one that is not there ends the call, whoever sends it. That one is
    searched for in few questions, since towers count them.

    Args:
        ask: asks the tower by a key; or sets a fence, which is answered likewise.
    """
    if key is None:
        return ask(None)
    answers: list[Landed] = []
    for name in dict.fromkeys((key, request_key(key, 0, 1), request_key(key, 0, 2))):
        answers.append(ask(name))
        if answers[-1].landed:
            break
    else:
        return next((each for each in answers if each.landed is None), answers[0])
    if name != request_key(key, 0, 2):
        return answers[-1]
    last = ask(request_key(key, 1, 2))
    if last.landed is not False:
        return last
    return _in_part(lambda number: ask(request_key(key, number, number + 2)), answers[-1])


def _in_part(ask: Callable[[int], Landed], first: Landed) -> Landed:
    """What is known of a call of which the first request has landed, and the last one has not."""
    there, least = first, 0
    beyond, most = ask(1), 1
    while beyond.landed:
        there, least, most = beyond, most, 2 * most
        beyond = ask(most)
    while most - least > 1:
        middle = (least + most) // 2
        found = ask(middle)
        if found.landed:
            there, least = found, middle
        else:
            beyond, most = found, middle
    return beyond if beyond.landed is None else replace(beyond, snapshot=there.snapshot, partly=True)


def query(
    key: str | None, application: tuple[str, int] | None, snapshot_id: int | None, ref: str, principal: str | None
) -> dict[str, str]:
    """The parameters of a question. Raises `UsageError` unless the write is named once."""
    if (key is not None) + (application is not None) + (snapshot_id is not None) != 1:
        raise UsageError("name the write by one of its key, its application and number, or its snapshot id")
    named = {"ref": ref} | ({} if principal is None else {"principal": principal})
    if application is not None:
        return named | {"application": application[0], "sequence": str(application[1])}
    return named | ({"snapshot-id": str(snapshot_id)} if key is None else {"key": key})


def fence(key: str | None, application: tuple[str, int] | None, ref: str, principal: str | None) -> JSON:
    """The body of a request for a fence. Raises `UsageError` unless the write is named once."""
    if (key is None) == (application is None):
        raise UsageError("name the write by one of its key, or its application and number")
    named: JSON = {"ref": ref} | ({} if principal is None else {"principal": principal})
    if application is not None:
        return named | {"application": {"id": application[0], "sequence": application[1]}}
    return named | {"key": key}


def route(table: str, name: str) -> str:
    """The path of a table's route. `table`: ``namespace.table``."""
    identifier = Identifier.parse(table)
    namespace = namespace_to_path(identifier.namespace)
    return f"/v1/namespaces/{namespace}/tables/{quote(identifier.name, safe='')}/{name}"
