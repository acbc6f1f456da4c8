"""What came of rows that an agent has sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Operation = Literal["append", "upsert", "delete", "overwrite_partition", "transaction"]
Outcome = Literal["appended", "committed", "replayed", "empty"]


@dataclass(frozen=True, slots=True)
class LandedRequest:
    """One request's rows are in the table that they were written to.

    Attributes:
        key: of the request, as the tower knows it.
        attempts: how often it was sent.
    """

    key: str
    snapshot_id: int | None
    sequence_number: int | None
    outcome: Outcome
    rows: int
    attempts: int


@dataclass(frozen=True, slots=True)
class Written:
    """The rows are where the contract takes them, once.

    Attributes:
        operation, table: of the call.
        written_to: the table that they were written to: the log or delta table, or the table itself.
        outcome: ``appended`` by the rows door, ``committed`` by PyIceberg; ``replayed`` where all of them were there
            already, from an earlier call under the key; ``empty`` where there were none, and nothing was sent.
        snapshot_id: in which the last of them are; None where there were none, or where the table does not tell.
        key: of the call. Sent again under it, the rows are there once.
        requests: in which they were sent, in the order of the rows.
    """

    operation: Operation
    table: str
    written_to: str
    outcome: Outcome
    snapshot_id: int | None
    key: str
    rows: int
    requests: tuple[LandedRequest, ...] = ()
