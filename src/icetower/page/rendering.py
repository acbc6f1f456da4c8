"""From view models to HTML: templates, what they may call, and how texts of others are shown.

Every value that a template prints is escaped for HTML, and its control characters and changes of the reading direction
are written as in code (`\\x1b`): a name cannot act on the page, nor look like another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from icetower.page.assets import Asset
from icetower.page.times import age_text, bytes_text, clock_text, machine_time, moment_text, took_text
from icetower.texts import escaped


class Renderer:
    """One for a tower.

    Args:
        assets: by name, for their addresses.
        now_ms: the clock.
    """

    def __init__(self, assets: Mapping[str, Asset], now_ms: Callable[[], int]) -> None:
        self._assets = assets
        self._now_ms = now_ms
        environment = Environment(
            loader=PackageLoader("icetower.page", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        environment.filters |= {
            "since": self._since,
            "clock": clock_text,
            "took": took_text,
            "size": bytes_text,
            "prose": prose,
            "count": lambda number: f"{number:,}",
        }
        offered: Any = environment.globals  # typed as what it holds to begin with
        offered.update(url=url, asset=self._asset)
        self._environment = environment

    def render(self, template: str, **values: Any) -> str:
        """A template with its values; a value that it lacks is an error of ours."""
        return self._environment.get_template(template).render(**values)

    def _asset(self, name: str) -> str:
        return f"/ui/assets/{name}?v={self._assets[name].version}"

    def _since(self, ms: int | None) -> Markup:
        """How long ago, and when on a closer look."""
        if ms is None:
            return Markup('<span class="faint">–</span>')
        said, moment = age_text(ms, self._now_ms()), moment_text(ms)
        return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(machine_time(ms), moment, said)


def shown(value: object) -> object:
    """A value on its way into a page."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return escaped(value, but="\n\t")
    return value


def prose(text: str) -> Markup:
    """A text of `rules.toml`, whose Markdown has code and links: code is shown as such, and of a link its words."""
    without_links = _without_links(text)
    without_links = without_links[:1].upper() + without_links[1:]
    parts = without_links.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(escaped(part)) if at % 2 else escape(escaped(part))
        for at, part in enumerate(parts)
    )


def _without_links(text: str) -> str:
    found, rest = "", text
    while "](" in rest:
        head, _, tail = rest.partition("](")
        before, bracket, words = head.rpartition("[")
        if not bracket or ")" not in tail:
            break
        found, rest = found + before + words, tail.partition(")")[2]
    return found + rest


def url(*segments: str, **query: object) -> str:
    """An address on this page: always a path below `/ui/`, whatever the segments are. None in a query is left out."""
    path = "/ui/" + "/".join(quote(str(segment), safe="") for segment in segments)
    given = {name.rstrip("_"): value for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path
