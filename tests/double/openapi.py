"""Holds requests and replies to Discord's own OpenAPI file, where it lies beside the repository."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from jsonschema import Draft202012Validator, ValidationError, exceptions
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from tests.double.world import Json

SPEC_FILE = Path(__file__).parents[3] / "shared" / "discord" / "openapi.json"
_URN = "urn:discord:openapi"


@cache
def specification() -> Specification | None:
    """Read the file once per process; None where it is missing."""
    if not SPEC_FILE.exists():
        return None
    return Specification(json.loads(SPEC_FILE.read_bytes()))


class Specification:
    """Finds what is wrong with a request or a reply. Each finding is one line; no findings, nothing wrong."""

    def __init__(self, document: Json) -> None:
        self._document = document
        self._registry: Registry[Any] = Registry[Any]().with_resource(_URN, DRAFT202012.create_resource(document))
        self._fitting: set[tuple[tuple[str, ...], str]] = set()  # items of lists that were found to fit
        self._validators: dict[str, Draft202012Validator] = {}
        self._routes: list[tuple[re.Pattern[str], str]] = [(_pattern(path), path) for path in document["paths"]]
        # /users/@me before /users/{user_id}
        self._routes.sort(key=lambda route: route[1].count("{"))

    def route_of(self, method: str, path: str) -> str | None:
        """Find the template of a path."""
        for pattern, template in self._routes:
            if method.lower() in self._document["paths"][template] and pattern.fullmatch(path):
                return template
        return None

    def request_faults(self, method: str, path: str, query: Mapping[str, str], body: object) -> list[str]:
        template = self.route_of(method, path)
        if template is None:
            return [f"{method} {path}: no such route"]
        where = f"{method} {path}"
        at = ("paths", template, method.lower())
        return [
            *self._parameter_faults(where, template, method.lower(), path, query),
            *self._body_faults(where, at, body),
        ]

    def reply_faults(self, method: str, path: str, status: int, body: object) -> list[str]:
        template = self.route_of(method, path)
        if template is None or status >= 500:  # the file says nothing about 5xx
            return []
        where = f"reply {status} to {method} {path}"
        at = ("paths", template, method.lower(), "responses")
        responses: Json = self._at(at)
        key = next((key for key in (str(status), f"{status // 100}XX") if key in responses), None)
        if key is None:
            return [f"{where}: the file knows only {sorted(responses)}"]
        response, pointer = self._followed(responses[key], (*at, key))
        if "content" not in response:
            return [] if body is None else [f"{where}: has a body, should have none"]
        return list(self._faults(where, (*pointer, "content", "application/json", "schema"), body))

    def _parameter_faults(
        self, where: str, template: str, method: str, path: str, query: Mapping[str, str]
    ) -> Iterator[str]:
        in_path = _pattern(template).fullmatch(path)
        assert in_path is not None
        known: set[str] = set()
        for at in (("paths", template, "parameters"), ("paths", template, method, "parameters")):
            for n, parameter in enumerate(cast("list[Json]", self._at(at) or [])):
                name = parameter["name"]
                known.add(name)
                given = in_path.groupdict() if parameter["in"] == "path" else query
                if name in given:
                    schema = (*at, str(n), "schema")
                    yield from self._faults(f"{where} {name}", schema, self._read(schema, given[name]))
                elif parameter.get("required"):
                    yield f"{where}: {name} is missing"
        for name in query.keys() - known:
            yield f"{where}: unknown query parameter {name}"

    def _body_faults(self, where: str, at: tuple[str, ...], body: object) -> Iterator[str]:
        wanted: Json | None = self._at((*at, "requestBody"))
        if wanted is None:
            if body is not None:
                yield f"{where}: has a body, should have none"
        elif body is not None:
            schema = (*at, "requestBody", "content", "application/json", "schema")
            yield from self._faults(where, schema, body)
            # The file allows fields that it does not know; nobody sends one on purpose.
            known = self._fields(self._at(schema))
            if known and isinstance(body, dict):
                yield from (f"{where}: unknown field {name}" for name in cast("Json", body).keys() - known)
        elif wanted.get("required"):
            yield f"{where}: has no body"

    def _faults(self, where: str, at: tuple[str, ...], value: object) -> Iterator[str]:
        if isinstance(value, list) and self._at((*at, "items")):
            # A page of messages costs 150 ms, and the next page mostly holds the same ones.
            for item in cast("list[object]", value):
                yield from self._item_faults(where, (*at, "items"), item)
            return
        validator: Any = self._validator(at)
        errors: Iterator[ValidationError] = validator.iter_errors(value)
        for error in errors:
            cause = _closest(error)
            yield f"{where}: {cause.json_path}: {cause.message[:300]}"

    def _item_faults(self, where: str, at: tuple[str, ...], item: object) -> Iterator[str]:
        known = (at, json.dumps(item))
        if known not in self._fitting:
            found = list(self._faults(where, at, item))
            if not found:
                self._fitting.add(known)
            yield from found

    def _validator(self, at: tuple[str, ...]) -> Draft202012Validator:
        # A reference needs an absolute name: the file itself has none, so it gets one here.
        steps = "".join("/" + quote(step.replace("~", "~0").replace("/", "~1"), safe="~@") for step in at)
        if steps not in self._validators:
            self._validators[steps] = Draft202012Validator({"$ref": f"{_URN}#{steps}"}, registry=self._registry)
        return self._validators[steps]

    def _read(self, at: tuple[str, ...], text: str) -> object:
        """Give a query value the type that its schema asks for."""
        schema, _ = self._followed(self._at(at), at)
        if schema.get("type") == "integer" and re.fullmatch(r"-?\d+", text):
            return int(text)
        if schema.get("type") == "boolean" and text in {"true", "false"}:
            return text == "true"
        return text

    def _fields(self, schema: Json) -> set[str]:
        schema, _ = self._followed(schema, ())
        fields = set(schema.get("properties", ()))
        for union in ("allOf", "anyOf", "oneOf"):
            fields.update(*(self._fields(part) for part in schema.get(union, ())))
        return fields

    def _followed(self, value: Json, at: tuple[str, ...]) -> tuple[Json, tuple[str, ...]]:
        while "$ref" in value:
            at = tuple(cast("str", value["$ref"]).removeprefix("#/").split("/"))
            value = self._at(at)
        return value, at

    def _at(self, steps: tuple[str, ...]) -> Any:
        value: Any = self._document
        for step in steps:
            holder: Any = value
            value = holder[int(step)] if isinstance(value, list) else holder.get(step)
            if value is None:
                return None
        return value


def _closest(error: ValidationError) -> ValidationError:
    """Give, of a union that nothing fits, what is wrong with the part that came closest."""
    library: Any = exceptions
    return cast("ValidationError", library.best_match([error]))


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", template))
