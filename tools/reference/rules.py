"""The tables of docs/protocol.md: statuses, next steps, rules, and where each rule leads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from icetower.rules import Refusal, Rule, Table
from tools.reference.pages import code, table

FAMILY_MIN = 3
"""This many rules of one family that lead to one step alone are written as `family.*`."""

USUAL = "fix_request"
"""Most rules lead here alone. They are not listed again."""


def tables(rules: Table) -> dict[str, str]:
    """By name, as docs/protocol.md has them. Each section of the rules is one."""
    steps = [(f"`{step}`", meaning) for step, meaning in rules.next_steps.items()]
    leads = [(f"`{step}`", ", ".join(_leading(step, rules.rules))) for step in rules.next_steps]
    made = {
        "statuses": table(("status", "when"), rules.statuses.items()),
        "next_steps": table(("`next_step`", "what to do"), steps),
        "leads": table(("`next_step`", "rules"), leads),
    }
    for section, of_section in groupby(rules.rules.values(), lambda rule: rule.section):
        made[section] = table(("rule", "answer", "what it means"), _rows(of_section))
    return made


def _rows(rules: Iterable[Rule]) -> Iterator[tuple[str, str, str]]:
    """Neighbours that say the same stand in one row."""
    for (meaning, refusals), alike in groupby(rules, lambda rule: (rule.meaning, rule.refusals)):
        yield code(rule.id for rule in alike), ", ".join(map(_answer, refusals)), meaning


def _answer(refusal: Refusal) -> str:
    return f"{refusal.status} `{refusal.next_step}`" + (f" {refusal.condition}" if refusal.condition else "")


def _leading(step: str, rules: Mapping[str, Rule]) -> Iterator[str]:
    """The rules that lead to a step, whole families shortened."""
    only = {id_ for id_, rule in rules.items() if {refusal.next_step for refusal in rule.refusals} == {step}}
    families = {family: {id_ for id_ in rules if id_.startswith(f"{family}.")} for family in map(_family, rules)}
    whole = {family for family, ids in families.items() if len(ids) >= FAMILY_MIN and ids <= only}
    yield from (f"`{family}.*`" for family in dict.fromkeys(map(_family, rules)) if family in whole and step != USUAL)
    for id_, rule in rules.items():
        found = [refusal for refusal in rule.refusals if refusal.next_step == step]
        shortened = id_ in only and (step == USUAL or (_family(id_) in whole and id_ != _family(id_)))
        if found and not shortened:
            conditions = " or ".join(sorted({refusal.condition for refusal in found} - {""}))
            yield f"`{id_}` {conditions}".strip()
    if step == USUAL:
        yield "and every rule that no other row names"


def _family(rule: str) -> str:
    return rule.split(".")[0]
