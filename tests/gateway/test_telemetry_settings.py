"""Settings of traces, events and lineage: what would leak or lead nowhere is refused before anything listens."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.ambient import SystemAmbient
from icetower.errors import ConfigurationError
from icetower.gateway.settings import LineageSettings, Settings, TracesSettings
from icetower.observe.traces import TraceSettings, open_traces

URL = "https://lineage.example.com/api/v1/lineage"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "http://lineage.example.com/x?secret"}, "plain HTTP to another machine"),
        ({"url": "ftp://lineage.example.com/x?secret"}, "[lineage] url is no address"),
        ({"url": "https://a:secret@lineage.example.com"}, "[lineage] url is no address"),
        ({"url": "https://[secret"}, "[lineage] url is no address"),
        ({"url": "https://lineage.example.com/ secret"}, "[lineage] url is no address"),
        ({"url": URL, "token_env": "NOT_SET"}, "variable NOT_SET has no token"),
        ({"url": URL, "token_env": "BROKEN"}, "variable BROKEN has no token"),
    ],
)
def test_addresses_that_would_leak_or_lead_nowhere_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        LineageSettings.model_validate(settings).address({"BROKEN": "a\nsecret"})
    assert said in refused.value.message
    assert "secret" not in refused.value.message


def test_addresses_and_tokens_are_not_shown() -> None:
    assert LineageSettings().address({}) is None
    address = LineageSettings(url=URL, token_env="TOKEN").address({"TOKEN": "t0ken"})
    assert address is not None
    assert (address.url, address.token) == (URL, "t0ken")
    assert "lineage.example" not in repr(address)
    assert "t0ken" not in repr(address)
    assert LineageSettings(url="http://127.0.0.1:5000/x").address({}) is not None
    assert LineageSettings(url="http://lineage.example.com/x", plain=True).address({}) is not None


def test_traces_are_off_by_default_and_need_an_address_that_is_one() -> None:
    assert Settings().traces.wanted() is None
    assert TracesSettings(enabled=True).wanted() == TraceSettings()
    with pytest.raises(ConfigurationError, match="endpoint is no address"):
        TracesSettings(enabled=True, endpoint="127.0.0.1:4318").wanted()


def test_without_opentelemetry_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr("icetower.observe.traces.importlib.import_module", not_found)
    with pytest.raises(ConfigurationError, match=r"pip install 'icetower\[telemetry\]'"):
        open_traces(TraceSettings(), SystemAmbient())
