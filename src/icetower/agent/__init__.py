"""The Python SDK for agents and their operators: light, over HTTP, without the server's dependencies.

from icetower import Agent

with Agent("http://127.0.0.1:8181", token=secret, journal="orders.journal") as agent:
    agent.append("sales.orders", rows)

What it consists of is there, too:

from icetower.agent import Tower, new_key, keyed

tower = Tower("http://127.0.0.1:8181", token=secret)
catalog = pyiceberg.catalog.load_catalog("tower", **tower.pyiceberg_properties())
catalog.load_table("sales.orders").append(rows, snapshot_properties=keyed(new_key(), blind=True))

tower.append("sales.orders", [DataFile.of_parquet("orders.parquet")], key=new_key())

`carry_out` does such work, and after a refusal takes the refusal's next step.
"""

from icetower.agent.agents import Agent, AsyncAgent
from icetower.agent.appends import Appended, DataFile
from icetower.agent.branches import AsyncBranch, Branch
from icetower.agent.client import Tower
from icetower.agent.deliveries import Delivery, Sent, Slot
from icetower.agent.intents import Lease
from icetower.agent.keys import having_read, keyed, new_key, reads
from icetower.agent.landings import Landed
from icetower.agent.merged_view import merged_view
from icetower.agent.publishing import PublishedBranch, Verdict
from icetower.agent.recovery import Patience, carry_out, refusal_of
from icetower.agent.sending import send
from icetower.agent.slots import wait_for_slot
from icetower.agent.written import LandedRequest, Written

__all__ = [
    "Agent",
    "Appended",
    "AsyncAgent",
    "AsyncBranch",
    "Branch",
    "DataFile",
    "Delivery",
    "Landed",
    "LandedRequest",
    "Lease",
    "Patience",
    "PublishedBranch",
    "Sent",
    "Slot",
    "Tower",
    "Verdict",
    "Written",
    "carry_out",
    "having_read",
    "keyed",
    "merged_view",
    "new_key",
    "reads",
    "refusal_of",
    "send",
    "wait_for_slot",
]
