"""Features as JSON: what users return from their work, and back again."""

from __future__ import annotations

import math
from typing import Any

from bionemo.size_aware_batching._checks import kind_of
from bionemo.size_aware_batching.memory._shape import BatchShape

__all__ = ["decode_features", "encode_features"]


def encode_features(features: Any, index: int) -> Any:
    """Return features as plain JSON values; a `BatchShape` and a dict say what they are.

    Args:
        features: made of numbers (also of numpy and torch), text, None, lists, tuples and dicts.
        index: where they come from, for the error.

    Raises:
        TypeError: there is something else in them.
        ValueError: a number is NaN or infinite.
    """
    if features is None or isinstance(features, (str, bool)):
        return features
    if isinstance(features, BatchShape):
        return {"shape": [encode_features(value, index) for value in features]}
    if isinstance(features, (list, tuple)):
        return [encode_features(value, index) for value in features]
    if isinstance(features, dict) and all(isinstance(key, str) for key in features):
        return {"dict": {key: encode_features(value, index) for key, value in features.items()}}
    if not isinstance(features, (int, float)) and hasattr(features, "tolist"):
        # Arrays and tensors, down to single numbers.
        return encode_features(features.tolist(), index)
    if not isinstance(features, (int, float)):
        msg = f"the features at index {index} cannot be saved: they hold {kind_of(features)}"
        raise TypeError(msg)
    if not math.isfinite(features):
        msg = f"the features at index {index} cannot be saved: they hold {features}"
        raise ValueError(msg)
    return features


def decode_features(document: Any) -> Any:
    """Rebuild what `encode_features` wrote.

    Raises:
        ValueError: it wrote no such thing.
    """
    if isinstance(document, list):
        return [decode_features(value) for value in document]
    if isinstance(document, dict):
        return _decode_tagged(document)
    if isinstance(document, float) and not math.isfinite(document):
        raise ValueError(document)
    return document


def _decode_tagged(document: dict[str, Any]) -> Any:
    ((tag, value),) = document.items()
    if tag == "dict" and isinstance(value, dict):
        return {key: decode_features(inner) for key, inner in value.items()}
    if tag != "shape":
        raise ValueError(tag)
    items, longest, total = value
    measures = [longest, total] if isinstance(longest, list) else [[longest], [total]]
    numbers = [items, *measures[0], *measures[1]]
    if len(measures[0]) != len(measures[1]) or not all(type(n) in (int, float) and 0 <= n < math.inf for n in numbers):
        raise ValueError(tag)
    return BatchShape(items, *(map(tuple, measures) if isinstance(longest, list) else (longest, total)))
