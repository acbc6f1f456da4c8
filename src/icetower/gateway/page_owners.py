"""Whose are the partitions of a table? What the heat map of a table says of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from icetower.contracts.model import FILE_OPERATIONS, Contract, Role
from icetower.contracts.owning import Ownership
from icetower.contracts.regions import Values
from icetower.contracts.terms import Layout
from icetower.contracts.values import Membership, NotUnderstood, compile_extent
from icetower.iceberg.partitions import PartitionSpec, known_specs, partition_name
from icetower.protocol.names import Identifier
from icetower.registry.versions import parsed

Place = tuple[PartitionSpec, tuple[Any, ...]]


class Owners:
    """The owners of a table's partitions at one time, by the names that the log has for these.

    Whoever wrote to a partition mostly owns it, so the contracts of those are asked first. Only where none of them does
    are all contracts asked, of which there may be a thousand that nobody has read yet: for a bounded time, after which
    another look goes on.

    Args:
        texts: the contracts that may own something here, by name; each is read when it is asked.
        everybody: whether partitions that nobody owns are said to be nobody's; else only what is owned is told.
    """

    def __init__(
        self,
        table: Identifier,
        metadata: Mapping[str, Any],
        texts: Mapping[str, str | Contract],
        now_ms: int,
        *,
        everybody: bool,
    ) -> None:
        self._table = table
        self._specs = list(known_specs(metadata).values())
        self._layout = Layout.of(metadata)
        self._texts = texts
        self._now_ms = now_ms
        self._everybody = everybody
        self._asked: dict[str, tuple[Role, Ownership | None]] = {}
        self._found: dict[str, tuple[str, ...]] = {}

    def of(self, wanted: Mapping[str, Collection[str]], in_time: Callable[[], bool]) -> dict[str, tuple[str, ...]]:
        """By the names of partitions, the contracts that own them; none where nobody does. What is unknown is left out.

        Of several that own one, those are told that wrote to it; where none of these did, one.

        Args:
            wanted: names of partitions, each with the contracts of those that wrote to it.
            in_time: whether there is time left.
        """
        told: dict[str, tuple[str, ...]] = {}
        for name, writers in wanted.items():
            owners = self._found.get(name)
            if owners is None:
                place = place_of(name, self._specs, self._now_ms)
                owners = None if place is None else self._owners(place, writers, in_time)
                if owners is not None:
                    self._found[name] = owners
            if owners or (owners is not None and self._everybody):
                told[name] = owners
        return told

    def _owners(self, place: Place, writers: Collection[str], in_time: Callable[[], bool]) -> tuple[str, ...] | None:
        wrote = tuple(name for name in sorted(writers) if name in self._texts and self._owns(name, place))
        if wrote:
            return wrote
        for role in (Role.AGENT, Role.PIPELINE):
            for name in self._texts:
                if not in_time():
                    return None
                if self._role(name) is role and self._owns(name, place):
                    return (name,)
        return ()

    def _owns(self, name: str, place: Place) -> bool:
        owned = self._read(name)[1]
        return owned is not None and owned.of(*place) is Membership.INSIDE

    def _role(self, name: str) -> Role:
        return self._read(name)[0]

    def _read(self, name: str) -> tuple[Role, Ownership | None]:
        """A contract's role, and what it owns here; None: nothing of its own, as of maintenance jobs."""
        found = self._asked.get(name)
        if found is None:
            text = self._texts[name]
            contract = parsed(name, text) if isinstance(text, str) else text
            found = self._asked[name] = contract.role, self._ownership(contract)
        return found

    def _ownership(self, contract: Contract) -> Ownership | None:
        if contract.role is Role.MAINTENANCE:
            return None
        rules = [
            rule
            for rule in contract.rules_for(self._table)
            if not rule.whole and any(rule.grants(operation) for operation in FILE_OPERATIONS)
        ]
        return Ownership(rules, self._layout, self._now_ms) if rules else None


def place_of(name: str, specs: Sequence[PartitionSpec], now_ms: int) -> Place | None:
    """A partition by its name, as the log has it; None where the name could be of another one, too."""
    for spec in specs:
        if not spec.fields:
            continue
        texts = _values_of(name, [field.name for field in spec.fields])
        if texts is None:
            continue
        try:
            found = [
                compile_extent(field, Values((None if text == "null" else text,)), now_ms).values
                for field, text in zip(spec.fields, texts, strict=True)
            ]
            partition = tuple(next(iter(values or ())) for values in found)
            if partition_name(spec, partition) == name:
                return spec, partition
        except (NotUnderstood, StopIteration, ValueError, TypeError, OverflowError, AttributeError):
            continue
    return None


def _values_of(name: str, fields: Sequence[str]) -> list[str] | None:
    """The texts after each `field=`; None where one of these could stand in a value as well."""
    marks = [f"{fields[0]}=", *(f"/{field}=" for field in fields[1:])]
    if not name.startswith(marks[0]) or any(name.count(mark) != 1 for mark in marks[1:]):
        return None
    texts, rest = [], name[len(marks[0]) :]
    for mark in marks[1:]:
        value, found, rest = rest.partition(mark)
        if not found:
            return None
        texts.append(value)
    return [*texts, rest]
