"""Every place of the source that refuses, held to the table of rules, and the documentation to both."""

from __future__ import annotations

import inspect
import re
from fnmatch import fnmatchcase
from pathlib import Path

from icetower import errors
from icetower.rules import table
from tests.refusal_sites import Site, sites

ROOT = Path(__file__).resolve().parent.parent
STATUS_AND_RULES = re.compile(r"\b([45]\d\d)((?:[ ,]+`[a-z-]+(?:\.[\w*-]+)*`)+)")
"""`409 `queue.full`, `queue.deadline``, as the pages write it."""

PASSED_ON = {Site("database.busy", 409, "retry")}
"""Made from another error, with its rule: the source does not show the rule where it is raised."""


def test_every_refusal_of_the_source_is_in_the_table() -> None:
    found = sites()
    assert len(found) > 250
    missing = [
        f"{site.rule}: {site.status} {site.next_step} ({', '.join(sorted(modules))})"
        for site, modules in found.items()
        if not any(_is(site, known) for known in _table())
    ]
    assert missing == []


def test_every_refusal_of_the_table_is_in_the_source() -> None:
    made = {*sites(), *PASSED_ON, *_defaults()}
    assert [known for known in _table() if not any(_is(site, known) for site in made)] == []


def test_what_a_class_of_errors_says_by_itself_is_known() -> None:
    known = table()
    for site in _defaults():
        assert site.rule in known.rules
        assert any(str(site.status) in statuses.split(", ") for statuses in known.statuses)
        assert site.next_step in known.next_steps


def test_every_next_step_is_explained() -> None:
    words = re.findall(r"``(\w+)``", (errors.IcetowerError.__doc__ or "").split("next_step:")[1].split("owner:")[0])
    assert set(words) == set(table().next_steps) == {known.next_step for known in _table()}


def test_every_status_is_explained() -> None:
    explained = {int(status) for statuses in table().statuses for status in statuses.split(", ")}
    assert explained == {known.status for known in _table()}


def test_the_pages_name_rules_with_the_statuses_that_they_have() -> None:
    known = _table()
    pairs = [
        (page.name, int(status), rule)
        for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
        for status, rules in STATUS_AND_RULES.findall(page.read_text())
        for rule in re.findall(r"`([^`]+)`", rules)
        if rule not in table().next_steps
    ]
    assert len(pairs) > 60
    wrong = [
        pair for pair in pairs if not any(pair[1] == each.status and fnmatchcase(each.rule, pair[2]) for each in known)
    ]
    assert wrong == []


def _table() -> list[Site]:
    return [
        Site(rule.id, refusal.status, refusal.next_step) for rule in table().rules.values() for refusal in rule.refusals
    ]


def _defaults() -> set[Site]:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.IcetowerError)]
    at_a_terminal = (errors.ConfigurationError, errors.UsageError)
    return {
        Site(kind.default_rule, kind.status, kind.default_next_step)
        for kind in kinds
        if not issubclass(kind, at_a_terminal)
    }


def _is(site: Site, known: Site) -> bool:
    """Whether a place of the source may refuse in this way of the table."""
    return (site.status, site.next_step) == (known.status, known.next_step) and fnmatchcase(known.rule, site.rule)
