"""What can be set, in a TOML file; every value has a default that works.

[server]                     host, port, data, body_max_bytes, queue_deadline_s, key_lifetime_s, storage_threads
[upstream]                   uri (SQLAlchemy URL), catalog (its name in the shared tables), warehouse
[storage]                    properties for PyIceberg's FileIO on the server, such as s3.endpoint
[table-config]               properties handed to clients with each table, such as s3.endpoint
[defaults], [overrides]      catalog properties for clients: GET /v1/config returns them as they stand here
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from icetower.errors import ConfigurationError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Server(_Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8181
    data: str = ".icetower"
    """Directory of the embedded catalog, the control database and the default warehouse."""
    body_max_bytes: Annotated[int, Field(gt=0)] = 32 * 1024 * 1024
    queue_deadline_s: Annotated[float, Field(gt=0)] = 30.0
    key_lifetime_s: Annotated[int, Field(ge=60)] = 24 * 3600
    storage_threads: Annotated[int, Field(ge=1, le=4096)] = 64
    """Calls to the storage under way at once."""


class UpstreamSettings(_Section):
    uri: str | None = None
    """SQLAlchemy URL of a catalog in the layout of Java's JdbcCatalog and PyIceberg's SqlCatalog; default: embedded."""
    catalog: str = "icetower"
    warehouse: str | None = None
    """Where new tables go, such as s3://bucket/warehouse; default: `warehouse` under the data directory."""


class Settings(_Section):
    server: Server = Server()
    upstream: UpstreamSettings = UpstreamSettings()
    storage: dict[str, str] = {}
    table_config: Annotated[dict[str, str], Field(alias="table-config")] = {}
    defaults: dict[str, str] = {}
    overrides: dict[str, str] = {}


def load_settings(path: Path | None, **server: Any) -> Settings:
    """Settings from a file, with what the command line says about the server on top (None: not said).

    Raises `ConfigurationError` naming the file, the key and what is wrong with it.
    """
    content: dict[str, Any] = {}
    if path is not None:
        try:
            content = tomllib.loads(path.read_text())
        except OSError as error:
            raise ConfigurationError(f"the configuration file {path} cannot be read: {error.strerror}") from error
        except tomllib.TOMLDecodeError as error:
            raise ConfigurationError(f"the configuration file {path} is not TOML: {error}") from error
    section = content.get("server", {})
    if isinstance(section, dict):
        content["server"] = section | {key: value for key, value in server.items() if value is not None}
    try:
        return Settings.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigurationError(f"{path or 'the command line'}: {where}: {first['msg']}") from error
