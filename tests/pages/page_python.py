"""Runs the Python blocks of a page in one process, as somebody does who types them one after the other."""

from __future__ import annotations

import json
import sys
import traceback

names: dict[str, object] = {"__name__": "__main__"}
for line in sys.stdin:
    asked = json.loads(line)
    try:
        exec(compile(asked["code"], asked["place"], "exec"), names)
        answer = ""
    except BaseException:  # noqa: BLE001 - whatever it is, the page is wrong
        answer = traceback.format_exc()
    sys.stdout.write("\0" + json.dumps(answer) + "\n")
    sys.stdout.flush()
