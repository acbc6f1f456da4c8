"""Hostile JSON, NDJSON and Arrow against the reader of rows: refused as the sender's fault, soon, in little memory.

    rows_fuzz.py --inputs N          N bodies (default 1,000,000), in one process for each core
    rows_fuzz.py --input N           one of them again, with its outcome
    rows_fuzz.py --start N           from that number on
    rows_fuzz.py --seed S            other bodies

Each body goes through `parse_rows` and `decoded`, and its rows are parted by one of many partition specs. A body that
is taken must become a valid Arrow table of the table's schema, and Parquet files with as many rows. Another one must be
refused with an error of 4xx. Exit status 1: anything else was raised, a process died, a body took longer than two
seconds of processor time, a message was too long, Arrow's memory was kept, or a process came over its memory. The
numbers of the bodies are printed, and replay exactly.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow as pa

from icetower.errors import IcetowerError
from icetower.iceberg.partitions import spec_of
from icetower.protocol.rows import parse_rows
from icetower.rows.batches import batch_of
from icetower.rows.decoding import decoded
from icetower.rows.encoding import encode
from icetower.rows.schemas import RowSchema, row_schema
from verify.torture.row_bodies import TABLE, Body, body

INPUTS = 1_000_000
SEED = 20261126
MIB = 1024 * 1024
RSS_MAX_BYTES = 640 * MIB
"""Of one process; Python and pyarrow take 150 MiB of it. A body of 4 MiB may be 500,000 values."""

KEPT_MAX_BYTES = 8 * MIB
"""Of Arrow's memory, once a body is done with."""

CPU_MAX_S = 2.0
MESSAGE_MAX = 4_000
FAULTS_MAX = 20
TELL_EVERY = 1_000


@dataclass(slots=True)
class Report:
    """The outcomes of some bodies.

    Attributes:
        outcomes: by content type and rule, or ``taken``.
        faults: number of the body → the fault.
        slowest_s: processor time of the slowest body, which is `slowest`.
        rss_bytes: the most that a process had.
    """

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    faults: dict[int, str] = field(default_factory=dict[int, str])
    slowest_s: float = 0.0
    slowest: int = 0
    rss_bytes: int = 0

    def add(self, other: Report) -> None:
        """Take in what others have found."""
        self.inputs += other.inputs
        self.outcomes.update(other.outcomes)
        self.faults |= other.faults
        if other.slowest_s > self.slowest_s:
            self.slowest_s, self.slowest = other.slowest_s, other.slowest
        self.rss_bytes = max(self.rss_bytes, other.rss_bytes)


Look = Callable[[Body, RowSchema], str]


class Fault(AssertionError):
    """A body had an outcome that it must not have."""


def look(given: Body, schema: RowSchema) -> str:
    """``taken``, or the rule by which a body is refused. Raises `Fault`, and whatever the reader raises."""
    try:
        request = parse_rows(given.data, given.content_type, None)
        block = decoded(request, schema)
        batch = batch_of(block, spec_of(TABLE, given.spec_id))
    except IcetowerError as error:
        if not 400 <= error.status < 500:
            raise Fault(f"it is answered {error.status}: {error.message[:300]}") from error
        if len(error.message) > MESSAGE_MAX:
            raise Fault(f"the message has {len(error.message)} characters: {error.message[:300]}") from error
        return error.rule
    table = block.arrow()
    table.validate(full=True)
    if table.num_rows != request.count:
        raise Fault(f"{request.count} rows became {table.num_rows}")
    if not table.schema.equals(schema.arrow):
        raise Fault(f"the rows are of another schema: {table.schema}")
    written = sum(file.file.record_count for file in encode([batch], TABLE, lambda: "name"))
    if written != request.count:
        raise Fault(f"{written} of {request.count} rows were written")
    return "taken"


def some(
    numbers: Sequence[int], seed: int, look: Look = look, begins: Callable[[int], None] = lambda _: None
) -> Report:
    """Bodies one after the other, in this process. `begins` is told the number of each before it."""
    schema, found = row_schema(TABLE), Report()
    for number in numbers:
        begins(number)
        given = body(number, seed)
        began_s = time.process_time()
        try:
            outcome = look(given, schema)
        except BaseException as error:  # noqa: BLE001 - all of it is a fault
            outcome = "FAULT"
            found.faults[number] = f"{type(error).__name__}: {str(error)[:500]}"
        took_s = time.process_time() - began_s
        kept = pa.total_allocated_bytes()
        if took_s > CPU_MAX_S:
            found.faults.setdefault(number, f"it took {took_s:.1f} s")
        if kept > KEPT_MAX_BYTES:
            found.faults.setdefault(number, f"{kept} bytes of Arrow's memory are kept after it")
        if took_s > found.slowest_s:
            found.slowest_s, found.slowest = took_s, number
        found.inputs += 1
        found.outcomes[f"{given.content_type} {outcome}"] += 1
        if len(found.faults) >= FAULTS_MAX:
            break
    return found


def run(numbers: range, seed: int, processes: int, look: Look = look, tell: Callable[[str], None] = print) -> Report:
    """The bodies of these numbers, shared out to processes. One that dies is a fault of its body; another goes on."""
    whole = Report()
    crews = [_Crew(numbers[at::processes], seed, look) for at in range(processes)]
    reported = 0
    while any(crew.goes_on for crew in crews):
        for crew in crews:
            if crew.goes_on:
                before = set(whole.faults)
                crew.follow(whole)
                for number in sorted(whole.faults.keys() - before):
                    tell(_fault(number, seed, whole.faults[number]))
        if whole.inputs >= reported + len(numbers) // 10:
            reported = whole.inputs
            tell(f"{whole.inputs:,} bodies, {len(whole.faults)} faults, {whole.rss_bytes // MIB} MiB")
        if len(whole.faults) >= FAULTS_MAX:
            for crew in crews:
                crew.stop()
    return whole


def _fault(number: int, seed: int, fault: str) -> str:
    return f"FAULT {number} (replay: --seed {seed} --input {number}): {fault}"


class _Crew:
    """One process after the other for a share of the bodies."""

    def __init__(self, numbers: range, seed: int, look: Look) -> None:
        self._left = numbers
        self._seed = seed
        self._look = look
        self._context = get_context("spawn")
        self._begun = self._context.Value("q", -1, lock=False)
        self._start()

    @property
    def goes_on(self) -> bool:
        return self._process is not None

    def _start(self) -> None:
        self._process: Any = None
        if not self._left:
            return
        self._ours, theirs = self._context.Pipe(duplex=False)
        self._process = self._context.Process(
            target=_work, args=(self._left, self._seed, self._look, self._begun, theirs), daemon=True
        )
        self._process.start()
        theirs.close()

    def follow(self, whole: Report) -> None:
        """Take in what the process says next; if it has died, another one goes on after the body that it had."""
        if not self._ours.poll(0.2):
            return
        try:
            found: Report = self._ours.recv()
        except EOFError:
            self._process.join()
            if self._left:
                number = int(self._begun.value)
                whole.faults[number] = f"the process died of it, with status {self._process.exitcode}"
                done = self._left.index(number) + 1
                whole.inputs += done
                self._left = self._left[done:]
            self._start()
            return
        whole.add(found)
        self._left = self._left[found.inputs :]

    def stop(self) -> None:
        """Enough was found."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None


def peak_rss_bytes() -> int:
    """The most memory that this process had, in bytes, since its program was started.

    `ru_maxrss` is not that on Linux: a process starts with the figure of the one that started it.
    """
    peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if peak is None:
        raise OSError("/proc/self/status has no VmHWM: the memory of a process can be judged on Linux alone")
    return int(peak[1]) * 1024


def _work(numbers: range, seed: int, look: Look, begun: Any, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def begins(number: int) -> None:
        begun.value = number

    for at in range(0, len(numbers), TELL_EVERY):
        found = some(numbers[at : at + TELL_EVERY], seed, look, begins)
        # Judged here alone, since this process has done nothing else: a process of tests has memory of others.
        found.rss_bytes = peak_rss_bytes()
        if found.rss_bytes > RSS_MAX_BYTES:
            last = numbers[at + found.inputs - 1]
            found.faults.setdefault(last, f"the process came to {found.rss_bytes // MIB} MiB until this body")
        pipe.send(found)
    pipe.close()


def again(number: int, seed: int) -> int:
    """One body, with its outcome; the exit status."""
    given = body(number, seed)
    print(f"{given.content_type}, {len(given.data)} bytes: {given.data[:2_000]!r}")
    try:
        print(look(given, row_schema(TABLE)))
    except Exception:  # noqa: BLE001 - shown as it is
        traceback.print_exc()
        return 1
    return 0


def main(given: list[str] | None = None) -> int:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--input", type=int)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args(given)
    if asked.input is not None:
        return again(asked.input, asked.seed)
    numbers = range(asked.start, asked.start + asked.inputs)
    found = run(numbers, asked.seed, asked.processes, tell=lambda line: print(line, flush=True))
    for outcome, times in sorted(found.outcomes.items()):
        print(f"  {outcome:56} {times:>12,}")
    print(f"{found.inputs:,} bodies; the slowest was {found.slowest}, {found.slowest_s * 1000:.0f} ms", end="")
    print(f"; a process had {found.rss_bytes // MIB} MiB at most")
    return 1 if found.faults else 0


if __name__ == "__main__":
    sys.exit(main())
