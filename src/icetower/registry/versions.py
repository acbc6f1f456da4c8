"""Versions of contracts: which is in force, which were, and how another follows. The caller holds the transaction.

Nothing is ever changed or removed: a contract that is applied, restored or revoked gets one version more, which says
who did it, when and why.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, func, insert, select

from icetower.contracts.document import dump, load
from icetower.contracts.model import Contract
from icetower.database import read_at_once
from icetower.errors import BadRequest, Conflict, Forbidden, NotFound
from icetower.registry.schema import contracts

MESSAGE_CHARACTERS_MAX = 1_000
VERSION_MAX = 2**31 - 1
"""What the column holds."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A contract that is to be in force.

    Attributes:
        text: the YAML as its author wrote it, kept with its comments; None: it is written anew.
        expected: the newest version that its author knows of, 0 for none; None: whatever it is.
    """

    contract: Contract
    text: str | None = None
    expected: int | None = None

    @property
    def written(self) -> str:
        """The text to keep. Raises `BadRequest` where it is not that contract."""
        written = self.text if self.text is not None else dump(self.contract)
        if self.contract.administrator or load(written, source=self.contract.name) != self.contract:
            raise BadRequest(
                f"contract {self.contract.name}: its text says something else, or it is built in", rule="contract"
            )
        return written


@dataclass(frozen=True, slots=True)
class Applied:
    """A contract in force. `changed` False: it was so before, in that very version."""

    contract: str
    version: int
    changed: bool


@dataclass(frozen=True, slots=True)
class Author:
    """Who changes contracts, when (milliseconds since 1970), and why, if that was said."""

    name: str
    now_ms: int
    message: str | None = None


@dataclass(frozen=True, slots=True)
class ContractVersion:
    """One version of a contract: who applied it, when and why. `text` None: with this version it was revoked."""

    name: str
    version: int
    applied_ms: int
    applied_by: str
    text: str | None
    message: str | None = None


def latest(connection: Connection, name: str) -> Row[Any] | None:
    """The newest version of a contract, the revoking one included."""
    return connection.execute(_of(name).order_by(contracts.c.version.desc()).limit(1)).one_or_none()


def newest() -> Select[Any]:
    """The newest version of every contract."""
    last = select(contracts.c.name, func.max(contracts.c.version).label("v")).group_by(contracts.c.name).subquery()
    return select(contracts).join(last, and_(contracts.c.name == last.c.name, contracts.c.version == last.c.v))


def everything(connection: Connection) -> list[ContractVersion]:
    """The newest version of every contract, by name."""
    return [ContractVersion(*row) for row in read_at_once(connection, newest().order_by(contracts.c.name))]


def history(connection: Connection, name: str) -> list[ContractVersion]:
    """Every version of a contract, oldest first; empty for an unknown one."""
    return _read(connection.execute(_of(name).order_by(contracts.c.version)))


def find(connection: Connection, name: str, version: int | None) -> ContractVersion:
    """The version in force, or the one with a number. Raises `NotFound`: there is none, or no text in it."""
    if version is None:
        row = latest(connection, name)
        if row is None or row.text is None:
            raise not_in_force(name)
    else:
        numbered = _of(name).where(contracts.c.version == version)
        row = connection.execute(numbered).one_or_none() if 0 < version <= VERSION_MAX else None
        if row is None:
            raise NotFound(
                f"contract {name} has no version {version}; `icetower contracts history {name}` lists them",
                rule="contract.version",
            )
        if row.text is None:
            raise NotFound(
                f"version {version} of contract {name} is its revocation, and has no text", rule="contract.version"
            )
    return _read([row])[0]


def apply(connection: Connection, proposals: Sequence[tuple[Proposal, str]], author: Author) -> list[Applied]:
    """Put contracts in force, each with the text that is kept; unchanged, one keeps its version.

    Raises:
        Conflict: somebody else has put another version in force than was expected.
    """
    done: list[Applied] = []
    for proposal, written in proposals:
        name = proposal.contract.name
        row = latest(connection, name)
        if row is not None and row.text is not None and parsed(name, row.text) == proposal.contract:
            done.append(Applied(name, row.version, changed=False))
            continue
        now = 0 if row is None else row.version
        if proposal.expected is not None and proposal.expected != now:
            raise Conflict(
                f"contract {name} is at version {now}, not {proposal.expected}: somebody has changed it meanwhile. "
                "Nothing was applied; look at the difference, and apply again",
                rule="contract.version",
            )
        done.append(Applied(name, _append(connection, name, row, author, written), changed=True))
    return done


def revoke(connection: Connection, name: str, author: Author, *, named_only: bool) -> int:
    """End a contract; the version that says so. One that is revoked already keeps its version.

    Args:
        named_only: the author must be named in the contract's `revocation`.

    Raises:
        Forbidden: the author is not. Then it is not said whether there is such a contract.
        NotFound: there is none.
    """
    versions = history(connection, name)
    texts = [version.text for version in versions if version.text is not None]
    if named_only:
        clause = parsed(name, texts[-1]).revocation if texts else None
        if clause is None or author.name not in clause.by:
            raise Forbidden(
                f"{author.name} may not revoke contract {name}: that is for administrators, and for principals that "
                "its revocation.by names",
                rule="permission.revocation",
            )
    if not versions:
        raise not_in_force(name)
    if versions[-1].text is None:
        return versions[-1].version
    return _append(connection, name, latest(connection, name), author, None)


def restorable(connection: Connection, name: str, version: int | None) -> ContractVersion:
    """The version of a contract that `restore` puts in force, which has a text.

    Args:
        version: None: the last that a revoked contract had.

    Raises:
        NotFound: there is no such version, or no text in it.
        BadRequest: the contract is in force, and no version was named.
    """
    if version is None:
        older = history(connection, name)
        if not older:
            raise not_in_force(name)
        if older[-1].text is not None:
            raise BadRequest(
                f"contract {name} is in force, with version {older[-1].version}; say which version to restore",
                rule="contract.version",
            )
        version = max(each.version for each in older if each.text is not None)
    return find(connection, name, version)


def restore(connection: Connection, name: str, version: int | None, author: Author, expected: int | None) -> Applied:
    """Put an older version in force again, as a new one.

    Raises as `restorable`; `Conflict` as `apply`, and `BadRequest` where this release cannot read the old text.
    """
    text = restorable(connection, name, version).text
    assert text is not None
    proposal = Proposal(parsed(name, text), text, expected)
    return apply(connection, [(proposal, text)], author)[0]


@lru_cache(maxsize=1024)
def parsed(name: str, text: str) -> Contract:
    """A stored contract."""
    return load(text, source=f"contract {name}")


def not_in_force(name: str) -> NotFound:
    return NotFound(f"there is no contract {name} in force; apply it first", rule="contract.exists")


def checked_message(message: str | None) -> str | None:
    """A reason as it is stored. Raises `BadRequest` where it is too long."""
    if message is not None and len(message) > MESSAGE_CHARACTERS_MAX:
        raise BadRequest(
            f"the message has {len(message)} characters; at most {MESSAGE_CHARACTERS_MAX} are kept",
            rule="contract.message",
        )
    return message or None


def _of(name: str) -> Select[Any]:
    return select(contracts).where(contracts.c.name == name)


def _append(connection: Connection, name: str, row: Row[Any] | None, author: Author, text: str | None) -> int:
    version = 1 if row is None else row.version + 1
    connection.execute(
        insert(contracts).values(
            name=name,
            version=version,
            applied_ms=author.now_ms,
            applied_by=author.name,
            text=text,
            message=author.message,
        )
    )
    return version


def _read(rows: Iterable[Row[Any]]) -> list[ContractVersion]:
    return [
        ContractVersion(row.name, row.version, row.applied_ms, row.applied_by, row.text, row.message) for row in rows
    ]
