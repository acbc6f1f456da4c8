"""What agents may ask for, whom a contract may name, and which settings send word: each wrong one refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from icetower.contracts.document import load
from icetower.contracts.model import Operation
from icetower.errors import BadRequest, ConfigurationError
from icetower.escalations.sending import Encryption
from icetower.escalations.tickets import (
    Kind,
    Wanted,
    check_escalation,
    checked_note,
    mail_address,
    stop_of,
    subject_of,
    wanted,
)
from icetower.gateway.settings import EscalationSettings
from icetower.observe.events import one_line
from icetower.protocol.names import Identifier

CONTRACT = "version: 1\nagent: pricing\nescalation: {after_failures: 5, within: 10m, to: Dana <dana@example.com>"


# -- requests ---------------------------------------------------------------------------------------------------------


def test_a_request_is_put_in_order() -> None:
    asked = wanted("a.t", ["p=2", "p=1", "p=2"], ["overwrite", "append", "append"], " two\r\nlines\x00 ")
    table = Identifier(("a",), "t")
    assert asked == Wanted(table, ("p=1", "p=2"), (Operation.APPEND, Operation.OVERWRITE), "two\nlines ")
    assert asked.details == {
        "partitions": ["p=1", "p=2"],
        "operations": ["append", "overwrite"],
        "reason": "two\nlines ",
    }


@pytest.mark.parametrize(
    ("changed", "rule", "named"),
    [
        ({"table": "t"}, "request.name", "namespace.table"),
        ({"table": "a." + "t" * 1_100}, "request.table", "1024 are allowed"),
        ({"partitions": [f"p={n}" for n in range(101)]}, "request.partitions", "100 are allowed"),
        ({"partitions": [""]}, "request.partitions", "1 to 512"),
        ({"partitions": ["p" * 513]}, "request.partitions", "1 to 512"),
        ({"operations": []}, "request.operations", "is empty"),
        ({"operations": ["levitate"]}, "request.operations", "'levitate'"),
        ({"reason": "  "}, "request.reason", "a person will read it"),
        ({"reason": "x" * 2_001}, "request.reason", "1 to 2000"),
    ],
)
def test_a_request_that_is_none(changed: dict[str, Any], rule: str, named: str) -> None:
    good: dict[str, Any] = {"table": "a.t", "partitions": ["p=1"], "operations": ["append"], "reason": "since"}
    with pytest.raises(BadRequest) as caught:
        wanted(**(good | changed))
    assert caught.value.rule == rule
    assert named in caught.value.message


def test_two_requests_are_one_where_they_ask_for_the_same() -> None:
    asked = wanted("a.t", ["p=1", "p=2"], ["append"], "since")
    assert asked.subject("x") == wanted("a.t", ["p=2", "p=1"], ["append"], "another reason").subject("x")
    others = [
        asked.subject("y"),
        wanted("a.b", ["p=1", "p=2"], ["append"], "since").subject("x"),
        wanted("a.t", ["p=1"], ["append"], "since").subject("x"),
        wanted("a.t", ["p=1", "p=2"], ["append", "delete"], "since").subject("x"),
        wanted("a.t", ["p=1", "p=2", "append"], ["delete"], "since").subject("x"),
    ]
    assert len({asked.subject("x"), *others}) == 6


def test_subjects_keep_their_parts_apart() -> None:
    stops = {
        stop_of("a", Identifier(("b", "c"), "d")),
        stop_of("a", Identifier(("b.c",), "d")),
        stop_of("a", Identifier(("b",), "c.d")),
        stop_of("ab", Identifier(("c",), "d")),
        stop_of("a", Identifier(("b",), "c\ud800")),
        subject_of(Kind.REQUEST, "a", "b", "c", "d"),
    }
    assert len(stops) == 6


def test_a_note_is_asked_for() -> None:
    assert checked_note(" a\nb ") == "a\nb"
    for none in ("", " \n", "x" * 2_001):
        with pytest.raises(BadRequest, match="note"):
            checked_note(none)


# -- people -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("contact", "address"),
    [
        ("Dana Ito <dana.ito@example.com>", "Dana Ito <dana.ito@example.com>"),
        ("dana@example.com", "dana@example.com"),
        ("Ito, Dana <d@example.com>", '"Ito, Dana" <d@example.com>'),
        ('"Ito, Dana" <d@example.com>', '"Ito, Dana" <d@example.com>'),
        ("Däna <d@example.com>", "Däna <d@example.com>"),
        ("<d@example.com>", "d@example.com"),
        ("#pricing", None),
        ("a@example.com,b", None),
        ("a@example.com, b@example.com", None),
        ("a@example.com>", None),
        ("x <a@example.com", None),
        ("x <dä@example.com>", None),
        ("Dana\r\nBcc: x@example.com <d@example.com>", None),
        ("", None),
    ],
)
def test_who_can_be_written_to(contact: str, address: str | None) -> None:
    found = mail_address(contact)
    assert (None if found is None else str(found)) == address


def test_text_for_a_line_has_no_other_characters() -> None:
    assert one_line("a\r\nb\x00c\x1b[1md\u2028e\x85f\ud800g") == "a b c [1md e f?g"


@pytest.mark.parametrize(
    ("clause", "webhooks", "mails", "warned"),
    [
        (", webhook: oncall}", ["oncall"], False, False),
        (", webhook: oncall}", ["oncall"], True, False),
        ("}", [], True, False),
        ("}", ["oncall"], False, True),
    ],
)
def test_a_contract_that_this_tower_can_follow(clause: str, webhooks: list[str], mails: bool, warned: bool) -> None:
    warnings = check_escalation(load(CONTRACT + clause, source="test"), webhooks, mails=mails)
    assert bool(warnings) is warned
    assert all("smtp_host" in warning and "pricing" in warning for warning in warnings)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (CONTRACT + ", webhook: typo}", "'typo'"),
        (CONTRACT + ", webhook: typo}", "have: night, oncall"),
        (CONTRACT.replace("Dana <dana@example.com>", "'dana@example.com,x'") + "}", "no mail address"),
        (CONTRACT.replace("after_failures: 5", "after_failures: 1001") + "}", "1000 is the most"),
    ],
)
def test_a_contract_that_this_tower_cannot_follow(text: str, named: str) -> None:
    with pytest.raises(BadRequest) as caught:
        check_escalation(load(text, source="test"), ["oncall", "night"], mails=True)
    assert caught.value.rule == "contract.escalation"
    assert named in caught.value.message


def test_a_contract_without_the_clause_is_as_good() -> None:
    assert check_escalation(load("version: 1\nagent: a\n", source="test"), [], mails=False) == []


# -- settings ---------------------------------------------------------------------------------------------------------


def test_settings_name_variables_and_the_ways_have_what_is_in_them() -> None:
    channels = EscalationSettings.model_validate(
        {
            "smtp_host": "mail.example.com",
            "smtp_user": "icetower",
            "sender": "Icetower <icetower@example.com>",
            "webhooks": {
                "oncall": {"url": "https://hooks.example.com/a?b=c", "secret_env": "HOOK"},
                "here": {"url": "http://127.0.0.1:9/x"},
            },
        }
    ).channels({"HOOK": "s3cret", "ICETOWER_SMTP_PASSWORD": "pa55word"})
    assert channels.webhooks["oncall"].secret == "s3cret"
    assert channels.webhooks["here"].secret is None
    assert channels.mail_server is not None
    assert (channels.mail_server.port, channels.mail_server.encryption) == (587, Encryption.STARTTLS)
    assert (channels.mail_server.user, channels.mail_server.password) == ("icetower", "pa55word")
    assert EscalationSettings().channels({}).mail_server is None


HOST = {"smtp_host": "mail.example.com", "sender": "icetower@example.com"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"webhooks": {"a": {"url": "http://hooks.example.com/t0ken"}}}, "plain_webhooks"),
        ({"webhooks": {"a": {"url": "ftp://hooks.example.com/t0ken"}}}, "webhooks.a.url"),
        ({"webhooks": {"a": {"url": "https://user:t0ken@hooks.example.com/"}}}, "without a user"),
        ({"webhooks": {"a": {"url": "https:///t0ken"}}}, "webhooks.a.url"),
        ({"webhooks": {"a": {"url": "https://[t0ken/"}}}, "webhooks.a.url"),
        ({"webhooks": {"a": {"url": "https://x.example.com:t0ken/"}}}, "webhooks.a.url"),
        ({"webhooks": {"a": {"url": "https://x.example.com/t0ken\r\nX: y"}}}, "webhooks.a.url"),
        ({"webhooks": {"a b": {"url": "https://x.example.com/t0ken"}}}, "'a b'"),
        ({"webhooks": {"a": {"url": "https://x.example.com/t0ken", "secret_env": "UNSET"}}}, "UNSET"),
        ({"smtp_host": "mail.example.com"}, "sender"),
        (HOST | {"sender": "nobody"}, "sender"),
        (HOST | {"smtp_user": "icetower"}, "ICETOWER_SMTP_PASSWORD"),
        (HOST | {"smtp_user": "icetower", "smtp_encryption": "none"}, "smtp_encryption"),
    ],
)
def test_settings_that_cannot_be_are_refused_without_showing_them(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EscalationSettings.model_validate(settings).channels({})
    assert named in caught.value.message
    assert "t0ken" not in caught.value.message


def test_plain_http_may_be_allowed() -> None:
    settings = {"plain_webhooks": True, "webhooks": {"a": {"url": "http://hooks.example.com/x"}}}
    assert EscalationSettings.model_validate(settings).channels({}).webhooks["a"].url == "http://hooks.example.com/x"
