"""Icetower: the control tower for agents that write to Apache Iceberg.

from icetower import Agent

with Agent("http://127.0.0.1:8181", token=secret) as agent:
    agent.append("shop.prices", [{"sku": "a", "price": 3}])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icetower.agent.agents import Agent, AsyncAgent

__all__ = ["Agent", "AsyncAgent", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The server does without the SDK's HTTP client, and whoever imports one module of this package without the others.
    if name in ("Agent", "AsyncAgent"):
        return getattr(import_module("icetower.agent.agents"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
