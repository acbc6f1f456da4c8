"""Texts that somebody else wrote, on their way to an error, a log, a database or a terminal; pure."""

from __future__ import annotations

import re

_ACTING = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Controls (C0, DEL, C1), ends of lines and of paragraphs, and changes of the reading direction."""

_NAMED = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def clipped(text: str, characters_max: int) -> str:
    """The text, of a longer one its beginning and an ellipsis."""
    return text if len(text) <= characters_max else text[: characters_max - 1] + "…"


def without_middle(text: str, characters_max: int) -> str:
    """The text; of a longer one the beginning and the end, a fifth: an error's end says what to do."""
    if len(text) <= characters_max:
        return text
    end = characters_max // 5
    left_out = len(text) - characters_max
    return f"{text[: characters_max - end]}… ({left_out} characters left out) …{text[-end:]}"


def printable(text: str) -> str:
    """The text on one line, with a space for each character that is not printed."""
    return "".join(character if character.isprintable() else " " for character in text)


def acting_character(text: str) -> str | None:
    """The first character that a reader does not see, and that moves what they see: as it is written in code."""
    found = _ACTING.search(text)
    return None if found is None else escaped(found[0])


def escaped(text: str, but: str = "") -> str:
    r"""The text with such characters as they are written in code: `\n`, `\x1b`, `\u202e`. `but`: those that stay."""
    return _ACTING.sub(lambda found: found[0] if found[0] in but else _escape(found), text)


def without_acting(text: str) -> str:
    """The text without such characters, but for ends of lines and tabs. They have no width: a layout stays as it is."""
    return _ACTING.sub(lambda found: found[0] if found[0] in "\n\t" else "", text)


def _escape(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}")
