"""What can be set, in a TOML file; every value has a default that works.

[server]                     host, port, data, body_max_bytes, queue_deadline_s, key_lifetime_s, token_ttl_s,
                             token_renewal_max_s, origins, requests_at_once, storage_threads, metadata_max_bytes,
                             cache_max_bytes, bodies_max_bytes, answers_max_bytes, slow_swap_s, disk_min_bytes,
                             log_format, log_level, log_lines_max, metrics_token_sha256, metrics_token_env
[upstream]                   uri (SQLAlchemy URL), catalog (its name in the shared tables), warehouse
[storage]                    properties for PyIceberg's FileIO on the server, such as s3.endpoint
[table-config]               properties handed to clients with each table, such as s3.endpoint
[client-code]                table properties by which clients load code, and the values of them that are allowed
[defaults], [overrides]      catalog properties for clients: GET /v1/config returns them as they stand here
[escalations]                smtp_host, smtp_port, smtp_encryption, smtp_user, smtp_password_env, sender, plain_webhooks
[escalations.webhooks]       by the names that contracts use: NAME = {url, secret_env}
[alerts]                     enabled, every_s, webhook, mail
[alerts.rules.NAME]          metric, above, below, clears_at, window_s, for_s, at_least, advice, off
[traces]                     enabled, endpoint, service, sample, caller, spans_max
[events]                     keep
[lineage]                    url, token_env, namespace, catalog, plain, queue_max, timeout_s, retry_for_s

Secrets are not in the file: `…_env` names the environment variable that has one.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from icetower.alerts.rules import DEFAULTS, Metric, Rule
from icetower.contracts.model import NAME
from icetower.errors import ConfigurationError
from icetower.escalations.sending import Channels, Encryption, MailServer, Webhook
from icetower.escalations.tickets import mail_address
from icetower.gateway.settings_errors import settings_error
from icetower.ledger.watching import EVENTS_MAX
from icetower.observe.events import LINES_MAX, Form
from icetower.observe.posting import QUEUE_MAX, RETRY_FOR_S, TIMEOUT_S, Address
from icetower.observe.traces import SPANS_MAX, Caller, TraceSettings
from icetower.recent import CACHE_MAX_BYTES
from icetower.storage.port import METADATA_MAX_BYTES

LOOPBACK = ("127.0.0.1", "localhost", "::1")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8181
    data: str = ".icetower"
    """Directory of the embedded catalog, the control database and the default warehouse."""
    body_max_bytes: Annotated[int, Field(gt=0)] = 32 * 1024 * 1024
    queue_deadline_s: Annotated[float, Field(gt=0)] = 30.0
    key_lifetime_s: Annotated[int, Field(ge=60)] = 24 * 3600
    token_ttl_s: Annotated[int, Field(ge=60)] = 3600
    """How long an access token is good; it may be renewed until then."""
    token_renewal_max_s: Annotated[int, Field(ge=60)] = 24 * 3600
    """So long after the secret was presented a token ends, however often it was renewed."""
    origins: tuple[str, ...] = ()
    """Other sites whose pages may call, such as `https://console.example.com`; pages of all others are refused."""
    requests_at_once: Annotated[int, Field(ge=1)] = 512
    """So many requests of one principal go on at the same time, where its contract does not say."""
    storage_threads: Annotated[int, Field(ge=1, le=4096)] = 64
    """Calls to the storage under way at once."""
    connections_max: Annotated[int, Field(ge=16)] = 4096
    connections_by_address_max: Annotated[int, Field(ge=1)] = 2048
    head_timeout_s: Annotated[float, Field(gt=0)] = 15.0
    """From the beginning of a connection, or of a request, until its headers are there."""
    idle_timeout_s: Annotated[float, Field(gt=0)] = 75.0
    """How long a connection is kept between two requests."""
    metadata_max_bytes: Annotated[int, Field(ge=32 * 1024 * 1024)] = METADATA_MAX_BYTES
    """Tables with a longer metadata file, unpacked, are not loaded."""
    cache_max_bytes: Annotated[int, Field(ge=32 * 1024 * 1024)] = CACHE_MAX_BYTES
    """Memory of all caches together."""
    bodies_max_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    """Memory of all bodies under way together."""
    answers_max_bytes: Annotated[int, Field(ge=1024 * 1024)] = 256 * 1024 * 1024
    """Memory of all answers together that wait to be read."""
    slow_swap_s: Annotated[float, Field(gt=0)] = 1.0
    """A swap that takes longer than this is a line on the log."""
    disk_min_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    """With less free below `data`, the server says that it is not ready."""
    log_format: Form = Form.LOGFMT
    log_level: Literal["info", "warning", "error"] = "warning"
    metrics_token_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """SHA-256, in hexadecimal, of the token that may read `/metrics`; without one only an administrator's may."""
    metrics_token_env: str | None = None
    """The environment variable that has that token."""
    log_lines_max: Annotated[int, Field(ge=0)] = LINES_MAX
    """Lines of one kind in one minute; 0: all of them."""


class UpstreamSettings(_Section):
    uri: str | None = None
    """SQLAlchemy URL of a catalog in the layout of Java's JdbcCatalog and PyIceberg's SqlCatalog; default: embedded."""
    catalog: str = "icetower"
    warehouse: str | None = None
    """Where new tables go, such as s3://bucket/warehouse; default: `warehouse` under the data directory."""


class WebhookSettings(_Section):
    url: str
    """The address that notifications are posted to. Often a secret itself; it is never shown."""
    secret_env: str | None = None
    """The variable with the secret that signs each post; without it nothing is signed."""


class EscalationSettings(_Section):
    """How people hear of escalations, and of requests for partitions."""

    smtp_host: str | None = None
    """The mail server; without one no mail is sent."""
    smtp_port: Annotated[int, Field(ge=1, le=65535)] = 587
    smtp_encryption: Encryption = Encryption.STARTTLS
    smtp_user: str | None = None
    smtp_password_env: str = "ICETOWER_SMTP_PASSWORD"  # noqa: S105 - the name of a variable
    sender: str | None = None
    """`Icetower <icetower@example.com>`; mail needs it."""
    plain_webhooks: bool = False
    """Whether webhooks beyond loopback may be plain HTTP."""
    webhooks: dict[str, WebhookSettings] = {}

    def channels(self, environment: Mapping[str, str]) -> Channels:
        """The ways to send notifications. Raises `ConfigurationError`, which shows no secret."""
        webhooks = {name: self._webhook(name, webhook, environment) for name, webhook in self.webhooks.items()}
        return Channels(webhooks, None if self.smtp_host is None else self._mail_server(self.smtp_host, environment))

    def _webhook(self, name: str, webhook: WebhookSettings, environment: Mapping[str, str]) -> Webhook:
        if not NAME.fullmatch(name):
            raise _wrong(f"webhooks: {name!r}", "is no name; write letters, digits, '_', '-' or '.'")
        try:
            parts = urlsplit(webhook.url)
            host, _ = parts.hostname, parts.port
        except ValueError:
            host, parts = None, urlsplit("")
        if not host or parts.scheme not in ("http", "https") or parts.username is not None or not _plain(webhook.url):
            raise _wrong(f"webhooks.{name}.url", "is no address; write https://host/path, without a user in it")
        if parts.scheme == "http" and host not in LOOPBACK and not self.plain_webhooks:
            raise _wrong(
                f"webhooks.{name}.url", "is plain HTTP to another machine; write https, or set plain_webhooks = true"
            )
        secret = None if webhook.secret_env is None else _secret(f"webhooks.{name}", webhook.secret_env, environment)
        return Webhook(webhook.url, secret)

    def _mail_server(self, host: str, environment: Mapping[str, str]) -> MailServer:
        sender = None if self.sender is None else mail_address(self.sender)
        if sender is None:
            raise _wrong("sender", "must be a mail address where smtp_host is set: 'Icetower <icetower@example.com>'")
        if self.smtp_user is None:
            return MailServer(host, self.smtp_port, self.smtp_encryption, sender)
        if self.smtp_encryption is Encryption.NONE and host not in LOOPBACK:
            raise _wrong("smtp_encryption", "is none, and the password would travel in the open; write starttls")
        password = _secret("smtp_user", self.smtp_password_env, environment)
        return MailServer(host, self.smtp_port, self.smtp_encryption, sender, self.smtp_user, password)


def _plain(url: str) -> bool:
    """Whether a URL can be sent as it stands: no spaces, no control characters, nothing beyond ASCII."""
    return url.isascii() and url.isprintable() and " " not in url


def _secret(of: str, name: str, environment: Mapping[str, str]) -> str:
    secret = environment.get(name)
    if not secret:
        raise _wrong(of, f"needs a secret in the environment variable {name}, which is not set")
    return secret


def _wrong(key: str, what: str, section: str = "escalations") -> ConfigurationError:
    return ConfigurationError(f"[{section}] {key} {what}", rule=f"configuration.{section}")


class AlertRuleSettings(_Section):
    """What is said of a rule; of one that comes with the tower the rest stays as it is."""

    metric: Metric | None = None
    above: float | None = None
    below: float | None = None
    clears_at: float | None = None
    window_s: Annotated[int, Field(ge=300, le=86_400)] | None = None
    for_s: Annotated[int, Field(ge=0, le=86_400)] | None = None
    at_least: Annotated[int, Field(ge=1)] | None = None
    advice: Annotated[str, Field(max_length=1_000)] | None = None
    off: bool = False


class AlertSettings(_Section):
    """When people hear that figures are out of bounds, and who."""

    enabled: bool = True
    every_s: Annotated[float, Field(ge=1, le=3_600)] = 15.0
    """How often the figures are looked at."""
    webhook: str | None = None
    """The name of one of `escalations.webhooks`."""
    mail: str | None = None
    """The address that alerts are mailed to."""
    rules: dict[str, AlertRuleSettings] = {}

    def rules_in_force(self) -> tuple[Rule, ...]:
        """The rules. Raises `ConfigurationError` naming what is wrong."""
        found = {rule.name: rule for rule in DEFAULTS}
        for name, said in self.rules.items():
            before = found.pop(name, None)
            if not said.off:
                found[name] = _rule(name, said, before)
        return tuple(found.values())


def _rule(name: str, said: AlertRuleSettings, before: Rule | None) -> Rule:
    at = f"rules.{name}"
    if len(name) > 64 or not NAME.fullmatch(name):
        raise _wrong(at, "is no name; write letters, digits, '_', '-' or '.', 64 at most", "alerts")
    given = {key: value for key, value in said.model_dump(exclude={"off"}).items() if value is not None}
    if said.above is not None and said.below is not None:
        raise _wrong(at, "has two bounds; write above or below", "alerts")
    if said.above is not None or said.below is not None:
        given |= {"above": said.above, "below": said.below}
    if before is None and (said.metric is None or (said.above is None and said.below is None)):
        raise _wrong(at, f"is new: it needs a metric ({', '.join(Metric)}), and above or below", "alerts")
    rule = Rule(name, said.metric or Metric.RETRY_RATE) if before is None else before
    rule = replace(rule, **given)
    if said.clears_at is None and (said.above is not None or said.below is not None):
        rule = replace(rule, clears_at=rule.threshold)
    if rule.breached(rule.clears_at):
        raise _wrong(at, "never ends: clears_at lies beyond its bound", "alerts")
    return rule


class TracesSettings(_Section):
    """Traces of commits by OpenTelemetry. What is not set comes from its own environment variables."""

    enabled: bool = False
    endpoint: str | None = None
    """Where spans are posted to, OTLP over HTTP: `http://127.0.0.1:4318/v1/traces`. Headers with a secret in them come
    from OTEL_EXPORTER_OTLP_HEADERS."""
    service: str | None = None
    sample: Annotated[float, Field(ge=0, le=1)] | None = None
    """The part of the requests that is traced."""
    caller: Caller = Caller.LINK
    """What becomes of a client's `traceparent`."""
    spans_max: Annotated[int, Field(ge=64, le=1_000_000)] = SPANS_MAX
    """Spans that wait to be sent; beyond it the oldest are dropped."""

    def wanted(self) -> TraceSettings | None:
        """None: nobody traces. Raises `ConfigurationError`."""
        if not self.enabled:
            return None
        if self.endpoint is not None:
            checked_address(self.endpoint, "[traces] endpoint", rule="configuration.traces")
        return TraceSettings(self.endpoint, self.service, self.sample, self.caller, self.spans_max)


class EventsSettings(_Section):
    """Changes of tables and namespaces, for others to follow."""

    keep: Annotated[int, Field(ge=0, le=10_000_000)] = EVENTS_MAX
    """So many are kept, the newest; 0: none."""


class LineageSettings(_Section):
    """OpenLineage's events of commits: off without a `url`."""

    url: str | None = None
    """Where events are posted to: `https://lineage.example.com/api/v1/lineage`. Often a secret itself; it is never
    shown."""
    token_env: str | None = None
    """The environment variable with a token, which is sent as a bearer."""
    namespace: str = "icetower"
    """Of the jobs."""
    catalog: str | None = None
    """The namespace of the tables' names; default: `upstream.catalog`."""
    plain: bool = False
    """Whether the address may be plain HTTP beyond loopback."""
    queue_max: Annotated[int, Field(ge=1, le=1_000_000)] = QUEUE_MAX
    """Commits whose events wait; beyond it the oldest are dropped."""
    timeout_s: Annotated[float, Field(gt=0, le=60)] = TIMEOUT_S
    retry_for_s: Annotated[float, Field(ge=0, le=86_400)] = RETRY_FOR_S
    """So long after its first try an event is given up."""

    def address(self, environment: Mapping[str, str]) -> Address | None:
        """None: nothing is sent. Raises `ConfigurationError`, which shows no secret."""
        rule = "configuration.lineage"
        if self.url is None:
            return None
        scheme, host = checked_address(self.url, "[lineage] url", rule=rule)
        if scheme == "http" and host not in LOOPBACK and not self.plain:
            raise ConfigurationError(
                "[lineage] url is plain HTTP to another machine; write https, or set plain = true", rule=rule
            )
        if self.token_env is None:
            return Address(self.url)
        token = environment.get(self.token_env)
        if not token or not token.isascii() or not token.isprintable():
            raise ConfigurationError(
                f"[lineage] token_env: the environment variable {self.token_env} has no token that can be sent",
                rule=rule,
            )
        return Address(self.url, token)


def checked_address(url: str, key: str, *, rule: str) -> tuple[str, str]:
    """The scheme and the host of an address that the tower posts to.

    Raises `ConfigurationError` where it is none, or has a user or a password in it; the message does not show it.
    """
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if not host or parts.scheme not in ("http", "https") or parts.username is not None or not _plain(url):
        raise ConfigurationError(f"{key} is no address; write https://host/path, without a user in it", rule=rule)
    return parts.scheme, host


class Settings(_Section):
    server: Server = Server()
    upstream: UpstreamSettings = UpstreamSettings()
    storage: dict[str, str] = {}
    table_config: Annotated[dict[str, str], Field(alias="table-config")] = {}
    client_code: Annotated[dict[str, tuple[str, ...]], Field(alias="client-code")] = {}
    defaults: dict[str, str] = {}
    overrides: dict[str, str] = {}
    escalations: EscalationSettings = EscalationSettings()
    alerts: AlertSettings = AlertSettings()
    traces: TracesSettings = TracesSettings()
    events: EventsSettings = EventsSettings()
    lineage: LineageSettings = LineageSettings()


def data_directory(given: str, databases: Sequence[str] = ("control.db",)) -> Path:
    """The directory of the server's data, with databases in it that only its owner can read.

    Who may read a database of SQLite may lock it, and so keep everybody from writing.

    Raises `ConfigurationError` where it cannot be had.
    """
    data = Path(given).absolute()
    try:
        data.mkdir(parents=True, exist_ok=True)
        for name in databases:
            (data / name).touch(mode=0o600)
    except OSError as error:
        cause = "it is a file" if data.is_file() else (error.strerror or str(error)).lower()
        raise ConfigurationError(
            f"the data directory {data} cannot be used: {cause} ({error.filename}); name another with --data or "
            "server.data",
            rule="configuration.data",
        ) from error
    return data


def load_settings(path: Path | None, **server: Any) -> Settings:
    """Settings from a file, with what the command line says about the server on top (None: not said).

    Raises `ConfigurationError` naming the file, the key and what is wrong with it.
    """
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(
                f"the configuration file {path} cannot be read: {(error.strerror or str(error)).lower()}; "
                "name another with --config"
            ) from error
        except (ValueError, RecursionError) as error:  # no TOML, or no UTF-8
            raise ConfigurationError(f"the configuration file {path} is not TOML: {error}") from error
    section = content.get("server", {})
    if isinstance(section, dict):
        content["server"] = section | {key: value for key, value in server.items() if value is not None}
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        raise settings_error(path, Settings, error) from error
