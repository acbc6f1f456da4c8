"""Real MCP clients in one shape: the SDK's own, over stdio and over HTTP, and fastmcp's."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx2
import mcp_types
from fastmcp import Client as FastClient
from fastmcp.client.transports import StreamableHttpTransport
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from verify.kit.tower_process import TowerProcess, command

TIMEOUT_S = 120.0
WAYS = ("sdk-stdio", "sdk-http", "sdk-http-legacy", "fastmcp-http")


class Agent(Protocol):
    """What a model does through a client."""

    questions: list[str]
    agrees: bool

    async def tools(self) -> list[mcp_types.Tool]: ...

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """The structured answer of a tool."""
        ...

    async def text(self, tool: str, **arguments: Any) -> str:
        """What the model reads of the answer."""
        ...

    async def read(self, uri: str) -> str: ...

    async def prompt(self, name: str, **arguments: str) -> str: ...


@dataclass
class SdkAgent:
    """The SDK's own client."""

    client: Client
    questions: list[str] = field(default_factory=list)
    agrees: bool = True

    async def tools(self) -> list[mcp_types.Tool]:
        return (await self.client.list_tools()).tools

    async def raw(self, tool: str, **arguments: Any) -> mcp_types.CallToolResult:
        return await self.client.call_tool(tool, arguments)

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        found = await self.raw(tool, **arguments)
        assert found.structured_content is not None
        return found.structured_content

    async def text(self, tool: str, **arguments: Any) -> str:
        [block] = (await self.raw(tool, **arguments)).content
        assert isinstance(block, mcp_types.TextContent)
        return block.text

    async def read(self, uri: str) -> str:
        [found] = (await self.client.read_resource(uri)).contents
        assert isinstance(found, mcp_types.TextResourceContents)
        return found.text

    async def prompt(self, name: str, **arguments: str) -> str:
        [message] = (await self.client.get_prompt(name, arguments)).messages
        assert isinstance(message.content, mcp_types.TextContent)
        return message.content.text


@dataclass
class FastAgent:
    """fastmcp's client."""

    client: FastClient[Any]
    questions: list[str] = field(default_factory=list)
    agrees: bool = True

    async def tools(self) -> list[mcp_types.Tool]:
        return await self.client.list_tools()

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        found = await self.client.call_tool(tool, arguments, raise_on_error=False)
        assert found.structured_content is not None
        return found.structured_content

    async def text(self, tool: str, **arguments: Any) -> str:
        found = await self.client.call_tool(tool, arguments, raise_on_error=False)
        return "".join(getattr(block, "text", "") for block in found.content)

    async def read(self, uri: str) -> str:
        [found] = await self.client.read_resource(uri)
        return str(getattr(found, "text", ""))

    async def prompt(self, name: str, **arguments: str) -> str:
        [message] = (await self.client.get_prompt(name, arguments)).messages
        return str(getattr(message.content, "text", ""))


@asynccontextmanager
async def connected(
    way: str, tower: TowerProcess, token: str, *, uri: str | None = None, read_only: bool = False, can_ask: bool = True
) -> AsyncGenerator[Any]:
    """An agent with a credential. `uri`: another way to the tower than the tower's own address."""
    made: list[Any] = []

    async def sdk_asked(context: Any, params: Any) -> mcp_types.ElicitResult:
        del context
        made[0].questions.append(params.message)
        return mcp_types.ElicitResult(action="accept", content={"take_it_back": made[0].agrees})

    async def fast_asked(message: str, response_type: Any, params: Any, context: Any) -> Any:
        del params, context
        made[0].questions.append(message)
        return response_type(take_it_back=made[0].agrees) if response_type else {"take_it_back": made[0].agrees}

    uri = uri or tower.uri
    query = "?read_only=true" if read_only else ""
    asked: Any = sdk_asked if can_ask else None
    if way == "sdk-stdio":
        program, *arguments = command("mcp", "--uri", uri, *(["--read-only"] if read_only else []))
        parameters = StdioServerParameters(command=program, args=arguments, env={**os.environ, "ICETOWER_TOKEN": token})
        async with Client(stdio_client(parameters), elicitation_callback=asked) as client:
            made.append(SdkAgent(client))
            yield made[0]
    elif way.startswith("sdk-http"):
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT_S)
        mode = "legacy" if way.endswith("legacy") else "auto"
        async with (
            http,
            Client(
                streamable_http_client(f"{uri}/mcp{query}", http_client=http), mode=mode, elicitation_callback=asked
            ) as client,
        ):
            made.append(SdkAgent(client))
            yield made[0]
    else:
        transport = StreamableHttpTransport(f"{uri}/mcp{query}", headers={"Authorization": f"Bearer {token}"})
        more = {"elicitation_handler": fast_asked} if can_ask else {}
        async with FastClient(transport, timeout=TIMEOUT_S, **more) as fast:
            made.append(FastAgent(fast))
            yield made[0]


def live(story: Callable[[], Any]) -> None:
    """Run a story, which has a time limit."""
    asyncio.run(asyncio.wait_for(story(), TIMEOUT_S))


class Forgetful:
    """A proxy to a tower that forwards everything, and loses the answers to commits while `loses` is set.

    Attributes:
        lost: paths of the requests whose answers were lost.
    """

    def __init__(self, tower: TowerProcess) -> None:
        self._host, self._port = tower.uri.removeprefix("http://").split(":")
        self.loses = False
        self.lost: list[str] = []
        self.uri = ""
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Forgetful:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.uri = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(client):
                body = await client.readexactly(_length(head))
                server, forth = await asyncio.open_connection(self._host, int(self._port))
                forth.write(head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1) + body)
                answer = await server.read()
                forth.close()
                path = head.split(b" ", 2)[1].decode()
                if self.loses and head.startswith(b"POST /v1/") and not path.endswith("/check"):
                    self.lost.append(path)
                    return
                back.write(answer)
                await back.drain()
                return  # the tower closes after each answer
        except (OSError, asyncio.IncompleteReadError):
            return
        finally:
            back.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0
