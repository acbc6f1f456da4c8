"""When alerts stand: tables of values at times, and what becomes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.alerts.rules import (
    DEFAULTS,
    KEPT_MS,
    STANDING_MAX,
    Alert,
    Metric,
    Reading,
    Rule,
    State,
    advanced,
    id_of,
    message_of,
    step,
)
from icetower.errors import ConfigurationError
from icetower.gateway.settings import AlertSettings

ABOVE = Rule("r", Metric.RETRY_RATE, above=0.10, clears_at=0.05)
PATIENT = Rule("r", Metric.RETRY_RATE, above=0.10, clears_at=0.05, for_s=30)
BELOW = Rule("r", Metric.FIRST_TRY, below=0.95, clears_at=0.97)
F, P, R, NONE = State.FIRING, State.PENDING, State.RESOLVED, None


@pytest.mark.parametrize(
    ("rule", "values", "states"),
    [
        (ABOVE, (0.05, 0.10, 0.11), (NONE, NONE, F)),
        (ABOVE, (0.11, 0.09, 0.06, 0.05, 0.09, 0.11), (F, F, F, R, R, F)),
        (ABOVE, (0.11, None, None), (F, R, R)),
        (PATIENT, (0.11, 0.11, 0.11, 0.11), (P, P, P, F)),
        (PATIENT, (0.11, 0.11, 0.09, 0.11, 0.11), (P, P, NONE, P, P)),
        (PATIENT, (0.11, None, 0.11), (P, NONE, P)),
        (BELOW, (0.95, 0.94, 0.96, 0.97, 0.95), (NONE, F, F, R, R)),
    ],
    ids=["the bound itself is good", "hysteresis", "nothing happens any more", "for a while", "a dip", "gone", "below"],
)
def test_an_alert_begins_beyond_its_bound_and_ends_well_within_it(
    rule: Rule, values: tuple[float | None, ...], states: tuple[State | None, ...]
) -> None:
    alert: Alert | None = None
    found: list[State | None] = []
    for number, value in enumerate(values):
        reading = None if value is None else Reading("r", "p", "ns.t", value)
        alert = step(rule, alert, reading, number * 10_000)
        found.append(None if alert is None else alert.state)
    assert tuple(found) == states


def test_an_alert_that_has_ended_is_shown_for_a_day() -> None:
    ended = Alert(id_of("r", "p", "t"), "r", "p", "t", State.RESOLVED, 1_000, 0.01)
    assert step(ABOVE, ended, None, 1_000 + KEPT_MS - 1) == ended
    assert step(ABOVE, ended, None, 1_000 + KEPT_MS) is None


def test_alerts_of_a_rule_that_is_gone_are_gone_and_alerts_are_bounded() -> None:
    many = [Reading("r", f"p{n}", "ns.t", 1.0) for n in range(STANDING_MAX + 50)]
    found = advanced([ABOVE], {}, many, 5)
    assert len(found) == STANDING_MAX
    assert advanced([ABOVE], found, many, 6) == found
    assert advanced([BELOW.__class__("other", Metric.FIRST_TRY, below=0.1)], found, many, 7) == {}


@given(st.lists(st.none() | st.floats(0, 1), max_size=40), st.sampled_from([ABOVE, PATIENT, BELOW]))
def test_between_two_firings_the_value_was_well_within_the_bound(values: list[float | None], rule: Rule) -> None:
    alert: Alert | None = None
    cleared = True
    for number, value in enumerate(values):
        before = None if alert is None else alert.state
        alert = step(rule, alert, None if value is None else Reading("r", "p", "t", value), number * 10_000)
        after = None if alert is None else alert.state
        if value is None or rule.cleared(value):
            cleared = True
        if after is F and before is not F:
            assert cleared
            cleared = False


@pytest.mark.parametrize("rule", DEFAULTS, ids=lambda rule: rule.name)
def test_each_rule_of_the_tower_can_end_and_says_what_to_do(rule: Rule) -> None:
    assert not rule.breached(rule.clears_at)
    assert rule.cleared(rule.clears_at)
    assert len(rule.advice) > 30
    shown = message_of(rule, Alert("i", rule.name, "p", "ns.t", F, 0, 1.0, ("day=1",)))
    assert "p at ns.t" in shown
    assert "day=1" in shown


def test_the_tower_has_a_rule_for_each_metric() -> None:
    assert {rule.metric for rule in DEFAULTS} == set(Metric)


def test_settings_change_rules_add_some_and_turn_some_off() -> None:
    said = {"retry-rate": {"above": 0.2}, "disk": {"off": True}, "mine": {"metric": "orphaned_files", "above": 5}}
    rules = {rule.name: rule for rule in AlertSettings.model_validate({"rules": said}).rules_in_force()}
    assert (rules["retry-rate"].above, rules["retry-rate"].clears_at, rules["retry-rate"].at_least) == (0.2, 0.2, 10)
    assert "disk" not in rules
    assert (rules["mine"].metric, rules["mine"].above) == (Metric.ORPHANS, 5)
    assert len(rules) == len(DEFAULTS)


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ({"mine": {"above": 5}}, "needs a metric"),
        ({"mine": {"metric": "orphaned_files"}}, "needs a metric"),
        ({"retry-rate": {"above": 1, "below": 0}}, "two bounds"),
        ({"retry-rate": {"clears_at": 0.5}}, "never ends"),
        ({"no name": {"metric": "bypasses", "above": 1}}, "is no name"),
    ],
)
def test_settings_that_make_no_rule_are_refused(said: dict[str, dict[str, object]], cause: str) -> None:
    with pytest.raises(ConfigurationError, match=cause):
        AlertSettings.model_validate({"rules": said}).rules_in_force()
