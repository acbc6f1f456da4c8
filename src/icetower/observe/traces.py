"""Traces of commits, by OpenTelemetry: off unless the settings say so, and OpenTelemetry is imported only then.

One trace a request: `icetower.request`, and below it `icetower.judge`, `icetower.queue`, `icetower.plan`,
`icetower.write` and `icetower.swap`. Commits share their last three with their group, which has a trace of its own,
`icetower.group`. It links to each of its members, and they to it. The phases are made into spans once they are over, so
that the engine knows nothing of traces: it notes when each began, as it does for the log of attempts.

Spans wait in a bounded queue for a thread that sends them (OTLP over HTTP). A full queue drops the oldest: a collector
that is dead or slow neither delays nor fails a commit.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icetower.ambient import Ambient
from icetower.errors import ConfigurationError

SPANS_MAX = 4096
"""Spans that wait to be sent."""
BATCH_MAX = 512
SEND_TIMEOUT_S = 5.0
"""For one batch, what is tried again included."""
CLOSE_S = 3.0
"""For the spans that wait when the tower stops."""
LINKS_MAX = 128
"""Members of a group that its span links to."""
TEXT_CHARACTERS_MAX = 500
PREFIX = "icetower."

Phase = tuple[str, float, float]
"""Its name, when it began (monotonic, seconds), and how long it took (milliseconds)."""


class Caller(StrEnum):
    """What becomes of the trace context that a client sends (`traceparent`).

    A parent decides the trace's id and whether it is sampled: only for clients that are trusted with that.
    """

    IGNORE = "ignore"
    LINK = "link"
    PARENT = "parent"


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """See `[traces]` in docs/operations.md; what is None comes from OpenTelemetry's own environment variables."""

    endpoint: str | None = None
    service: str | None = None
    sample: float | None = None
    caller: Caller = Caller.LINK
    spans_max: int = SPANS_MAX


class CommitTrace:
    """The trace of one request, until it is answered."""

    __slots__ = ("_began_ns", "_began_s", "_status", "_traces", "request_id", "span")

    def __init__(self, traces: Traces, span: Any, began_ns: int, began_s: float) -> None:
        self._traces = traces
        self.span = span
        self._began_ns = began_ns
        self._began_s = began_s
        self._status: int | None = None
        self.request_id: str | None = None

    def begins(self, request_id: str) -> None:
        """The request is a commit, with this id."""
        self.request_id = request_id
        self._traces.under_way[request_id] = self

    def ended(self, about: Mapping[str, object], phases: Sequence[Phase], group: object, failure: str | None) -> None:
        """The commit has ended, to one table.

        Args:
            about: of the commit; what is None is left out.
            group: the context of its group's span, where it has one.
            failure: the rule that refused it.
        """
        span, traces = self.span, self._traces
        span.set_attributes(_attributes(about))
        if failure is not None:
            span.set_status(traces.failed(failure))
        for name, began_s, took_ms in phases:
            began_ns = self._began_ns + int((began_s - self._began_s) * 1e9)
            shared = group if name in ("plan", "write", "swap") else None
            traces.finished(name, span, began_ns, took_ms, shared, {"table": about.get("table")})

    def answered(self, status: int) -> None:
        """The request was answered."""
        self._status = status
        self.span.set_attribute("http.response.status_code", status)

    def over(self) -> None:
        """Nothing more comes."""
        if self.request_id is not None:
            self._traces.under_way.pop(self.request_id, None)
        self.span.end(self._began_ns + int((self._traces.monotonic_s() - self._began_s) * 1e9))


class Traces:
    """Where spans are made. One a server.

    Attributes:
        under_way: requests to commit by their id.
    """

    def __init__(self, provider: Any, ambient: Ambient, caller: Caller) -> None:
        self._api: Any = importlib.import_module("opentelemetry.trace")
        propagation: Any = importlib.import_module("opentelemetry.trace.propagation.tracecontext")
        self._propagator = propagation.TraceContextTextMapPropagator()
        self._context: Any = importlib.import_module("opentelemetry.context").Context
        self._provider = provider
        self._tracer = provider.get_tracer("icetower")
        self._ambient = ambient
        self._caller = caller
        self.under_way: dict[str, CommitTrace] = {}

    def monotonic_s(self) -> float:
        return self._ambient.monotonic_s()

    @contextmanager
    def request(self, method: str, route: str, headers: Mapping[str, str]) -> Generator[CommitTrace]:
        """The trace of a request, from now until the context ends.

        Args:
            route: its path as the routes have it: no name that a client chose.
        """
        remote = None if self._caller is Caller.IGNORE else self._remote(headers)
        parent = remote if self._caller is Caller.PARENT else None
        links = [self._api.Link(remote)] if remote is not None and parent is None else []
        context = self._context()  # nobody else's: a task of the server may run within another span
        if parent is not None:
            context = self._api.set_span_in_context(self._api.NonRecordingSpan(parent), context)
        began_ns, began_s = self._ambient.now_ms() * 1_000_000, self._ambient.monotonic_s()
        span = self._tracer.start_span(
            PREFIX + "request",
            context=context,
            kind=self._api.SpanKind.SERVER,
            attributes={"http.request.method": method, "http.route": route},
            links=links,
            start_time=began_ns,
        )
        trace = CommitTrace(self, span, began_ns, began_s)
        try:
            yield trace
        finally:
            trace.over()

    def group(self, requests: Sequence[str], about: Mapping[str, object], phases: Sequence[Phase]) -> object:
        """A group was swapped, or was not.

        Args:
            requests: the ids of its members' requests.
            phases: the first began first.

        Returns:
            The context of its span, for its members to link to.
        """
        members = [self.under_way[request] for request in requests[:LINKS_MAX] if request in self.under_way]
        links = [self._api.Link(member.span.get_span_context()) for member in members]
        now_ns, now_s = self._ambient.now_ms() * 1_000_000, self._ambient.monotonic_s()
        began_ns = now_ns - int((now_s - phases[0][1]) * 1e9)
        attributes = _attributes(about)
        span = self._tracer.start_span(
            PREFIX + "group", context=self._context(), attributes=attributes, links=links, start_time=began_ns
        )
        for name, began_s, took_ms in phases:
            self.finished(name, span, now_ns - int((now_s - began_s) * 1e9), took_ms, None, {})
        span.end(now_ns)
        return span.get_span_context()

    def finished(
        self, name: str, parent: Any, began_ns: int, took_ms: float, link: object, about: Mapping[str, object]
    ) -> None:
        """A span that is over already. `link`: the context of another that it shares its time with."""
        span = self._tracer.start_span(
            PREFIX + name,
            context=self._api.set_span_in_context(parent, self._context()),
            attributes=_attributes(about),
            links=[] if link is None else [self._api.Link(link)],
            start_time=began_ns,
        )
        span.end(began_ns + int(took_ms * 1e6))

    def failed(self, rule: str) -> Any:
        """The status of a span that failed by a rule. What else is said of it may be long: the log has it."""
        return self._api.Status(self._api.StatusCode.ERROR, rule)

    async def close(self) -> None:
        """Send what waits, for a short while; what is left then is dropped."""
        await asyncio.to_thread(self._provider.shutdown)

    def _remote(self, headers: Mapping[str, str]) -> Any:
        """The span context that a client sent; None where it sent none that can be read."""
        given = headers.get("traceparent")
        if given is None:
            return None
        carrier = {"traceparent": given, "tracestate": headers.get("tracestate", "")}
        found = self._api.get_current_span(self._propagator.extract(carrier, self._context())).get_span_context()
        return found if found.is_valid else None


def open_traces(settings: TraceSettings, ambient: Ambient) -> Traces:
    """Begin to send spans. Nothing is sent yet, and no collector need be there.

    Raises `ConfigurationError` where OpenTelemetry is not installed, or its environment variables make no sense.
    """
    try:
        sdk: Any = importlib.import_module("opentelemetry.sdk.trace")
        export: Any = importlib.import_module("opentelemetry.sdk.trace.export")
        sampling: Any = importlib.import_module("opentelemetry.sdk.trace.sampling")
        resources: Any = importlib.import_module("opentelemetry.sdk.resources")
        otlp: Any = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    except ImportError as error:
        raise ConfigurationError(
            "[traces] enabled = true needs OpenTelemetry, which is not installed: pip install 'icetower[telemetry]'",
            rule="configuration.traces",
        ) from error
    given = {} if settings.service is None else {"service.name": settings.service}
    sampler = None if settings.sample is None else sampling.ParentBased(sampling.TraceIdRatioBased(settings.sample))
    try:
        processor = _processor(export)(
            otlp.OTLPSpanExporter(endpoint=settings.endpoint, timeout=SEND_TIMEOUT_S),
            max_queue_size=settings.spans_max,
            max_export_batch_size=min(BATCH_MAX, settings.spans_max),
        )
        provider = sdk.TracerProvider(
            sampler=sampler,
            resource=resources.Resource.create(
                {"service.name": "icetower", **_named_by_environment(resources), **given}
            ),
            shutdown_on_exit=False,
            span_limits=sdk.SpanLimits(max_span_attribute_length=TEXT_CHARACTERS_MAX, max_links=LINKS_MAX),
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"[traces]: OpenTelemetry refuses its settings ({type(error).__name__}); look at the environment variables "
            "whose names begin with OTEL_",
            rule="configuration.traces",
        ) from error
    provider.add_span_processor(processor)
    # What its threads say of a dead collector is one line a minute of its own; more would be of no use.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    return Traces(provider, ambient, settings.caller)


def _processor(export: Any) -> Any:
    class Bounded(export.BatchSpanProcessor):
        """Gives up what waits after a short while when the tower stops, whatever the collector does."""

        def shutdown(self) -> None:
            self._batch_processor.shutdown(timeout_millis=int(CLOSE_S * 1000))

    return Bounded


def _named_by_environment(resources: Any) -> Mapping[str, str]:
    """The name that OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES gives to the service, if they do."""
    found = resources.OTELResourceDetector().detect().attributes.get("service.name")
    return {} if found is None else {"service.name": str(found)}


def _attributes(about: Mapping[str, object]) -> dict[str, Any]:
    return {PREFIX + name: value for name, value in about.items() if value is not None and value != ()}
