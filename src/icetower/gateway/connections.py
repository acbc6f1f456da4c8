"""Connections, bounded before any credential is read (trap A8).

How many there are, overall and by address; how long a head, a body and an answer may take; how long heads and URLs are;
how many requests may come in one piece. uvicorn's protocol for httptools is extended where it is made for that. A
connection notes when it began what it does now, and one look a second over all of them ends those that take too long:
no timer is set for a request.

Where there are too many, the least worth is closed first (`Rank`): of those without a credential one of the address
that has most connections, of the others one of the principal that has most, so that nobody is crowded out by one
principal. Where all have requests under way, the new one is. Requests that have come whole and had their turn are
never ended for others, and descriptors are set aside for storage and SQL.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Any, ClassVar

import orjson
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from icetower.errors import BadRequest, HeadTooLarge, IcetowerError, RequestTooSlow, UrlTooLong
from icetower.gateway.connection_state import ConnectionState, attach
from icetower.protocol.catalog import RETRY_AFTER_S, error_body

LOOK_S = 1.0
HEADERS_MAX = 128
PIPELINED_MAX = 16
"""Requests that may come in one piece, before the first of them is answered."""

PIECES_FREE, PIECE_BYTES_MIN = 1_000, 64
"""A body that comes in more pieces than this must come in pieces of so many bytes on average: each costs the event loop
as much as a large one. Clients send chunks of 2 KiB and more."""

OVERHEAD_MAX_BYTES = 1024 * 1024
"""So much more than twice its body a request may take on the wire: chunks may have extensions of any length."""

DRAINED_MAX_BYTES = 8 * 1024 * 1024
"""So much of a body is read that is answered already, so that its client sees the answer; then the connection ends."""

UNKNOWN_MAX_BYTES = 32 * 1024 * 1024
"""What connections without a credential may have sent that is not looked at yet, all of them together."""

RESERVED_FILES = 128
"""Descriptors for the databases, the log and libraries, beside two for each storage thread."""

log = logging.getLogger("icetower")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a connection may take.

    Attributes:
        head_s: from its first byte, or from the beginning of the connection, until a head is complete.
        idle_s: between two requests.
        rate_min: bytes a second, over `slow_s`, by which bodies come and answers are read.
    """

    connections_max: int = 4096
    by_address_max: int = 2048
    head_s: float = 15.0
    idle_s: float = 75.0
    slow_s: float = 30.0
    rate_min: int = 1024
    head_bytes_max: int = 32 * 1024
    url_bytes_max: int = 16 * 1024


class Doing(Enum):
    """What a connection does."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    WORK = auto()


class Rank(IntEnum):
    """Connections that may be closed for a new one, the lowest first."""

    ANSWERED = 0
    """Its request was answered, and its body still comes: whoever lets it trickle is not served by it."""
    UNKNOWN = 1
    """No credential was right on it so far, and no request of it is under way; one that waits for its turn is not."""
    IDLE = 2
    COMING = 3
    """Its request has not come whole, or waits for its turn: nothing was done for it yet."""


_BY_ADDRESS, _BY_PRINCIPAL = (Rank.ANSWERED, Rank.UNKNOWN), (Rank.IDLE, Rank.COMING)


_Group = tuple[str, str | None]
"""An address, and a principal; None: no credential was right."""


class Connections:
    """All connections of a server.

    Attributes:
        unknown_bytes: what connections without a credential have sent that is not looked at yet.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.all: set[Connection] = set()
        self.unknown_bytes = 0
        self._closable: dict[Rank, dict[_Group, dict[Connection, None]]] = {rank: {} for rank in Rank}
        self._by_address: Counter[str] = Counter()
        self._by_principal: Counter[str | None] = Counter()
        self._look: asyncio.TimerHandle | None = None

    def admit(self, connection: Connection) -> bool:
        """Whether a new one may stay. Another is closed for it, if one may be."""
        address = connection.address
        if self._by_address[address] >= self.bounds.by_address_max and not self._close_one(address):
            return False
        if len(self.all) >= self.bounds.connections_max and not self._close_one(None):
            return False
        self.all.add(connection)
        self._by_address[address] += 1
        self._by_principal[connection.group[1]] += 1
        if self._look is None:
            self._look = connection.loop.call_later(LOOK_S, self._look_around, connection.loop)
        return True

    def leave(self, connection: Connection) -> None:
        if connection in self.all:
            self.move(connection, None)
            self.weigh(connection, 0)
            self.all.remove(connection)
            _less(self._by_address, connection.address)
            _less(self._by_principal, connection.group[1])

    def belongs(self, connection: Connection, principal: str | None) -> None:
        """Whose a connection is, as of now."""
        rank = connection.rank
        self.move(connection, None)
        _less(self._by_principal, connection.group[1])
        connection.group = connection.address, principal
        self._by_principal[principal] += 1
        self.move(connection, rank)

    def move(self, connection: Connection, rank: Rank | None) -> None:
        """A connection has another rank; None: it may not be closed for others."""
        if connection.rank is not None:
            ranked = self._closable[connection.rank]
            del ranked[connection.group][connection]
            if not ranked[connection.group]:
                del ranked[connection.group]
        connection.rank = rank
        if rank is not None:
            self._closable[rank].setdefault(connection.group, {})[connection] = None

    def weigh(self, connection: Connection, unseen_bytes: int) -> None:
        """So much has a connection without a credential sent ahead. Where all have sent too much, the most ends."""
        if unseen_bytes and connection not in self.all:
            return
        self.unknown_bytes += unseen_bytes - connection.unseen_bytes
        connection.unseen_bytes = unseen_bytes
        while self.unknown_bytes > UNKNOWN_MAX_BYTES:
            largest = max(self.all, key=lambda each: each.unseen_bytes)
            self.leave(largest)
            largest.transport.abort()

    def look(self, now_s: float) -> None:
        """End the connections that have taken too long."""
        for connection in tuple(self.all):
            connection.look(now_s)

    def _look_around(self, loop: asyncio.AbstractEventLoop) -> None:
        self.look(loop.time())
        self._look = loop.call_later(LOOK_S, self._look_around, loop) if self.all else None

    def _close_one(self, address: str | None) -> bool:
        """Close the connection that is worth least, and has been so for longest.

        Args:
            address: one of this address; None: any.
        """
        connection = self._least(address)
        if connection is None:
            return False
        self.leave(connection)
        connection.transport.abort()
        return True

    def _least(self, address: str | None) -> Connection | None:
        def groups(rank: Rank) -> Iterable[_Group]:
            return (group for group in self._closable[rank] if address in (None, group[0]))

        for rank in _BY_ADDRESS:
            group = max(groups(rank), key=lambda each: self._by_address[each[0]], default=None)
            if group is not None:
                return next(iter(self._closable[rank][group]))
        among = {group for rank in _BY_PRINCIPAL for group in groups(rank)}
        group = max(among, key=lambda each: self._by_principal[each[1]], default=None)
        ranked = (self._closable[rank].get(group, {}) for rank in _BY_PRINCIPAL) if group is not None else ()
        return next((connection for some in ranked for connection in some), None)


def _less(counter: Counter[Any], name: str | None) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]


class Connection(HttpToolsProtocol):
    """One connection. `peers`, all of its server, is set in a subclass: see `protocol_of`."""

    peers: ClassVar[Connections]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = self.client[0] if self.client else ""
        self._doing, self._since_s = Doing.IDLE, self.loop.time()
        self._served = False
        self._head_bytes = self._body_bytes = self._requests = self._unread_bytes = 0
        self._pieces = self._piece_bytes = self._wire_bytes = self._drained_bytes = 0
        self._answered_s: float | None = None
        self._reading_s: float | None = None
        self._kept = b""
        self._refusal: IcetowerError | None = None
        self._answering: RequestResponseCycle | None = None
        self.rank: Rank | None = None
        self.group: _Group = (self.address, None)
        self.unseen_bytes = 0
        self.connection_state = ConnectionState(self._settle, transport.abort)
        if self.peers.admit(self):
            self._settle()
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.peers.leave(self)
        self.connection_state.lose()
        super().connection_lost(exc)
        # uvicorn only ends the request that came last. An earlier one would be answered on a closed connection, which
        # is an error with a traceback in the log for each.
        self.pipeline.clear()
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    # -- what comes -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._doing is Doing.WORK or self._refusal is not None:
            # Nothing is parsed ahead, and no more is read: it may be as much as the other side likes.
            self._kept += data
            self.flow.pause_reading()
            self._weigh()
            return
        if self._doing is Doing.IDLE:
            self._begin(Doing.HEAD)
            self._head_bytes = 0
        before = self._doing
        self._requests = 0
        self._head_bytes += len(data)
        super().data_received(data)
        if self._doing is Doing.HEAD and self._head_bytes > self.peers.bounds.head_bytes_max:
            self._refuse(self._too_large())
        elif self._doing is Doing.BODY:
            if before is Doing.HEAD:
                self.flow.pause_reading()  # until it is asked for: it may have to wait
            self._count(len(data))
        self._weigh()

    def _weigh(self) -> None:
        """What came ahead counts until a credential was right."""
        if not self.connection_state.known:
            cycle: Any = self.cycle
            self.peers.weigh(self, len(self._kept) + (len(cycle.body) if cycle and not cycle.response_complete else 0))
        elif self.unseen_bytes:
            self.peers.weigh(self, 0)

    def _count(self, size_bytes: int) -> None:
        """What a body costs besides itself, and after its answer."""
        self._wire_bytes += size_bytes
        if self._answered_s is not None:
            self._drained_bytes += size_bytes
            if self._drained_bytes > DRAINED_MAX_BYTES:
                self.transport.abort()
        elif self._wire_bytes > 2 * self._piece_bytes + OVERHEAD_MAX_BYTES:
            self._refuse(BadRequest("the body of a request has more chunk headers than content", rule="limit.chunks"))

    def on_message_begin(self) -> None:
        self._requests += 1
        if self._requests > PIPELINED_MAX:
            self._refusal = BadRequest(
                f"more than {PIPELINED_MAX} requests came before the first was answered", rule="limit.pipelining"
            )
            raise self._refusal
        self._header_bytes = 0
        self._pieces = self._piece_bytes = self._wire_bytes = self._drained_bytes = 0
        self._answered_s = None
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        bound = self.peers.bounds.url_bytes_max
        if len(self.url) > bound:
            self._refusal = UrlTooLong(f"the URL of a request is longer than {bound} bytes; write a shorter one")
            raise self._refusal

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self.peers.bounds.head_bytes_max or len(self.headers) >= HEADERS_MAX:
            self._refusal = self._too_large()
            raise self._refusal
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        attach(self.scope, self.connection_state)  # pyright: ignore[reportArgumentType]  # it is a dictionary
        if self._doing is Doing.HEAD:
            self._begin(Doing.BODY)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._pieces += 1
        self._piece_bytes += len(body)
        if self._pieces > PIECES_FREE and self._piece_bytes < self._pieces * PIECE_BYTES_MIN:
            self._refusal = BadRequest(
                f"the body of a request came in {self._pieces} pieces of less than {PIECE_BYTES_MIN} bytes on average; "
                "send it in larger chunks",
                rule="limit.chunks",
            )
            raise self._refusal
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._begin(Doing.WORK)
        elif self._doing is Doing.BODY:  # it was answered before it had come
            self._rest()

    def on_response_complete(self) -> None:
        # What uvicorn does here, but for its timer until the connection has been idle for too long: `look` sees to
        # that, and a timer for each request costs more than the rest of this.
        self.server_state.total_requests += 1
        self._served = True
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        if not self.cycle.response_complete:  # the next one came with it
            self._begin(Doing.BODY if self.cycle.more_body else Doing.WORK)
        elif not self.cycle.more_body:
            self._rest()
        else:
            self._answered_s = self.loop.time()
            self._settle()
        self._weigh()
        if self._kept and self._doing is not Doing.WORK:
            kept, self._kept = self._kept, b""
            self.data_received(kept)

    def _rest(self) -> None:
        self._answered_s = None
        self._begin(Doing.IDLE)

    def _begin(self, doing: Doing) -> None:
        self._doing, self._since_s, self._body_bytes = doing, self.loop.time(), 0
        self._settle()

    def _settle(self) -> None:
        """Whose this connection is, and whether it may be closed for others, and how soon, as of now."""
        if self not in self.peers.all:
            return
        state = self.connection_state
        if self.group[1] != state.known_as:
            self.peers.belongs(self, state.known_as)
        rank: Rank | None = None
        if self._answered_s is not None:
            rank = Rank.ANSWERED
        elif self._doing is not Doing.WORK or state.held:
            rank = Rank.UNKNOWN if not state.known else Rank.IDLE if self._doing is Doing.IDLE else Rank.COMING
        if rank is not self.rank:
            self.peers.move(self, rank)

    # -- what takes too long --------------------------------------------------------------------------------------

    def look(self, now_s: float) -> None:
        """End this connection if it takes too long."""
        bounds, waited_s = self.peers.bounds, now_s - self._since_s
        if self._reads_slowly(now_s):
            self.transport.abort()  # closing it would wait for the other side to read
        elif self.transport.is_closing():
            return
        elif self._doing is Doing.IDLE:
            if waited_s > (bounds.idle_s if self._served else bounds.head_s):
                self.transport.close()
        elif self._doing is Doing.HEAD and waited_s > bounds.head_s:
            self._refuse(RequestTooSlow(f"the head of the request did not come within {bounds.head_s:g} s"))
        elif self._doing is Doing.BODY:
            if self._answered_s is not None and now_s - self._answered_s > bounds.head_s:
                self.transport.abort()
            elif self.flow.read_paused or self.cycle.waiting_for_100_continue:  # it is we who do not read
                self._begin(Doing.BODY)
            elif waited_s > bounds.slow_s:
                if self._body_bytes < bounds.rate_min * bounds.slow_s:
                    self._refuse(RequestTooSlow(f"the body came by less than {bounds.rate_min} bytes a second"))
                self._begin(Doing.BODY)

    def _reads_slowly(self, now_s: float) -> bool:
        """Whether an answer is hardly read any more."""
        left = self.transport.get_write_buffer_size()
        unread_bytes = left - self.connection_state.sent_bytes  # long answers come into the buffer piece by piece
        if not left or self._reading_s is None:
            self._reading_s, self._unread_bytes = (now_s, unread_bytes) if left else (None, 0)
            return False
        bounds = self.peers.bounds
        if now_s - self._reading_s <= bounds.slow_s:
            return False
        read, self._reading_s, self._unread_bytes = self._unread_bytes - unread_bytes, now_s, unread_bytes
        return read < bounds.rate_min * bounds.slow_s

    # -- refusals -------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """uvicorn's way out where a request cannot be parsed."""
        self._refuse(self._refusal or BadRequest(f"this is not HTTP that can be read here: {msg}", rule="request.http"))

    def _refuse(self, refusal: IcetowerError) -> None:
        """Answer and close; only close where it would be taken for the answer to another request."""
        self._refusal = refusal
        if self.transport.is_closing():
            return
        if self._answered_s is not None:
            self.transport.abort()
            return
        cycle: Any = self.cycle
        under_way = bool(cycle) and not cycle.response_complete
        if under_way and (self._doing is not Doing.BODY or cycle.response_started or self.pipeline):
            self.transport.abort()
            return
        body = orjson.dumps(error_body(refusal))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        again = b"retry-after: %d\r\n" % RETRY_AFTER_S if refusal.next_step == "retry" else b""
        self.transport.write(STATUS_LINE[refusal.status] + head + again + b"\r\n" + body)
        self.transport.close()

    def _too_large(self) -> HeadTooLarge:
        bound = self.peers.bounds.head_bytes_max
        return HeadTooLarge(
            f"the head of a request has more than {bound} bytes or {HEADERS_MAX} headers; send fewer and shorter ones"
        )


def protocol_of(bounds: Bounds) -> type[Connection]:
    """The protocol of a server whose connections have these bounds."""
    return type("BoundedConnection", (Connection,), {"peers": Connections(bounds)})


def raise_file_limit(connections_max: int, storage_threads: int) -> int:
    """Raise the limit of open files as far as it goes; how many connections it leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            log.debug("the limit of open files stays %d", soft)
    reserved = RESERVED_FILES + 2 * storage_threads
    if soft == resource.RLIM_INFINITY or soft >= connections_max + reserved:
        return connections_max
    room = max(16, soft - reserved)
    log.warning(
        "open files are limited to %d, which leaves room for %d connections of %d (server.connections_max): raise the "
        "hard limit (ulimit -Hn, LimitNOFILE)",
        soft,
        room,
        connections_max,
    )
    return room
