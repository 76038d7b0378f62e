"""Reply schemas: strict mode takes them, and they say what the type says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from msgspec import Meta, Struct

from intern.llm.schema import reply_schema
from tests.endpoint_double import faults_of


class Cited(Struct, frozen=True):
    """A citation."""

    source_id: Annotated[str, Meta(max_length=8, description="An id as shown.")]
    title: str | None = None


class Reply(Struct, frozen=True):
    """The words `"$ref":"#/$defs/Reply"` in a description are only words."""

    answer: Annotated[str, Meta(max_length=20)]
    kind: Literal["bug", "question"]
    certain: bool
    first: Annotated[Cited, Meta(description="The best one.")]
    title: str = "none"
    score: Annotated[int, Meta(ge=0, le=10)] = 0
    citations: Annotated[tuple[Cited, ...], Meta(max_length=3)] = ()


class Tree(Struct, frozen=True):
    children: tuple[Tree, ...] = ()


class Owner(Struct, frozen=True):
    tree: Tree


class Cat(Struct, frozen=True, tag=True):
    lives: int


class Dog(Struct, frozen=True, tag=True):
    name: str


class Pet(Struct, frozen=True):
    pet: Cat | Dog


def fits(schema: dict[str, Any], reply: Any) -> bool:
    try:
        jsonschema.validate(reply, schema)
    except jsonschema.ValidationError:
        return False
    return True


def faults(schema: dict[str, Any]) -> list[str]:
    return faults_of({"response_format": {"json_schema": {"name": "x", "strict": True, "schema": schema}}})


@pytest.mark.parametrize("gives", [Reply, Tree, Owner, Pet])
@pytest.mark.parametrize("bounds", [True, False])
def test_strict_mode_takes_every_type(gives: type, *, bounds: bool) -> None:
    schema = reply_schema(gives, bounds=bounds)

    assert faults(schema) == []
    assert schema["type"] == "object"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_what_fits_the_type_fits_the_schema_and_the_other_way_round() -> None:
    cited = Cited("kb:a.md")
    reply = msgspec.json.decode(msgspec.json.encode(Reply("yes", "bug", certain=True, first=cited, citations=(cited,))))
    schema = reply_schema(Reply, bounds=True)

    assert fits(schema, reply)
    for wrong in ({"kind": "other"}, {"score": 11}, {"answer": "x" * 21}, {"citations": [reply["first"]] * 4}):
        assert not fits(schema, {**reply, **wrong})
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**reply, **wrong}, Reply)


def test_bounds_are_left_to_decoding_where_endpoints_refuse_them() -> None:
    said = msgspec.json.encode(reply_schema(Reply, bounds=False)).decode()

    assert not any(word in said for word in ("maxLength", "maximum", "minimum", "maxItems"))
    assert "maxLength" in msgspec.json.encode(reply_schema(Reply, bounds=True)).decode()


def test_references_are_put_in_place_and_descriptions_stay() -> None:
    schema = reply_schema(Reply, bounds=True)

    assert "$defs" not in schema
    assert schema["properties"]["first"]["description"] == "The best one."
    assert schema["properties"]["citations"]["items"]["description"] == "A citation."


def test_a_field_may_be_named_like_a_keyword() -> None:
    properties = reply_schema(Reply, bounds=True)["properties"]

    assert properties["title"] == {"type": "string"}
    assert "title" not in reply_schema(Reply, bounds=True)


def test_a_type_that_holds_itself_keeps_its_definitions() -> None:
    schema = reply_schema(Owner, bounds=True)

    assert fits(schema, {"tree": {"children": [{"children": []}]}})
    assert not fits(schema, {"tree": {"children": [{"children": 1}]}})
