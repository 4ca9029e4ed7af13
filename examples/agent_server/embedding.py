"""Vectors of words, made without a model: texts that share words are near each other."""

import re
import zlib

DIMS = 256


def embed(texts: list[str]) -> list[list[float]]:
    """One vector per text."""
    return [_vector(text) for text in texts]


def _vector(text: str) -> list[float]:
    vector = [0.0] * DIMS
    for word in re.findall(r"\w+", text.lower()):
        vector[zlib.crc32(word.encode()) % DIMS] += 1.0
    # A vector of nothing but zeros has no direction to compare.
    return vector if any(vector) else [1.0] + [0.0] * (DIMS - 1)
