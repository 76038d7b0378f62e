"""The operator's own model: an ONNX file, with its `tokenizer.json` beside it or one folder above.

Less the mean of usual texts, the cosines of any model spread about as those of the English model do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from intern.core.errors import ConfigError, ModelAccessError
from intern.core.memory import release_free_memory
from intern.search.embedding_local import LoadedEmbeddingModel, LocalEmbeddingModel, normalise_vectors, open_session

_PACKAGES = ("numpy", "onnxruntime", "tokenizers")
_TOKENIZER = "tokenizer.json"
_MOST_TOKENS = 512
_USUAL = Path(__file__).with_name("usual.txt")
_READ = 1 << 20  # bytes at either end of a file: two files that share these and their size are taken for one
_DTYPES = {"tensor(int64)": "int64", "tensor(int32)": "int32"}


def make_custom_model(
    path: Path, *, pooling: Literal["mean", "cls"], document_prefix: str = "", query_prefix: str = ""
) -> LocalEmbeddingModel:
    """Return the model in a file. Raises ConfigError."""
    if not path.is_file():
        raise ConfigError(f"embeddings.model: there is no file {path}")
    found = (folder / _TOKENIZER for folder in path.parents[:2])
    tokenizer = next((each for each in found if each.exists()), None)
    if tokenizer is None:
        where = f"{path.parent} nor {path.parent.parent}"
        raise ConfigError(f"embeddings.model: neither {where} holds the {_TOKENIZER} of the model")
    prefixes = (document_prefix, query_prefix)
    # A graph of more than 2 GB has its weights in other files, which begin with its name.
    files = [tokenizer, *sorted(path.parent.glob(f"{path.name}*"))]
    try:
        marks = [hashlib.sha256("\0".join((pooling, *prefixes)).encode()).digest(), *map(_fingerprint_file, files)]
    except OSError as error:
        raise ConfigError(f"embeddings.model: {error.filename} cannot be read ({error.strerror})") from error
    name = f"{path.name} {hashlib.sha256(b''.join(marks)).hexdigest()[:12]}"
    load = partial(_load_custom_model, name, path, tokenizer, pooling == "cls", prefixes)
    return LocalEmbeddingModel(name, load, _PACKAGES, "onnx")


def _fingerprint_file(path: Path) -> bytes:
    """Return a digest of a file's size, beginning and end, since some files hold gigabytes."""
    with path.open("rb") as file:
        size = path.stat().st_size
        begin = file.read(_READ)
        file.seek(max(size - _READ, 0))
        return hashlib.sha256(b"%d" % size + begin + file.read(_READ)).digest()


@cache  # by the name: another file has another one
def _load_custom_model(
    _name: str,
    path: Path,
    tokenizer: Path,
    first: bool,  # noqa: FBT001
    prefixes: tuple[str, str],
) -> LoadedEmbeddingModel:
    tokenize = _load_tokenizer(tokenizer)
    run = _load_runner(path, first=first)
    np: Any = import_module("numpy")

    def tokens(text: str, asked: bool) -> Sequence[int]:  # noqa: FBT001
        return tokenize(prefixes[int(asked)] + text)

    def vectors(ids: Sequence[Sequence[int]]) -> Any:
        rows = run(np.array(ids))
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    usual = _USUAL.read_text(encoding="utf-8").splitlines()
    means = [np.mean([vectors([tokens(text, asked)])[0] for text in usual], axis=0) for asked in (False, True)]
    release_free_memory()

    def encode(ids: Sequence[Sequence[int]], asked: bool) -> Sequence[bytes]:  # noqa: FBT001
        return normalise_vectors(vectors(ids) - means[int(asked)])

    return LoadedEmbeddingModel(tokens, encode)


def _load_tokenizer(path: Path) -> Callable[[str], Sequence[int]]:
    library: Any = import_module("tokenizers")
    try:
        loaded = library.Tokenizer.from_file(str(path))
    except Exception as error:  # it raises no narrower one
        raise ModelAccessError(f"{path} is no tokenizer: {error}") from error
    loaded.no_padding()
    loaded.enable_truncation(_MOST_TOKENS)
    loaded.encode_special_tokens = True  # "[SEP]" in a message is text
    return lambda text: loaded.encode(text).ids or [0]  # some leave nothing of an empty text


def _load_runner(path: Path, *, first: bool) -> Callable[[Any], Any]:
    """Return a function from ids (texts × tokens) to vectors (texts × numbers)."""
    np: Any = import_module("numpy")
    try:
        loaded = open_session(str(path))
    except Exception as error:  # onnxruntime has a dozen, without a common base
        raise ModelAccessError(f"{path} cannot be loaded: {_first_line(error)}") from error
    inputs = {each.name: _DTYPES.get(each.type) for each in loaded.get_inputs()}
    outputs = [each.name for each in loaded.get_outputs()]
    output = next((name for name in outputs if name == "sentence_embedding"), outputs[0])

    def build_inputs(ids: Any) -> Mapping[str, Any]:
        known = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        return {name: known[name].astype(dtype) for name, dtype in inputs.items()}

    def run(ids: Any) -> Any:
        [found] = loaded.run([output], build_inputs(ids))
        if found.ndim == 2:  # pooled already
            return found
        return found[:, 0] if first else found.mean(axis=1)

    if strange := [name for name, dtype in inputs.items() if dtype is None or name not in _INPUTS]:
        raise ModelAccessError(f"{path} wants the input {strange[0]}; a model for texts wants {', '.join(_INPUTS)}")
    try:
        tried = run(np.zeros((1, 2), np.int64))
    except Exception as error:
        raise ModelAccessError(f"{path} cannot be run: {_first_line(error)}") from error
    if tried.ndim != 2 or tried.shape[0] != 1 or not np.isfinite(tried).all():
        raise ModelAccessError(f"{path} gives no vector for a text: its output {output} has another form")
    return run


_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
