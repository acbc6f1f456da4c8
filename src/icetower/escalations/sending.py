"""Sends a notification of a ticket: one POST to a webhook, or one mail. Each attempt ends, whatever the receiver does.

Both run in threads. Failures are reported by their kind alone (a status, the name of an exception): what the other side
says, and the webhook's address, may be secrets, and end up in no log and no answer.
"""

from __future__ import annotations

import http.client
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.headerregistry import Address
from email.message import EmailMessage
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

from icetower.ambient import Ambient
from icetower.errors import Unavailable
from icetower.escalations.messages import SIGNATURE, mail, signature, webhook_body
from icetower.escalations.tickets import Channel, Delivery, Ticket, mail_address
from icetower.threads import Threads

SENDERS = 4
"""Messages under way at once."""

WAIT_S = 10.0
"""For a connection, and for each answer."""

DEADLINE_S = 30.0
"""For one attempt as a whole: a receiver that answers byte by byte holds up nobody."""


class Encryption(StrEnum):
    """How a connection to a mail server is protected."""

    STARTTLS = "starttls"
    IMPLICIT = "implicit"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address, and the secret that its receiver shares. Neither is ever shown."""

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class MailServer:
    """Where mail is handed in."""

    host: str
    port: int
    encryption: Encryption
    sender: Address
    user: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Channels:
    """What a tower can send by. `webhooks` by the names that contracts use."""

    webhooks: Mapping[str, Webhook] = field(default_factory=dict[str, Webhook])
    mail_server: MailServer | None = None


class _Session(Protocol):
    def send(self) -> None:
        """Raises `Unavailable` where it has not arrived for certain."""
        ...

    def abort(self) -> None:
        """Break the connection off under `send`, from another thread."""
        ...


class Sender:
    """Sends what is to be sent, and says what became of it.

    Args:
        wait_s, deadline_s: see `WAIT_S` and `DEADLINE_S`.
    """

    def __init__(
        self, channels: Channels, ambient: Ambient, *, wait_s: float = WAIT_S, deadline_s: float = DEADLINE_S
    ) -> None:
        self._channels = channels
        self._ambient = ambient
        self._wait_s = wait_s
        self._deadline_s = deadline_s
        self._threads = Threads(SENDERS, "notify")

    async def send(self, ticket: Ticket, delivery: Delivery) -> None:
        """One attempt. Raises `Unavailable` where it has not arrived for certain; its message may be shown."""
        session = self._session(ticket, delivery)
        try:
            await self._threads.run(session.send, timeout_s=self._deadline_s)
        except TimeoutError as error:
            raise _not_sent(f"no end after {self._deadline_s:g} s") from error
        finally:
            session.abort()  # where the thread is still at it: it ends now

    def close(self) -> None:
        """Let go of the threads; what is under way is broken off by whoever awaits it."""
        self._threads.close(wait=False)

    def _session(self, ticket: Ticket, delivery: Delivery) -> _Session:
        now_ms = self._ambient.now_ms()
        if delivery.channel is Channel.WEBHOOK:
            webhook = self._channels.webhooks.get(delivery.address)
            if webhook is None:
                raise _not_sent("the tower's settings have no webhook of this name")
            body = webhook_body(ticket)
            signed = {} if webhook.secret is None else {SIGNATURE: signature(webhook.secret, body, now_ms)}
            return _Post(webhook.url, signed, body, self._wait_s)
        server, to = self._channels.mail_server, mail_address(delivery.address)
        if server is None:
            raise _not_sent("the tower's settings name no mail server")
        if to is None:
            raise _not_sent("this is no mail address")
        return _Mail(server, to, mail(ticket, server.sender, to, now_ms), self._wait_s)


def _not_sent(fault: str) -> Unavailable:
    return Unavailable(fault, rule="escalation.delivery")


class _Post:
    """A POST. No redirect is followed and no proxy asked: word goes to the address in the settings or nowhere."""

    def __init__(self, url: str, headers: Mapping[str, str], body: bytes, wait_s: float) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=wait_s, context=context)
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=wait_s)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._headers = {"Content-Type": "application/json", "User-Agent": "icetower", **headers}
        self._body = body

    def send(self) -> None:
        try:
            self._connection.request("POST", self._target, self._body, self._headers)
            status = self._connection.getresponse().status  # its body is nobody's business
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _not_sent(_kind(error)) from None  # the cause may hold the address
        finally:
            self._connection.close()
        if 300 <= status < 400:
            raise _not_sent(f"HTTP status {status}: redirects are not followed")
        if not 200 <= status < 300:
            raise _not_sent(f"HTTP status {status}")

    def abort(self) -> None:
        _break_off(lambda: self._connection.sock)


class _Mail:
    def __init__(self, server: MailServer, to: Address, message: EmailMessage, wait_s: float) -> None:
        self._server = server
        self._to = to
        self._message = message
        self._wait_s = wait_s
        self._smtp: smtplib.SMTP | None = None

    def send(self) -> None:
        server = self._server
        try:
            with self._connect() as smtp:
                if server.encryption is Encryption.STARTTLS:
                    smtp.starttls(context=ssl.create_default_context())
                if server.user is not None and server.password is not None:
                    smtp.login(server.user, server.password)
                smtp.send_message(self._message, server.sender.addr_spec, [self._to.addr_spec])
        except smtplib.SMTPResponseException as error:
            raise _not_sent(f"{type(error).__name__}: SMTP status {error.smtp_code}") from None
        except smtplib.SMTPRecipientsRefused as error:
            codes = ", ".join(str(code) for code, _ in error.recipients.values())
            raise _not_sent(f"the recipient was refused: SMTP status {codes}") from None
        except (OSError, ValueError) as error:  # every error of smtplib is an OSError
            raise _not_sent(_kind(error)) from None

    def _connect(self) -> smtplib.SMTP:
        # It connects as it is made. Known before that, it can be broken off while it waits for the server's greeting.
        server = self._server
        if server.encryption is Encryption.IMPLICIT:
            secured = self._smtp = smtplib.SMTP_SSL.__new__(smtplib.SMTP_SSL)
            context = ssl.create_default_context()
            secured.__init__(server.host, server.port, timeout=self._wait_s, context=context)
            return secured
        plain = self._smtp = smtplib.SMTP.__new__(smtplib.SMTP)
        plain.__init__(server.host, server.port, timeout=self._wait_s)
        return plain

    def abort(self) -> None:
        _break_off(lambda: self._smtp and self._smtp.sock)


def _kind(error: Exception) -> str:
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__


def _break_off(connection: Callable[[], socket.socket | None]) -> None:
    found = connection()
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)
