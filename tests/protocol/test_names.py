"""Names are bounded wherever a request has them, and new ones show readers what they are."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icetower.errors import MESSAGE_CHARACTERS_MAX, BadRequest, IcetowerError
from icetower.escalations.tickets import wanted
from icetower.gateway.http import namespace_of
from icetower.protocol import catalog as wire
from icetower.protocol.commits import TABLES_MAX, parse_commit, parse_transaction
from icetower.protocol.declarations import Declaration, command_of
from icetower.protocol.names import (
    NAME_CHARACTERS_MAX,
    NAMESPACE_SEPARATOR,
    PART_CHARACTERS_MAX,
    Identifier,
    check_new,
    checked_identifier,
    checked_namespace,
    folder_of,
)
from icetower.texts import clipped, escaped, without_middle

LONG = "n" * 30_000_000
UUID = "123e4567-e89b-42d3-a456-426614174000"


def changes(name: str) -> bytes:
    return json.dumps({"table-changes": [{"identifier": {"namespace": ["a"], "name": name}}]}).encode()


READERS: dict[str, Callable[[str], object]] = {
    "a table of a transaction": lambda name: parse_transaction(changes(name)),
    "a table of a commit": lambda name: parse_commit(
        json.dumps({"identifier": {"namespace": [name], "name": "t"}}).encode()
    ),
    "the source of a rename": lambda name: wire.RenameTable(
        source={"namespace": ["a"], "name": name}, destination={"namespace": ["a"], "name": "t"}
    ).identifiers(),
    "the target of a rename": lambda name: wire.RenameTable(
        source={"namespace": ["a"], "name": "t"}, destination={"namespace": ["a"], "name": name}
    ).identifiers(),
    "a new namespace": lambda name: wire.CreateNamespace(namespace=["a", name]).levels(),
    "a namespace of a path": lambda name: namespace_of(NAMESPACE_SEPARATOR.join(("a", name))),
    "a table of a path": lambda name: checked_identifier(("a",), name),
    "a table in words": lambda name: Identifier.parse(f"a.{name}"),
    "a request for partitions": lambda name: wanted(f"a.{name}", (), ["append"], "why"),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_name_is_bounded_and_its_refusal_does_not_repeat_it(reader: str) -> None:
    READERS[reader]("n" * PART_CHARACTERS_MAX)
    for name in ("n" * (PART_CHARACTERS_MAX + 1), LONG):
        with pytest.raises(BadRequest) as refused:
            READERS[reader](name)
        assert "characters" in refused.value.message
        assert len(refused.value.message) < 300


def test_a_namespace_has_a_bounded_number_of_levels_and_characters() -> None:
    assert len(checked_namespace(("a",) * 100)) == 100
    for levels in (("a",) * 101, ("a" * 200,) * 5, ("a",) * 1_000_000):
        with pytest.raises(BadRequest) as refused:
            checked_namespace(levels)
        assert refused.value.rule == "request.length"
        assert len(refused.value.message) < 300
    with pytest.raises(BadRequest, match="characters"):
        checked_identifier(("a" * 249,) * 3, "t" * (NAME_CHARACTERS_MAX - 749))


def test_a_transaction_has_a_bounded_number_of_tables() -> None:
    def body(count: int) -> bytes:
        named = [{"identifier": {"namespace": ["a"], "name": f"t{at}"}} for at in range(count)]
        return json.dumps({"table-changes": named}).encode()

    assert len(parse_transaction(body(TABLES_MAX))) == TABLES_MAX
    with pytest.raises(BadRequest, match="Send several transactions") as refused:
        parse_transaction(body(TABLES_MAX + 1))
    assert refused.value.rule == "limit.tables"


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b]0;x\x07", "a\x7f", "a\x9b31m", "a\u2028b", "a\u2029", "a\u202eb", "\u2066a", "\u200fa"]
)
def test_a_new_name_has_no_character_that_acts_on_its_reader(name: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_new("fine", name)
    assert refused.value.rule == "request.name"
    assert refused.value.message.isprintable()
    assert escaped(name).isprintable()


def test_letters_of_all_languages_are_fine_in_a_new_name() -> None:
    check_new("größe", "売上", "مبيعات", "a b", "--uri=x", "\N{PILE OF POO}", "می\u200cخواهم")


@given(st.text(min_size=1, max_size=PART_CHARACTERS_MAX))
def test_a_location_ends_in_a_name_that_file_systems_take(name: str) -> None:
    folder = folder_of(name, UUID)
    assert len(folder.encode()) <= 255
    assert folder.endswith(f"-{UUID}")
    assert name.startswith(folder.removesuffix(f"-{UUID}"))
    assert len(name.encode()) > 218 or folder == f"{name}-{UUID}"


def test_a_text_is_cut_at_its_end_and_an_error_in_its_middle() -> None:
    assert (clipped("abc", 3), clipped("abcd", 3)) == ("abc", "ab…")
    assert without_middle("abcdefghij" * 2, 10) == "abcdefgh… (10 characters left out) …ij"
    error = IcetowerError(f"{LONG}; write a shorter one", partitions=[LONG], files=[LONG])
    assert len(error.message) < MESSAGE_CHARACTERS_MAX + 100
    assert error.message.endswith("write a shorter one")
    assert max(map(len, (*error.partitions, *error.files, str(error)))) < MESSAGE_CHARACTERS_MAX + 100


@pytest.mark.full
@pytest.mark.parametrize(
    "table",
    [
        "shop.sales",
        "shop.a b",
        "shop.a'b",
        "-x.t",
        "s.a\nicetower contracts revoke prod\n",
        "s.'\\\x1b]0;x\x07'\t\u202e",
        "s.\x9b31m",
    ],
)
def test_a_suggested_command_is_one_line_and_names_its_table(table: str) -> None:
    command = command_of(Declaration.BLIND_APPENDS, table)
    assert command is not None
    assert command.isprintable()
    read = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {command}"],
        capture_output=True,
        check=True,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    words = read.stdout.decode().split("\0")[:-1]
    assert sorted(words) == sorted(["icetower", "tables", "set", "--blind-appends", table, *["--"] * (table[0] == "-")])
    assert table[0] != "-" or words[-2:] == ["--", table]
