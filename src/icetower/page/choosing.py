"""Which way an agent writes: five questions, as docs/choosing.md has them. `icetower plan` answers them by numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ChoosingQuestion:
    """A question, and what is chosen where it is answered with yes."""

    question: str
    choose: str
    gain: str
    cost: str


QUESTIONS = (
    ChoosingQuestion(
        "Does it only add rows, and are seconds of delay fine if hundreds of others do, too?",
        "a plain append, or the write-ahead log where rows must be checked one by one or come in a fixed order",
        "nothing is ever in vain: appends are not in each other's way",
        "the log: rows are visible after the mediator's next run",
    ),
    ChoosingQuestion(
        "Do many agents change the same rows, more often than they could take turns?",
        "the collector, or the write-ahead log",
        "thousands of changes become one commit; the last event wins",
        "a job to run; readers use the merged view until it has run",
    ),
    ChoosingQuestion(
        "Does it own its rows: partitions that nobody else writes to?",
        "a contract with these partitions and `read_scope: owned`",
        "a stale commit is rebased, never repeated",
        "the ownership has to be true: nobody else in these partitions, no reads beyond them (a key in two partitions)",
    ),
    ChoosingQuestion(
        "Does it write at a fixed pace, by the clock?",
        "a slot",
        "it is alone in its slot, however long it thinks",
        "the wait for the slot; with many agents it is long",
    ),
    ChoosingQuestion(
        "Does it think for long about rows that others also write, or is its work checked before anybody sees it?",
        "an intent; a branch for work of several commits, or that is checked",
        "no work is in vain",
        "others wait, or the checks run twice",
    ),
)
