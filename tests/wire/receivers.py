"""Real receivers on loopback for word of escalations: a webhook over HTTP(S) and a mail server, as bad as asked for."""

from __future__ import annotations

import asyncio
import json
import queue
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword, Session

ARRIVES_WITHIN_S = 60


class Post(NamedTuple):
    """What was posted."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.body)


class HookReceiver:
    """A webhook's receiver.

    Attributes:
        answers: statuses for the next posts, in turn; then 200. `None`: no answer until `released`.
        released: set it, and whoever was held gets a 200.
    """

    def __init__(self, answers: Iterable[int | None] = (), *, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.released = threading.Event()
        self.posts: queue.Queue[Post] = queue.Queue()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.posts.put(Post(self.path, dict(self.headers), body))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if status is None:
                    receiver.released.wait()
                self.send_response(status or 200)
                if status is not None and 300 <= status < 400:
                    self.send_header("Location", f"{receiver.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                del args

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        scheme = "http"
        if tls is not None:
            scheme = "https"
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.url = f"{scheme}://127.0.0.1:{self.server.server_port}/hook?team=pricing"

    @property
    def port(self) -> int:
        return self.server.server_port

    def next(self) -> Post:
        """The next post; it fails the test where none comes."""
        return self.posts.get(timeout=ARRIVES_WITHIN_S)


@contextmanager
def hook(answers: Iterable[int | None] = (), *, tls: ssl.SSLContext | None = None) -> Iterator[HookReceiver]:
    receiver = HookReceiver(answers, tls=tls)
    thread = threading.Thread(target=receiver.server.serve_forever)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.released.set()
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


class Mail(NamedTuple):
    """What was handed in: the envelope, what it holds, and who had signed in."""

    sender: str
    recipients: list[str]
    message: EmailMessage
    user: str | None


class MailReceiver:
    """A mail server.

    Attributes:
        answers: what it says to the next messages, in turn, such as ``451 later``; then it takes them.
    """

    def __init__(
        self,
        answers: Iterable[str] = (),
        *,
        tls: ssl.SSLContext | None = None,
        user: tuple[str, str] | None = None,
    ) -> None:
        self.answers = list(answers)
        self.mails: queue.Queue[Mail] = queue.Queue()
        self._user = user
        self._tls = tls
        self.loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))

    def _session(self) -> SMTP:
        return SMTP(
            self,
            loop=self.loop,
            tls_context=self._tls,
            require_starttls=self._tls is not None,
            auth_required=self._user is not None,
            authenticator=self._authenticate,
        )

    def _authenticate(self, server: SMTP, session: Session, envelope: Envelope, how: str, said: Any) -> AuthResult:
        del server, session, envelope, how
        assert isinstance(said, LoginPassword)
        right = (said.login.decode(), said.password.decode()) == self._user
        return AuthResult(success=right, handled=False, auth_data=said)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name
        del server
        if self.answers:
            return self.answers.pop(0)
        message = message_from_bytes(envelope.content or b"", policy=policy.default)
        user = session.auth_data.login.decode() if session.auth_data else None
        self.mails.put(Mail(envelope.mail_from or "", list(envelope.rcpt_tos), message, user))
        return "250 taken"

    @property
    def port(self) -> int:
        return self._listener.getsockname()[1]

    def serve(self) -> None:
        """Until `loop.stop`."""
        server = self.loop.run_until_complete(self.loop.create_server(self._session, sock=self._listener))
        self.loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    def next(self) -> Mail:
        """The next mail; it fails the test where none comes."""
        return self.mails.get(timeout=ARRIVES_WITHIN_S)


@contextmanager
def mail_server(
    answers: Iterable[str] = (), *, tls: ssl.SSLContext | None = None, user: tuple[str, str] | None = None
) -> Iterator[MailReceiver]:
    receiver = MailReceiver(answers, tls=tls, user=user)
    thread = threading.Thread(target=receiver.serve)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.loop.call_soon_threadsafe(receiver.loop.stop)
        thread.join()
