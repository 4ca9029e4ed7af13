"""A real embedding model that needs no download: WordLlama's 256 dimensions.

Its weights come inside the wheel. Any LangChain ``Embeddings`` can stand in its place; the
store does not know which one it is given.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import wordllama
from langchain_core.embeddings import Embeddings
from numpy.typing import NDArray

DIMS = 256


class WordLlamaEmbeddings(Embeddings):
    """Texts to unit vectors of :data:`DIMS` float32 numbers, about 0.1 ms a sentence."""

    def __init__(self) -> None:
        folder = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=folder, dim=DIMS, disable_download=True)

    def embed_array(self, texts: list[str]) -> NDArray[np.float32]:
        """One row per text. A text without a known token gets a row of zeros."""
        rows: NDArray[np.float32] = self._model.embed(texts)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: NDArray[np.float32] = (rows / np.maximum(norms, 1e-12)).astype(np.float32, copy=False)
        return unit

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector per text, in their order."""
        vectors: list[list[float]] = self.embed_array(texts).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of one text; questions and statements are embedded alike."""
        return self.embed_documents([text])[0]
