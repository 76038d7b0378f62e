"""The operator's own model: its files, its vectors, and the errors for wrong files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

np: Any = pytest.importorskip("numpy")
pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")

from intern.core.errors import ConfigError, ModelAccessError  # noqa: E402 - after what they need
from intern.search import minilm  # noqa: E402
from intern.search.embedding_custom import make_custom_model  # noqa: E402
from intern.search.embedding_local import LocalEmbedder  # noqa: E402

VOCABULARY = {"[UNK]": 0, "[CLS]": 1, "[SEP]": 2, "key": 3, "lock": 4, "soup": 5, "asked": 6, ":": 7}


def model_in(folder: Path, inputs: Sequence[str] = ("input_ids", "attention_mask"), turn: float = 1.0) -> Path:
    """Write a model whose vector of a token is a row of a table, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "version": "1.0",
                "added_tokens": [],
                "pre_tokenizer": {"type": "Whitespace"},
                "model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "[UNK]"},
            }
        ),
        encoding="utf-8",
    )
    builder: Any = minilm._GraphBuilder({})  # pyright: ignore[reportPrivateUsage]
    table = np.random.default_rng(5).normal(size=(len(VOCABULARY), 16)).astype("<f4") * turn
    builder._add_node("Gather", [builder._add_constant("table", table), inputs[0]], "hidden")
    whole: Any = minilm._encode_value_info  # pyright: ignore[reportPrivateUsage]
    given = b"".join([whole(inputs[0], 7, ("texts", "tokens"))])
    graph = builder._serialise_model(given, whole("hidden", 1, ("texts", "tokens", "width")))
    path = folder / "model.onnx"
    path.write_bytes(graph)
    return path


def own(path: Path, pooling: Literal["mean", "cls"] = "mean", **prefixes: str) -> LocalEmbedder:
    return LocalEmbedder(make_custom_model(path, pooling=pooling, **prefixes))


async def test_a_file_with_its_tokenizer_turns_texts_into_vectors(tmp_path: Path) -> None:
    path = model_in(tmp_path)
    embedder = own(path)
    vectors = await embedder.compute_vectors(["key lock", "lock key", "soup", ""])
    assert vectors[0] == vectors[1] != vectors[2]
    assert [float(np.linalg.norm(np.frombuffer(each, "<f4"))) for each in vectors] == pytest.approx([1] * 4)
    first = await own(path, "cls").compute_vectors(["key lock", "key soup", "lock key"])
    assert first[0] == first[1] != first[2]


async def test_questions_and_documents_get_their_prefixes(tmp_path: Path) -> None:
    plain, prefixed = own(model_in(tmp_path)), own(tmp_path / "model.onnx", query_prefix="asked: ")
    [document] = await prefixed.compute_vectors(["key"])
    [question] = await prefixed.compute_vectors(["key"], asked=True)
    assert [document] == await plain.compute_vectors(["key"])
    assert question != document


def test_the_name_of_its_vectors_changes_with_all_that_changes_them(tmp_path: Path) -> None:
    names = {own(model_in(tmp_path)).model, own(tmp_path / "model.onnx", "cls").model}
    names |= {own(tmp_path / "model.onnx", document_prefix="a ").model, own(model_in(tmp_path / "of", turn=2)).model}
    assert len(names) == 4
    assert own(model_in(tmp_path / "copy")).model == own(tmp_path / "model.onnx").model
    (tmp_path / "model.onnx_data").write_bytes(b"weights beside the graph")
    assert own(tmp_path / "model.onnx").model not in names


def test_the_tokenizer_may_lie_one_folder_above(tmp_path: Path) -> None:
    path = model_in(tmp_path)
    (tmp_path / "onnx").mkdir()
    assert own(path.rename(tmp_path / "onnx" / "model.onnx")).model


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*model\.onnx"):
        own(tmp_path / "model.onnx")
    model_in(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"neither .* holds the tokenizer\.json"):
        own(tmp_path / "model.onnx")


async def test_a_file_that_is_no_model_for_texts_is_refused_in_one_line(tmp_path: Path) -> None:
    path = model_in(tmp_path, ["pixel_values"])
    with pytest.raises(ModelAccessError, match="pixel_values"):
        await own(path).compute_vectors(["key"])
    path.write_bytes(b"no model at all")
    with pytest.raises(ModelAccessError, match=r"^\S+model\.onnx cannot be loaded: [^\n]+$"):
        await own(path).compute_vectors(["key"])
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ModelAccessError, match="is no tokenizer"):
        await own(path).compute_vectors(["key"])
