"""The registry: principals, their secrets and tokens, and the contracts in force with every version they had.

A revocation holds from the next request on. Every change counts up a number in its own transaction, and each request
has this number read: what was read of credentials, principals and contracts is used again only while it stands.
Requests that come while others' are being read share the next reading.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, insert, or_, select, update
from sqlalchemy.exc import SQLAlchemyError

from icetower.ambient import Ambient
from icetower.contracts.model import ADMINISTRATOR_NAME, NAME, VIEWER_NAME, Contract
from icetower.database import Database, Together, read_at_once
from icetower.errors import AlreadyExists, BadRequest, NotFound, Unavailable
from icetower.registry import tokens, versions
from icetower.registry.principals import Principal, administrator, ended, viewer
from icetower.registry.queries import (
    bindings,
    count_change,
    ended_credentials,
    in_force,
    live_credentials,
    number_of_changes,
    numbers,
)
from icetower.registry.schema import credentials, principals
from icetower.registry.sql import migrate, take_write_lock
from icetower.registry.versions import Applied, ContractVersion, Proposal

T = TypeVar("T")

RESERVED_NAME = "open"
"""Who comes without a credential to a tower that is open; nobody in the registry may be taken for it."""
BEARER_CHARACTERS_MAX = 512
KNOWN_MAX = 100_000
"""Credentials and principals that are kept between changes of the registry."""
SECRET_PREFIX, TOKEN_PREFIX = "ict_", "icat_"  # so that secret scanners can tell what they found


@dataclass(frozen=True, slots=True)
class _Known:
    """What was read while the registry stood at one number of changes. Only what was found: strangers take no room.

    Attributes:
        acting: by the hash of a credential, who acts by it, and until when (milliseconds since 1970; None: for good).
        standings: by principal, its contract and that contract's version; None where it is in force no more.
        beside: the other room's number of changes.
    """

    number: int = -1
    beside: int = -1
    acting: dict[str, tuple[Principal, int | None]] = field(default_factory=dict[str, tuple[Principal, int | None]])
    bindings: dict[str, tuple[str, int] | None] = field(default_factory=dict[str, tuple[str, int] | None])

    def __len__(self) -> int:
        return len(self.acting) + len(self.bindings)


@dataclass(frozen=True, slots=True)
class PrincipalRecord:
    """A principal as stored; `revoked_ms` None while it may act."""

    name: str
    contract: str
    created_ms: int
    revoked_ms: int | None


def hash_of(secret: str) -> str:
    """SHA-256 in hexadecimal. Enough for 256 random bits; slow hashes are for what people choose."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


OnRevoked = Callable[[Connection, Sequence[str], int], None]
"""Ends what some principals have beside their credentials, in the transaction that revokes them; at a moment."""


def _anybody(_: str) -> None:
    """Every principal may have a token."""


def revoked_among(connection: Connection, names: Collection[str]) -> frozenset[str]:
    """Those of some principals that are revoked or unknown, or whose contract is revoked."""
    found = bindings(connection, sorted(names))
    return frozenset(name for name in names if name != RESERVED_NAME and found.get(name) is None)


class Registry:
    """Open it once; its tables are made or brought up to date then.

    Args:
        on_revoked: ends what other rooms keep of principals.

    Attributes:
        number: the highest number of changes that was read, or made here; -1: none yet. Each request has it read anew.
        beside: the highest number of `beside` that was read; -1: none yet.
    """

    def __init__(
        self,
        database: Database,
        ambient: Ambient,
        lifetimes: tokens.Lifetimes | None = None,
        beside: ColumnElement[int] | None = None,
        on_revoked: OnRevoked = lambda _, __, ___: None,
    ) -> None:
        self._database = database
        self._ambient = ambient
        self._lifetimes = lifetimes or tokens.Lifetimes()
        self._authentication = Together(self._authenticate)
        self._ended = Together(self._read_ended)
        self._known = _Known()
        self.number = self.beside = -1
        self._beside = beside
        self._on_revoked = on_revoked
        migrate(database, Path(__file__).parent / "migrations", version_table="registry_version")

    async def _write(self, work: Callable[[Connection], T], *, only_adds: bool = False) -> T:
        """One transaction, counted as a change unless all that was known before still holds after it."""

        def locked(connection: Connection) -> tuple[T, int]:
            take_write_lock(connection)
            result = work(connection)
            if not only_adds:
                count_change(connection)
            return result, number_of_changes(connection)

        result, number = await self._ask(locked, write=True)
        self.number = max(self.number, number)
        return result

    async def _ask(self, work: Callable[[Connection], T], *, write: bool = False, alone: bool = False) -> T:
        """One transaction. Raises `Unavailable` where the database cannot be asked: nobody is let in by guessing."""
        try:
            return await self._database.run(work, write=write, alone=alone)
        except SQLAlchemyError as error:
            # Not in the driver's words: they may hold paths and statements.
            raise Unavailable(
                f"the registry of principals and contracts cannot be asked ({type(error).__name__}); "
                "nobody is let in, and nothing is committed, until it can be",
                rule="registry.available",
            ) from error

    # -------------------------------------------------------------------------------------------------- principals

    async def create_principal(self, name: str, contract: str) -> str:
        """A new principal bound to a contract in force, or to a built-in one; returns its secret, shown this once.

        Raises `BadRequest` for a name that cannot be one, `AlreadyExists`, and `NotFound` for an unknown contract.
        """
        if not NAME.fullmatch(name) or name == RESERVED_NAME:
            raise BadRequest(
                f"principal name {name!r}: write 1 to 128 letters, digits, '_', '-' or '.', beginning with a letter or "
                f"digit; {RESERVED_NAME!r} is taken",
                rule="principal.name",
            )
        secret = SECRET_PREFIX + self._ambient.secret()
        now = self._ambient.now_ms()

        def work(connection: Connection) -> None:
            if _principal(connection, name) is not None:
                raise AlreadyExists(
                    f"principal {name} exists, or did and was revoked; names are not given twice",
                    rule="principal.exists",
                )
            _require_contract(connection, contract)
            connection.execute(insert(principals).values(name=name, contract=contract, created_ms=now))
            connection.execute(insert(credentials).values(hash=hash_of(secret), principal=name, created_ms=now))

        await self._write(work, only_adds=True)
        return secret

    async def bind(self, name: str, contract: str) -> None:
        """Bind a principal to another contract. Raises `NotFound`."""

        def work(connection: Connection) -> None:
            _require_principal(connection, name)
            _require_contract(connection, contract)
            connection.execute(update(principals).where(principals.c.name == name).values(contract=contract))

        await self._write(work)

    async def rotate(self, name: str, *, grace_s: float = 0) -> str:
        """A new secret for a principal; the old ones and their tokens end after `grace_s`. Raises `NotFound`."""
        secret = SECRET_PREFIX + self._ambient.secret()
        now = self._ambient.now_ms()
        end = now + int(grace_s * 1000)

        def work(connection: Connection) -> None:
            _require_principal(connection, name)
            connection.execute(
                update(credentials)
                .where(
                    credentials.c.principal == name,
                    or_(credentials.c.expires_ms.is_(None), credentials.c.expires_ms > end),
                )
                .values(expires_ms=end)
            )
            connection.execute(insert(credentials).values(hash=hash_of(secret), principal=name, created_ms=now))

        await self._write(work)
        return secret

    async def revoke_principal(self, name: str) -> None:
        """From the next request on the principal is unknown. Raises `NotFound`; revoking twice changes nothing."""
        now = self._ambient.now_ms()

        def work(connection: Connection) -> None:
            row = _principal(connection, name)
            if row is None:
                raise _no_principal(name)
            tokens.end(connection, credentials.c.principal == name, now)
            if row.revoked_ms is None:
                connection.execute(update(principals).where(principals.c.name == name).values(revoked_ms=now))
            self._on_revoked(connection, [name], now)

        await self._write(work)

    async def principals(self) -> list[PrincipalRecord]:
        """All principals by name, the revoked ones included."""

        def work(connection: Connection) -> list[PrincipalRecord]:
            query = select(principals).order_by(principals.c.name)
            return [PrincipalRecord(*row) for row in read_at_once(connection, query)]

        return await self._ask(work)

    async def bindings(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Principal → its contract and that contract's version, as they stand now; the revoked ones are left out."""

        known = self._known

        def work(connection: Connection) -> _Known:
            number, beside = numbers(connection, self._beside)
            lacking = [name for name in names if number != known.number or name not in known.bindings]
            return _Known(number, beside, bindings=bindings(connection, lacking))

        binding = (await self._know(known, work, lacking=not known.bindings.keys() >= set(names))).bindings
        found = ((name, binding.get(name)) for name in names)
        return {name: each for name, each in found if each is not None}

    async def _know(self, known: _Known, work: Callable[[Connection], _Known], *, lacking: bool) -> _Known:
        """What is known now. Where nothing is `lacking` in `known`, `work` reads only if the registry has changed."""
        if not lacking:
            number, beside = await self._ask(lambda connection: numbers(connection, self._beside), alone=True)
            if number == known.number:
                return self._now_known(known, _Known(number, beside))
        return self._now_known(known, await self._ask(work))

    def _now_known(self, known: _Known, read: _Known) -> _Known:
        """What is known after a reading that began with `known`, all of it as the registry stood at the reading."""
        self.number, self.beside = max(self.number, read.number), max(self.beside, read.beside)
        if read.number == known.number:
            known.acting.update(read.acting)
            known.bindings.update(read.bindings)
        else:
            self._known = read
        if len(self._known) > KNOWN_MAX:
            self._known = _Known()
        return known if read.number == known.number else read

    async def change(self, work: Callable[[Connection], T], *, quietly: bool = False) -> T:
        """For what other rooms keep beside principals and contracts: one transaction.

        Every tower hears of it, with `quietly` none.
        """
        return await self._write(work, only_adds=quietly)

    async def read(self, work: Callable[[Connection], T]) -> tuple[int, T]:
        """What `work` reads, and a number of changes that it is not older than."""
        return await self._ask(lambda connection: (number_of_changes(connection), work(connection)))

    # ---------------------------------------------------------------------------------------------- authentication

    async def authenticate(self, bearer: str) -> Principal:
        """The principal of a secret or an access token. Raises `NotAuthenticated`, which never tells what was wrong."""
        principal = await self._authentication.ask(hash_of(bearer[:BEARER_CHARACTERS_MAX]))
        if principal is None or len(bearer) > BEARER_CHARACTERS_MAX:
            raise tokens.not_authenticated()
        return principal

    async def _authenticate(self, presented: Sequence[str]) -> dict[str, Principal | None]:
        now = self._ambient.now_ms()

        known = self._known

        def work(connection: Connection) -> _Known:
            number, beside = numbers(connection, self._beside)
            lacking = [hash_ for hash_ in presented if number != known.number or hash_ not in known.acting]
            return _Known(number, beside, acting=_acting(connection, lacking, now))

        acting = (await self._know(known, work, lacking=not known.acting.keys() >= set(presented))).acting
        found = ((hash_, acting.get(hash_)) for hash_ in presented)
        return {
            hash_: None if each is None or (each[1] is not None and each[1] <= now) else each[0]
            for hash_, each in found
        }

    async def ended(self, bearer: str) -> Principal | None:
        """Who brings a credential that ended within the last day; None for any other, good ones included."""
        name = await self._ended.ask(hash_of(bearer[:BEARER_CHARACTERS_MAX]))
        return None if name is None or len(bearer) > BEARER_CHARACTERS_MAX else ended(name)

    async def _read_ended(self, presented: Sequence[str]) -> dict[str, str | None]:
        now = self._ambient.now_ms()
        found = await self._ask(lambda connection: ended_credentials(connection, presented, now, tokens.ENDED_KEPT_MS))
        return {hash_: found.get(hash_) for hash_ in presented}

    async def issue_token(
        self, client_id: str, secret: str, ttl_s: int | None = None, *, allow: Callable[[str], None] = _anybody
    ) -> tuple[str, int]:
        """OAuth2 client credentials: an access token and for how many seconds it is good. Raises `NotAuthenticated`.

        Args:
            allow: is asked about the principal before anything is written; raises where it may have no token now.
        """
        return await self._issue(secret, ttl_s, client_id, allow)

    async def exchange(
        self, token: str, ttl_s: int | None = None, *, allow: Callable[[str], None] = _anybody
    ) -> tuple[str, int]:
        """A fresh token for one that is still good (RFC 8693). Raises `NotAuthenticated`."""
        return await self._issue(token, ttl_s, None, allow)

    async def _issue(
        self, bearer: str, ttl_s: int | None, client_id: str | None, allow: Callable[[str], None]
    ) -> tuple[str, int]:
        lifetimes = self._lifetimes if ttl_s is None else replace(self._lifetimes, ttl_s=ttl_s)
        request = tokens.Request(hash_of(bearer[:BEARER_CHARACTERS_MAX]), client_id, self._ambient.now_ms())
        # A wrong guess takes no write lock: it is found out by reading.
        granted = await self._ask(lambda connection: tokens.grantor(connection, request))
        if granted is None or len(bearer) > BEARER_CHARACTERS_MAX:
            raise tokens.not_authenticated()
        allow(granted.principal)
        token = TOKEN_PREFIX + self._ambient.secret()
        good_s = await self._write(
            lambda connection: tokens.issue(connection, request, hash_of(token), lifetimes), only_adds=True
        )
        if good_s is None:
            raise tokens.not_authenticated()
        return token, good_s

    async def renew(self, token: str) -> int | None:
        """Let an access token that is in use end later, within its line: for how many seconds it is good now.

        None where nothing changes: more than half of a token's time is left, which takes no reading, or there is no
        later end. The token stays the same, and what ends it ends it as before.
        """
        hash_, now = hash_of(token[:BEARER_CHARACTERS_MAX]), self._ambient.now_ms()
        _, ends_ms = self._known.acting.get(hash_, (None, None))
        if ends_ms is None or ends_ms - now > self._lifetimes.ttl_s * tokens.SECOND_MS // 2:
            return None
        # Where nothing can change, no lock is taken, and nobody has to read anew.
        if await self._ask(lambda connection: tokens.later_end_ms(connection, hash_, now, self._lifetimes)) is None:
            return None
        return await self._write(lambda connection: tokens.renew(connection, hash_, now, self._lifetimes))

    async def end_token(self, bearer: str) -> None:
        """An access token is good for nothing from now on. Secrets stay as they are."""
        which = (credentials.c.hash == hash_of(bearer[:BEARER_CHARACTERS_MAX])) & credentials.c.issued_from.is_not(None)
        now = self._ambient.now_ms()
        await self._write(lambda connection: tokens.end(connection, which, now))

    # --------------------------------------------------------------------------------------------------- contracts

    async def apply_contract(self, contract: Contract, *, by: str, text: str | None = None) -> int:
        """Put one contract in force and return its version, as `apply_contracts`."""
        return (await self.apply_contracts([Proposal(contract, text)], by=by))[0].version

    async def apply_contracts(
        self, proposals: Sequence[Proposal], *, by: str, message: str | None = None
    ) -> list[Applied]:
        """Put contracts in force, all of them or none; unchanged, one keeps the version that it has.

        Raises:
            BadRequest: a text is not its contract, the message is too long, or one contract is proposed twice.
            Conflict: another version is in force than was expected.
        """
        names = [proposal.contract.name for proposal in proposals]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise BadRequest(f"contract {twice} is given twice; keep one of them", rule="contract.twice")
        written = [(proposal, proposal.written) for proposal in proposals]
        author = self._author(by, message)
        return await self._write(lambda connection: versions.apply(connection, written, author))

    async def restore_contract(
        self, name: str, version: int | None = None, *, by: str, message: str | None = None, expected: int | None = None
    ) -> Applied:
        """Put an older version in force again, as a new one; None: the last one of a contract that is revoked.

        Secrets of its principals work again. Tokens that ended with its revocation don't.

        Raises:
            NotFound: there is no such version, or it is a revocation.
            BadRequest: a version must be named.
            Conflict: another version is the newest than was expected.
        """
        author = self._author(by, message)
        return await self._write(lambda c: versions.restore(c, name, version, author, expected))

    async def restorable(self, name: str, version: int | None = None) -> ContractVersion:
        """The version that `restore_contract` would put in force. Raises as that does."""
        return await self._ask(lambda connection: versions.restorable(connection, name, version))

    async def revoke_contract(self, name: str, *, by: str, message: str | None = None, named_only: bool = False) -> int:
        """From the next request on its principals may do nothing; their tokens are gone for good.

        Returns the version that says so.

        Args:
            named_only: `by` must be named in the contract's `revocation`.

        Raises:
            NotFound: there is no such contract.
            Forbidden: `by` is not named.
        """
        author = self._author(by, message)

        def work(connection: Connection) -> int:
            version = versions.revoke(connection, name, author, named_only=named_only)
            bound = select(principals.c.name).where(principals.c.contract == name)
            of_bound = credentials.c.issued_from.is_not(None) & credentials.c.principal.in_(bound)
            tokens.end(connection, of_bound, author.now_ms)
            self._on_revoked(connection, list(connection.scalars(bound)), author.now_ms)
            return version

        return await self._write(work)

    def _author(self, by: str, message: str | None) -> versions.Author:
        return versions.Author(by, self._ambient.now_ms(), versions.checked_message(message))

    async def contract(self, name: str, version: int | None = None) -> ContractVersion:
        """The version of a contract that is in force, or the one with that number.

        Raises `NotFound` for one unknown or revoked.
        """
        return await self._ask(lambda connection: versions.find(connection, name, version))

    async def contracts(self) -> list[ContractVersion]:
        """The newest version of every contract, by name; revoked ones have no text."""
        return await self._ask(versions.everything)

    async def number_of_changes(self) -> int:
        """How often principals and contracts were changed: while it is the same, what was read after it holds."""
        return await self._ask(number_of_changes)

    async def contracts_after(self, number: int) -> tuple[int, list[ContractVersion] | None]:
        """The same, with the number of changes that they are not older than; None: there were no more than `number`."""

        def work(connection: Connection) -> tuple[int, list[ContractVersion] | None]:
            now = number_of_changes(connection)
            return now, None if now == number else versions.everything(connection)

        return await self._ask(work)

    async def history(self, name: str) -> list[ContractVersion]:
        """Every version of a contract, oldest first; empty for an unknown one."""
        return await self._ask(lambda connection: versions.history(connection, name))


# ------------------------------------------------------------------------------------------------------------- queries


def _acting(connection: Connection, presented: Sequence[str], now_ms: int) -> dict[str, tuple[Principal, int | None]]:
    """Who acts by which credential, of those that are live."""
    live = live_credentials(connection, presented, now_ms)
    bound = in_force(connection, {row.principal for row in live.values()})
    return {
        hash_: (_principal_of(*bound[row.principal]), row.expires_ms)
        for hash_, row in live.items()
        if row.principal in bound
    }


def _principal_of(person: Row[Any], latest: Row[Any] | None) -> Principal:
    """A principal with its contract as it is now; a revoked contract grants nothing."""
    if person.contract == ADMINISTRATOR_NAME:
        return administrator(person.name)
    if person.contract == VIEWER_NAME:
        return viewer(person.name)
    if latest is None or latest.text is None:
        nothing = Contract(person.contract, description="revoked")
        return Principal(person.name, nothing, latest.version if latest else 0, revoked=True)
    return Principal(person.name, versions.parsed(person.contract, latest.text), latest.version)


def _principal(connection: Connection, name: str) -> Row[Any] | None:
    return connection.execute(select(principals).where(principals.c.name == name)).one_or_none()


def _require_principal(connection: Connection, name: str) -> None:
    row = _principal(connection, name)
    if row is None or row.revoked_ms is not None:
        raise _no_principal(name)


def _require_contract(connection: Connection, name: str) -> None:
    if name not in (ADMINISTRATOR_NAME, VIEWER_NAME):
        versions.find(connection, name, None)


def _no_principal(name: str) -> NotFound:
    return NotFound(f"there is no principal {name}, or it was revoked", rule="principal.exists")
