"""The vectors that the settings name: none, those of a model on this machine, or those of an endpoint.

`intern status` needs to know no more, so nothing is loaded here that works with vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from intern.models.options import make_vectors_name
from intern.search.embedding_custom import make_custom_model
from intern.search.embedding_local import ENGLISH, MULTILINGUAL, LocalEmbeddingModel, is_english_installed
from intern.settings.settings import Settings
from intern.stores.database import Database

if TYPE_CHECKING:
    from intern.stores.search_file.vector_copy import VectorCopy


def embeddings_kind(settings: Settings) -> Literal["local", "endpoint", "none"]:
    """Return the provider of embeddings, or the default if `embeddings.provider` is empty."""
    options = settings.embeddings
    return options.provider or ("local" if options.model or is_english_installed() else "none")


def local_model(settings: Settings) -> LocalEmbeddingModel:
    """Return the model on this machine. Raises ConfigError."""
    options = settings.embeddings
    if options.is_own:
        prefixes = {"document_prefix": options.document_prefix, "query_prefix": options.query_prefix}
        return make_custom_model(Path(options.model), pooling=options.pooling, **prefixes)
    return MULTILINGUAL if options.model == "multilingual" else ENGLISH


def embedding_model(settings: Settings) -> str | None:
    """Return the name of the model whose vectors are searched; None where there are none."""
    match embeddings_kind(settings):
        case "none":
            return None
        case "local":
            return local_model(settings).name
        case "endpoint":
            return make_vectors_name(settings.embeddings.merge_with_llm(settings.llm), settings.embeddings.dimensions)


def open_vector_copy(settings: Settings, db: Database) -> VectorCopy | None:
    """Return the copy of the vectors in the vector engine of the settings; None where vectors are local."""
    if settings.search.vectors == "local" or (model := embedding_model(settings)) is None:
        return None
    from intern.stores.search_file.vector_copy import VectorCopy
    from intern.stores.vector_engines.chroma import Chroma
    from intern.stores.vector_engines.qdrant import Qdrant

    engine = {"qdrant": Qdrant, "chroma": Chroma}[settings.search.vectors]
    return VectorCopy(db, engine(settings.search), model)
