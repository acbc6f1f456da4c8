"""One message by each way, to real receivers: what arrives, and what is said of one that does not."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from icetower.ambient import SystemAmbient
from icetower.errors import Unavailable
from icetower.escalations.messages import mail
from icetower.escalations.sending import Channels, Encryption, MailServer, Sender, Webhook
from icetower.escalations.tickets import Channel, Delivery, Kind, Ticket, mail_address
from tests.wire.receivers import hook, mail_server

MATTER = Ticket(
    id="01a1fe03-73b8-78ac-b3d5-6bcc4d844630",
    kind=Kind.ESCALATION,
    subject="0" * 64,
    principal="pricing-1",
    contract="pricing",
    table="pricing.prices",
    contact="Dana Ito <dana.ito@example.com>",
    details={"after_failures": 2, "within_s": 60.0, "failures": [{"at_ms": 1_000, "rule": "contract.partitions"}] * 2},
    opened_ms=2_000,
)
REQUEST = replace(
    MATTER,
    kind=Kind.REQUEST,
    details={"partitions": ["day=2017-02-01"], "operations": ["append"], "reason": "they came early\nand many"},
)
TO_HOOK = Delivery(Channel.WEBHOOK, "oncall", 1, 0)
TO_DANA = Delivery(Channel.MAIL, "Dana Ito <dana.ito@example.com>", 1, 0)
SENDER = mail_address("Icetower <icetower@example.com>")
assert SENDER is not None


HEADERS = {
    *("from", "to", "subject", "date", "message-id", "auto-submitted"),
    *("content-type", "content-transfer-encoding", "mime-version"),
}


class Clock(SystemAmbient):
    def now_ms(self) -> int:
        return 1_500_000_000_123


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, Path]:
    """A server's side of TLS for 127.0.0.1, and the certificate by which clients know it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("tls")
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context, folder / "cert.pem"


@pytest.fixture
def silent() -> Iterator[int]:
    """A port at which connections are taken and nothing is ever said."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def closed() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def send(
    channels: Channels, delivery: Delivery, ticket: Ticket = MATTER, *, wait_s: float = 30, deadline_s: float = 60
) -> None:
    async def work() -> None:
        sender = Sender(channels, Clock(), wait_s=wait_s, deadline_s=deadline_s)
        try:
            await sender.send(ticket, delivery)
        finally:
            sender.close()

    asyncio.run(work())


def fault(channels: Channels, delivery: Delivery, *, wait_s: float = 30, deadline_s: float = 60) -> str:
    with pytest.raises(Unavailable) as caught:
        send(channels, delivery, wait_s=wait_s, deadline_s=deadline_s)
    return caught.value.message


def by_hook(url: str, secret: str | None = "s3cret") -> Channels:
    return Channels({"oncall": Webhook(url, secret)})


def by_mail(
    port: int, encryption: Encryption = Encryption.NONE, user: str | None = None, host: str = "127.0.0.1"
) -> Channels:
    assert SENDER is not None
    return Channels(mail_server=MailServer(host, port, encryption, SENDER, user, None if user is None else "pa55word"))


# -- webhooks ---------------------------------------------------------------------------------------------------------


def test_a_post_says_what_happened_and_is_signed() -> None:
    with hook() as receiver:
        send(by_hook(receiver.url), TO_HOOK)
        post = receiver.next()
    assert post.path == "/hook?team=pricing"
    assert post.headers["Content-Type"] == "application/json"
    signed = hmac.new(b"s3cret", b"1500000000." + post.body, hashlib.sha256).hexdigest()
    assert post.headers["Icetower-Signature"] == f"t=1500000000,v1={signed}"
    said = post.json
    told = "Icetower: pricing-1 is stopped at pricing.prices after 2 failures in a row"
    assert said.pop("text") == f"{told} ({MATTER.id})"
    assert said == {
        "event": "escalation.opened",
        "id": MATTER.id,
        "kind": "escalation",
        "principal": "pricing-1",
        "contract": "pricing",
        "table": "pricing.prices",
        "contact": "Dana Ito <dana.ito@example.com>",
        "opened_ms": 2_000,
        **MATTER.details,
    }


def test_without_a_secret_nothing_is_signed() -> None:
    with hook() as receiver:
        send(by_hook(receiver.url, None), TO_HOOK, REQUEST)
        post = receiver.next()
    assert "Icetower-Signature" not in post.headers
    assert post.json["event"] == "request.opened"
    assert post.json["partitions"] == ["day=2017-02-01"]


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    with hook([status]) as receiver:
        assert fault(by_hook(receiver.url), TO_HOOK) == f"HTTP status {status}: redirects are not followed"
        receiver.next()
        assert receiver.posts.empty()


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503])
def test_any_other_status_is_told_by_its_number(status: int) -> None:
    with hook([status]) as receiver:
        assert fault(by_hook(receiver.url), TO_HOOK) == f"HTTP status {status}"


def test_a_hook_over_tls_must_prove_who_it_is(
    tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificate = tls
    with hook(tls=context) as receiver:
        url = f"https://localhost:{receiver.port}/hook"
        assert fault(by_hook(url), TO_HOOK) == "SSLCertVerificationError"
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        send(by_hook(url), TO_HOOK)
        assert receiver.next().path == "/hook"
        # The certificate is for another name.
        assert fault(by_hook(f"https://127.0.0.1:{receiver.port}/hook"), TO_HOOK) == "SSLCertVerificationError"


# -- mail -------------------------------------------------------------------------------------------------------------


def test_a_mail_says_what_happened_and_what_to_do() -> None:
    with mail_server() as receiver:
        send(by_mail(receiver.port), TO_DANA)
        got = receiver.next()
    assert (got.sender, got.recipients) == ("icetower@example.com", ["dana.ito@example.com"])
    assert got.message["To"] == "Dana Ito <dana.ito@example.com>"
    assert got.message["Subject"] == "[icetower] pricing-1 is stopped at pricing.prices after 2 failures in a row"
    assert got.message["Message-ID"] == f"<{MATTER.id}@example.com>"
    text = got.message.get_content()
    assert "contract.partitions (2)" in text
    assert f"icetower escalations close {MATTER.id}" in text


def test_a_request_is_mailed_with_its_reason() -> None:
    with mail_server() as receiver:
        send(by_mail(receiver.port), TO_DANA, REQUEST)
        text = receiver.next().message.get_content()
    for said in ("day=2017-02-01", "append", "they came early", "and many", f"icetower requests close {MATTER.id}"):
        assert said in text


def test_a_mail_goes_over_tls_and_as_a_user(tls: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    context, certificate = tls
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with mail_server(tls=context, user=("icetower", "pa55word")) as receiver:
        send(by_mail(receiver.port, Encryption.STARTTLS, "icetower", "localhost"), TO_DANA)
        assert receiver.next().user == "icetower"
        refused = fault(by_mail(receiver.port, Encryption.STARTTLS, "somebody", "localhost"), TO_DANA)
        assert refused == "SMTPAuthenticationError: SMTP status 535"
    monkeypatch.delenv("SSL_CERT_FILE")
    with mail_server(tls=context) as receiver:
        assert (
            fault(by_mail(receiver.port, Encryption.STARTTLS, host="localhost"), TO_DANA) == "SSLCertVerificationError"
        )
    with mail_server() as receiver:  # somebody in between has taken STARTTLS away
        assert fault(by_mail(receiver.port, Encryption.STARTTLS), TO_DANA) == "SMTPNotSupportedError"
        assert receiver.mails.empty()


def test_a_mail_server_that_refuses_is_told_by_its_code() -> None:
    with mail_server(["451 come back later", "554 never"]) as receiver:
        assert fault(by_mail(receiver.port), TO_DANA) == "SMTPDataError: SMTP status 451"
        assert fault(by_mail(receiver.port), TO_DANA) == "SMTPDataError: SMTP status 554"


@pytest.mark.parametrize(
    ("table", "contact"),
    [
        ("a.b\r\nBcc: everybody@example.com\r\n\r\nhello", "Dana <dana@example.com>"),
        ("a.b\u2028Bcc: everybody@example.com", "Dana\x00\x0bX: y <dana@example.com>"),
        ("a.b\ud800", 'Dana "\\" X <dana@example.com>'),
    ],
)
def test_no_header_is_smuggled_in(table: str, contact: str) -> None:
    with mail_server() as receiver:
        send(by_mail(receiver.port), Delivery(Channel.MAIL, contact, 1, 0), replace(MATTER, table=table))
        got = receiver.next()
    assert got.recipients == ["dana@example.com"]
    assert {name.lower() for name in got.message} <= HEADERS
    assert got.message["Bcc"] is None


def test_a_mail_is_made_of_headers_that_are_ours_alone() -> None:
    assert SENDER is not None
    message = mail(replace(MATTER, table="t\nX-Evil: 1"), SENDER, SENDER, 0)
    assert "X-Evil" not in message.keys()  # noqa: SIM118 - a message has no order of its own to iterate in
    assert "\n" not in message["Subject"]


# -- receivers that are not there, or do not end ----------------------------------------------------------------------


def test_nobody_listens(closed: int) -> None:
    assert fault(by_hook(f"http://127.0.0.1:{closed}/secret-path"), TO_HOOK) == "ConnectionRefusedError"
    assert fault(by_mail(closed), TO_DANA) == "ConnectionRefusedError"


def test_a_receiver_that_says_nothing_is_left(silent: int) -> None:
    assert fault(by_hook(f"http://127.0.0.1:{silent}/"), TO_HOOK, wait_s=0.2) == "timed out"
    assert fault(by_mail(silent), TO_DANA, wait_s=0.2) == "SMTPServerDisconnected"


@pytest.mark.parametrize("delivery", [TO_HOOK, TO_DANA])
def test_one_that_answers_byte_by_byte_is_broken_off(delivery: Delivery) -> None:
    """Each byte comes in time, the end never does; and the thread that waited for it is free again."""
    broken = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        try:
            with connection:
                while not broken.wait(0.02):
                    connection.sendall(b"2")
        except OSError:
            broken.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        dripping = threading.Thread(target=drip, args=(listener,))
        dripping.start()
        port = listener.getsockname()[1]
        channels = replace(by_mail(port), webhooks=by_hook(f"http://127.0.0.1:{port}/").webhooks)
        assert fault(channels, delivery, deadline_s=0.3) == "no end after 0.3 s"
        dripping.join()
    assert broken.is_set()


def test_what_the_settings_do_not_have_is_said() -> None:
    assert fault(Channels(), TO_HOOK) == "the tower's settings have no webhook of this name"
    assert fault(Channels(), TO_DANA) == "the tower's settings name no mail server"
    assert fault(by_mail(1), Delivery(Channel.MAIL, "#pricing", 1, 0)) == "this is no mail address"


def test_addresses_and_secrets_are_never_shown(closed: int) -> None:
    channels = by_hook(f"http://127.0.0.1:{closed}/secret-path")
    shown = repr((channels, by_mail(closed, user="icetower")))
    for secret in ("secret-path", "s3cret", "pa55word"):
        assert secret not in shown
        assert secret not in fault(channels, TO_HOOK)
