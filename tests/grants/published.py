"""What Polaris publishes about its management API, as judges of requests and answers.

`Client` is always there: Polaris's own client (package `apache-polaris`), generated from the OpenAPI document. A
request is right if that client, asked for the same, would send the same; an answer, if that client understands it.

`Document` is the OpenAPI document itself, `spec/polaris-management-service.yml` of Apache Polaris, for whoever has it:
ICETOWER_POLARIS_OPENAPI names the file, and then every request and answer of these tests must pass it, too.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, get_args
from urllib.parse import unquote

import pytest
import yaml
from apache_polaris.sdk.management import ApiClient, Configuration, PolarisDefaultApi
from apache_polaris.sdk.management.rest import RESTResponse
from openapi_schema_validator import OAS30Validator
from pydantic import BaseModel
from referencing import Registry
from referencing.jsonschema import DRAFT4

HOST = "http://polaris.test/api/management/v1"
VARIABLE = "ICETOWER_POLARIS_OPENAPI"
JSON = Mapping[str, Any]


class Judge(Protocol):
    def request(self, method: str, path: str, body: JSON | None) -> None:
        """Raises AssertionError, or whatever the library raises, unless it is a request of the API."""
        ...

    def answer(self, method: str, path: str, body: JSON | None, status: int, answer: str) -> None:
        """The same for the answer to it."""
        ...


def judges() -> tuple[Judge, ...]:
    document = os.environ.get(VARIABLE)
    return (Client(), Document(Path(document))) if document else (Client(),)


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile("/".join(part if part[:1] != "{" else f"(?P<{part[1:-1]}>[^/]+)" for part in template.split("/")))


# ── Polaris's own client ─────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Operation:
    method: str
    template: re.Pattern[str]
    call: Callable[..., Any]
    body: tuple[str, type[BaseModel]] | None
    path_names: Mapping[str, str]


class _NotSent(Exception):
    """What would have been sent is noted."""


class _Unsent(ApiClient):
    """Sends nothing: notes what it would send, and answers what it is told."""

    def __init__(self) -> None:
        super().__init__(Configuration(host=HOST))
        self.noted: dict[str, Any] = {}
        self.sent: tuple[Any, ...] = ()
        self.prepared: tuple[int, str] | None = None

    def param_serialize(self, **given: Any) -> Any:
        self.noted = given
        return super().param_serialize(**given)

    def call_api(self, *sent: Any, **_: Any) -> RESTResponse:
        self.sent = sent
        if self.prepared is None:
            raise _NotSent
        status, text = self.prepared
        raw = type("Raw", (), {"status": status, "reason": "", "data": text.encode(), "headers": _HEADERS})()
        return RESTResponse(raw)

    def response_deserialize(self, response_data: Any, response_types_map: Any = None) -> Any:
        assert str(response_data.status) in response_types_map, f"{response_data.status} is no answer to this"
        return super().response_deserialize(response_data, response_types_map)


_HEADERS = {"content-type": "application/json"}


class Client:
    def __init__(self) -> None:
        self._client = _Unsent()
        self._api = PolarisDefaultApi(self._client)
        self._operations = [self._learn(name) for name in dir(self._api) if name.endswith("_serialize")]

    def _learn(self, name: str) -> _Operation:
        serialize = getattr(self._api, name)
        names = list(inspect.signature(serialize).parameters)
        serialize(**dict.fromkeys(names))
        call = getattr(self._api, name.removeprefix("_").removesuffix("_serialize"))
        body = next(
            (
                (parameter.name, model)
                for parameter in inspect.signature(call).parameters.values()
                for model in _models(parameter.annotation)
            ),
            None,
        )
        template = self._client.noted["resource_path"]
        in_path = {
            word: re.sub("([A-Z])", lambda m: "_" + m[1].lower(), word) for word in re.findall(r"{(\w+)}", template)
        }
        return _Operation(self._client.noted["method"], _pattern(template), call, body, in_path)

    def request(self, method: str, path: str, body: JSON | None) -> None:
        with pytest.raises(_NotSent):
            self._call(method, path, body, None)
        sent_method, url, _, sent_body, *_ = self._client.sent
        assert (sent_method, url) == (method, HOST + path)
        assert _within(body or {}, sent_body or {}), "a field that Polaris's client does not know"

    def answer(self, method: str, path: str, body: JSON | None, status: int, answer: str) -> None:
        self._call(method, path, body, (status, answer))

    def _call(self, method: str, path: str, body: JSON | None, prepared: tuple[int, str] | None) -> None:
        found = [(o, m) for o in self._operations if o.method == method and (m := o.template.fullmatch(path))]
        assert found, f"Polaris has no {method} {path}"
        operation, match = found[0]
        arguments: dict[str, Any] = {operation.path_names[k]: unquote(v) for k, v in match.groupdict().items()}
        if body is not None:
            assert operation.body is not None, f"{method} {path} has no body"
            name, model = operation.body
            arguments[name] = model.from_dict(dict(body))  # type: ignore[attr-defined]
        self._client.prepared = prepared
        operation.call(**arguments)


def _within(body: Any, sent: Any) -> bool:
    """Whether the client sends all of `body`; what has a default it sends besides."""
    if isinstance(body, dict) and isinstance(sent, dict):
        return all(key in sent and _within(value, sent[key]) for key, value in body.items())
    return bool(body == sent)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models in an annotation such as `Annotated[Optional[Model], …]`."""
    if inspect.isclass(annotation):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [model for part in get_args(annotation) for model in _models(part)]


# ── The document ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Document:
    """The OpenAPI document. It is read as it stands; nothing of it is kept here."""

    def __init__(self, path: Path) -> None:
        document = yaml.safe_load(path.read_text())
        self._paths = {template: (_pattern(template), item) for template, item in document["paths"].items()}
        self._schemas = document["components"]["schemas"]
        self._registry: Registry[Any] = Registry().with_resource("urn:polaris", DRAFT4.create_resource(document))

    def request(self, method: str, path: str, body: JSON | None) -> None:
        operation, parameters, values = self._found(method, path)
        for parameter in parameters:
            if parameter["in"] == "path":
                self._check(parameter["schema"], unquote(values[parameter["name"]]))
        described = operation.get("requestBody")
        if body is None:
            assert not (described or {}).get("required")
            return
        assert described, f"{method} {path} has no body"
        self._check(described["content"]["application/json"]["schema"], body)
        if "grant" in body:
            kinds = self._schemas["GrantResource"]["discriminator"]["mapping"]
            self._check({"$ref": kinds[body["grant"]["type"]]}, body["grant"])

    def answer(self, method: str, path: str, body: JSON | None, status: int, answer: str) -> None:
        operation, _, _ = self._found(method, path)
        described = {str(code): what for code, what in operation["responses"].items()}
        assert str(status) in described, f"{status} is no answer to {method} {path}"
        content = described[str(status)].get("content")
        if content:
            self._check(content["application/json"]["schema"], yaml.safe_load(answer))

    def _found(self, method: str, path: str) -> tuple[Any, list[Any], dict[str, str]]:
        for pattern, item in self._paths.values():
            match = pattern.fullmatch(path)
            if match and method.lower() in item:
                operation = item[method.lower()]
                return operation, [*item.get("parameters", ()), *operation.get("parameters", ())], match.groupdict()
        raise AssertionError(f"the document has no {method} {path}")

    def _check(self, schema: Any, value: Any) -> None:
        absolute = _absolute(schema)
        OAS30Validator(absolute, registry=self._registry).validate(value)


def _absolute(schema: Any) -> Any:
    """A schema whose references name the document that it was taken from."""
    if isinstance(schema, dict):
        return {key: f"urn:polaris{v}" if key == "$ref" else _absolute(v) for key, v in schema.items()}
    return [_absolute(item) for item in schema] if isinstance(schema, list) else schema
