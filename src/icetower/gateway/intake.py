"""What holds requests and answers, so that nobody takes more than a part of the loop and of memory (trap A8)."""

from __future__ import annotations

from icetower.ambient import Ambient
from icetower.gateway.bodies import Bodies
from icetower.gateway.kept_answers import KeptAnswers
from icetower.gateway.places import Places
from icetower.gateway.settings import Server
from icetower.gateway.unknown_callers import UnknownCallers
from icetower.gateway.unread import Unread


class Intake:
    """One for a tower.

    Attributes:
        strangers: requests without a known credential, before anything is looked up.
        places: requests of principals, before their bodies are read.
        bodies: memory for their bodies.
        unread: answers on their way to them.
        kept_answers: how much of answers is kept under keys.
    """

    def __init__(self, settings: Server, ambient: Ambient, *, open_to_all: bool) -> None:
        self.unknown_callers = UnknownCallers(open_to_all=open_to_all)
        self.places = Places(deadline_s=settings.queue_deadline_s)
        self.bodies = Bodies(settings.bodies_max_bytes, deadline_s=settings.queue_deadline_s)
        self.unread = Unread(settings.answers_max_bytes)
        self.kept_answers = KeptAnswers(ambient, lifetime_s=settings.key_lifetime_s)
