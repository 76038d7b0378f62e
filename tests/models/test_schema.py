"""Reply schemas: strict mode takes them, and they say what the type says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from msgspec import Meta, Struct

from intern.answering.prompts import SELECT
from intern.learning.prompts import INTEGRATE, SPLIT_TOPIC, SUMMARIZE_IMAGES
from intern.models.prompt import Prompt, narrow_schema, reply_schema
from intern.models.templates import PromptTemplates
from intern.service.models import PROMPTS
from intern.service.prompt_examples import build_full_example
from tests.worlds.endpoint import faults_of


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


@pytest.mark.parametrize("gives", [Reply, Pet])
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


# --- What was shown, as enums ---

IDS = ("kb:a", "kb:b", "kb:a")


class Picked(Struct, frozen=True):
    ids: Annotated[tuple[Annotated[str, Meta(max_length=9)], ...], Meta(max_length=7, description="As shown.")]
    best: Annotated[str, Meta(max_length=9, description="One of them.")]
    cited: tuple[Cited, ...] = ()
    score: int = 0


@pytest.mark.parametrize("bounds", [True, False])
def test_fields_are_narrowed_to_what_is_offered_wherever_they_stand(*, bounds: bool) -> None:
    whole = reply_schema(Picked, bounds=bounds)
    before = msgspec.json.encode(whole)
    schema = narrow_schema(whole, {"ids": IDS, "best": IDS, "source_id": ["kb:c"], "score": ["1"], "nowhere": IDS})
    reply = {"ids": ["kb:b"], "best": "kb:a", "cited": [{"source_id": "kb:c", "title": None}], "score": 1}

    assert faults(schema) == []
    jsonschema.Draft202012Validator.check_schema(schema)
    assert fits(schema, reply)
    for wrong in ({"ids": ["kb:c"]}, {"best": "kb:c"}, {"cited": [{"source_id": "kb:a", "title": None}]}):
        assert not fits(schema, {**reply, **wrong})
    assert schema["properties"]["ids"].get("maxItems") == (2 if bounds else None)
    assert schema["properties"]["ids"]["description"] == "As shown."
    # Schemas are shared.
    assert msgspec.json.encode(whole) == before


@pytest.mark.parametrize("values", [[], [f"kb:{n}" for n in range(65)], ["x" * 2001, "y" * 2000]])
def test_nothing_to_choose_or_too_much_of_it_is_no_enum(values: list[str]) -> None:
    assert narrow_schema(reply_schema(Picked, bounds=True), {"ids": values}) == reply_schema(Picked, bounds=True)


@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: prompt.name)
def test_every_text_and_every_list_of_every_prompt_is_bounded(prompt: Prompt[Any, Any]) -> None:
    assert list(_unbounded(reply_schema(prompt.gives, bounds=True), prompt.name)) == []


def _unbounded(schema: dict[str, Any], where: str) -> Iterator[str]:
    if schema.get("type") == "string" and not {"maxLength", "enum"} & schema.keys():
        yield where
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield where
    inner: dict[str, Any] = dict(schema.get("properties", {}))
    if "items" in schema:
        inner["[]"] = schema["items"]
    inner.update({f"anyOf[{n}]": choice for n, choice in enumerate(schema.get("anyOf", []))})
    for name, part in inner.items():
        yield from _unbounded(part, f"{where}.{name}")


@pytest.mark.parametrize("prompt", [SELECT, INTEGRATE, SPLIT_TOPIC, SUMMARIZE_IMAGES], ids=lambda prompt: prompt.name)
def test_ids_that_a_prompt_shows_are_what_it_offers(prompt: Prompt[Any, Any]) -> None:
    given = build_full_example(prompt)
    assert prompt.offers is not None
    rendered = PromptTemplates().render(prompt, given)
    offered = prompt.offers(given)

    assert all(offered.values())
    assert all(value in rendered.user for values in offered.values() for value in values)
    assert "enum" in msgspec.json.encode(narrow_schema(reply_schema(prompt.gives, bounds=True), offered)).decode()
