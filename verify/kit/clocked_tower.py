"""A tower in this process whose clock the test moves; its clients speak to it over HTTP like to any other."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import uvicorn

from icetower.agent import Tower
from icetower.ambient import SystemAmbient
from icetower.gateway.app import build
from icetower.gateway.settings import load_settings
from icetower.gateway.tower import open_tower
from verify.kit.tower_process import TowerProcess


class MovedClock(SystemAmbient):
    """A clock that stands still until it is moved."""

    def __init__(self, at_ms: int) -> None:
        super().__init__()
        self.at_ms = at_ms

    def now_ms(self) -> int:
        return self.at_ms

    def move(self, seconds: float) -> None:
        self.at_ms += round(seconds * 1000)


class ClockedTower(TowerProcess):
    """A tower with a clock of its own, in a thread.

    Java refuses snapshots of a table that is newer than its own clock. So the tower's clock must stay behind.
    """

    def __init__(self, data: Path, clock: MovedClock) -> None:
        self.clock = clock
        self.data = data
        self.log = data / "none"
        tower = open_tower(load_settings(None, data=str(data)), clock)
        config = uvicorn.Config(build(tower), port=0, access_log=False, log_config=None, lifespan="on", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._started = threading.Event()
        self._thread.start()
        assert self._started.wait(60), "the tower did not start"
        self.secret = (data / "admin.token").read_text().strip()
        self.admin = Tower(self.uri, self.secret)

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        serving = asyncio.ensure_future(self._server.serve())
        while not self._server.started and not serving.done():
            await self.clock.sleep(0.01)
        self.uri = f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"
        self._started.set()
        await serving

    def stop(self) -> int:
        self.admin.close()
        self._server.should_exit = True
        self._thread.join(60)
        return int(self._thread.is_alive())
