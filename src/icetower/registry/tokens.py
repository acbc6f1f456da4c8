"""Access tokens: who gets one, for how long, and how many there are.

A token ends after an hour, and another may be had for it. But its line has an end: however often it is renewed, so long
after the secret was presented it is over. So a token that was stolen is worth something for a day, and no longer. A
principal has so many tokens; beyond that, those that would end first end at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, func, insert, or_, select, update

from icetower.errors import Forbidden, NotAuthenticated
from icetower.registry.queries import bindings, count_change, live_credentials, same
from icetower.registry.schema import credentials

SECOND_MS = 1_000
PER_PRINCIPAL_MAX = 1_000
"""Tokens of one principal. Each executor of a Spark job may take its own."""
PER_LINE_MAX = 100
"""Tokens that were had for one another: a token that was stolen does not end those of others by being renewed."""
ENDED_KEPT_MS = 24 * 3600 * SECOND_MS
"""For so long a credential that has ended is known as such: whoever commits by it is not answered 401 where its commit
has landed before. It is good for nothing else."""
ENDED_MAX = 1_000
"""Of one principal."""
ROOM_SHARE = 10
"""Where there are too many, one in so many ends: making room has all that is known read anew."""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """How long tokens are good.

    Attributes:
        ttl_s: a token.
        renewal_max_s: a token and all that were had for it, from the secret on.
    """

    ttl_s: int = 3600
    renewal_max_s: int = 24 * 3600


@dataclass(frozen=True, slots=True)
class Request:
    """What somebody presents for a token.

    Attributes:
        presented: the hash of a secret, or of a token.
        client_id: whose secret it is said to be; None: nothing is said, and tokens do, too.
    """

    presented: str
    client_id: str | None
    now_ms: int


def grantor(connection: Connection, request: Request) -> Row[Any] | None:
    """The live credential that a request presents. Reads only: a wrong guess takes no lock.

    A name that nobody has costs what any other does: credentials are found by their hashes alone.

    Raises:
        Forbidden: the secret is right, and the contract of its principal is revoked (``contract.revoked``). Whoever
            presents anything else does not hear it.
    """
    row = live_credentials(connection, [request.presented], request.now_ms).get(request.presented)
    if row is None:
        return None
    is_secret = row.issued_from is None
    if request.client_id is not None and not (is_secret and same(row.principal, request.client_id)):
        return None
    found = bindings(connection, [row.principal])
    if found.get(row.principal) is not None:
        return row
    if is_secret and row.principal in found:
        raise contract_revoked(f"the contract of {row.principal}")
    return None


def contract_revoked(whose: str) -> Forbidden:
    """The refusal of a principal that has proved itself, and may do nothing."""
    return Forbidden(f"{whose} was revoked; nothing is allowed until it is restored", rule="contract.revoked")


def not_authenticated() -> NotAuthenticated:
    """The refusal of a credential, whatever is wrong with it."""
    return NotAuthenticated(
        "the credential is unknown, expired or revoked; present a secret or a token that is in force"
    )


def issue(connection: Connection, request: Request, token: str, lifetimes: Lifetimes) -> int | None:
    """Keep a new token by its hash. Returns for how many seconds it is good; None: the request is worth none."""
    source, now_ms = grantor(connection, request), request.now_ms
    if source is None:
        return None
    sweep(connection, now_ms)
    # A token's line begins when its secret was presented, and all of the line says so.
    begun_ms = now_ms if source.issued_from is None else source.created_ms
    secret = source.issued_from or source.hash
    end_ms = _end_ms(connection, secret, begun_ms, now_ms, lifetimes)
    good_s = (end_ms - now_ms) // SECOND_MS
    if good_s < 1:
        return None
    own = (credentials.c.principal == source.principal) & credentials.c.issued_from.is_not(None)
    own &= credentials.c.expires_ms > now_ms
    line = own & (credentials.c.created_ms == begun_ms) & (credentials.c.issued_from == secret)
    _make_room(connection, line, PER_LINE_MAX, now_ms)
    _make_room(connection, own, PER_PRINCIPAL_MAX, now_ms)
    _forget_ended(connection, source.principal, now_ms)
    connection.execute(
        insert(credentials).values(
            hash=token, principal=source.principal, issued_from=secret, created_ms=begun_ms, expires_ms=end_ms
        )
    )
    return good_s


def later_end_ms(connection: Connection, token: str, now_ms: int, lifetimes: Lifetimes) -> int | None:
    """Until when a token, by its hash, may be good if it is renewed now: as long as one that is had for it.

    None: it has ended, it is a secret, or that is no later than it is good already. Reads only.
    """
    source = grantor(connection, Request(token, None, now_ms))
    if source is None or source.issued_from is None:
        return None
    end_ms = _end_ms(connection, source.issued_from, source.created_ms, now_ms, lifetimes)
    return end_ms if end_ms >= source.expires_ms + SECOND_MS else None


def renew(connection: Connection, token: str, now_ms: int, lifetimes: Lifetimes) -> int | None:
    """Let a token end later, where it may. For how many seconds it is good from now on; None: nothing has changed."""
    end_ms = later_end_ms(connection, token, now_ms, lifetimes)
    if end_ms is None:
        return None
    connection.execute(update(credentials).where(credentials.c.hash == token).values(expires_ms=end_ms))
    return (end_ms - now_ms) // SECOND_MS


def _end_ms(connection: Connection, secret: str, begun_ms: int, now_ms: int, lifetimes: Lifetimes) -> int:
    """Until when a token may be good: its own time, that of its line, and that of the secret it comes from."""
    end_ms = min(now_ms + lifetimes.ttl_s * SECOND_MS, begun_ms + lifetimes.renewal_max_s * SECOND_MS)
    known = connection.execute(select(credentials.c.expires_ms).where(credentials.c.hash == secret)).one_or_none()
    if known is None:
        return now_ms
    return end_ms if known.expires_ms is None else min(end_ms, known.expires_ms)  # it is being rotated away


def end(connection: Connection, which: ColumnElement[bool], now_ms: int) -> None:
    """Credentials end now; for a while they are known as ended."""
    live = or_(credentials.c.expires_ms.is_(None), credentials.c.expires_ms > now_ms)
    connection.execute(update(credentials).where(which, live).values(expires_ms=now_ms))
    sweep(connection, now_ms)


def sweep(connection: Connection, now_ms: int) -> None:
    """Forget what has ended long ago."""
    connection.execute(delete(credentials).where(credentials.c.expires_ms <= now_ms - ENDED_KEPT_MS))


def _make_room(connection: Connection, own: ColumnElement[bool], most: int, now_ms: int) -> None:
    """Of too many tokens those end that would end first."""
    count = connection.execute(select(func.count()).select_from(credentials).where(own)).scalar_one()
    if count < most:
        return
    surplus = count - most + most // ROOM_SHARE
    first = select(credentials.c.hash).where(own).order_by(credentials.c.expires_ms, credentials.c.hash).limit(surplus)
    gone = [row.hash for row in connection.execute(first)]
    connection.execute(update(credentials).where(credentials.c.hash.in_(gone)).values(expires_ms=now_ms))
    count_change(connection)  # else they would be taken from what was read before


def _forget_ended(connection: Connection, principal: str, now_ms: int) -> None:
    """Of too many that have ended, those are forgotten that ended first."""
    ended = (credentials.c.principal == principal) & (credentials.c.expires_ms <= now_ms)
    newest = select(credentials.c.expires_ms).where(ended).order_by(credentials.c.expires_ms.desc())
    oldest_ms = connection.execute(newest.offset(ENDED_MAX).limit(1)).scalar()
    if oldest_ms is not None:
        connection.execute(delete(credentials).where(ended, credentials.c.expires_ms <= oldest_ms))
