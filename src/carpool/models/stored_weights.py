"""Bytes of a model's parts, counted over its tensors by their names."""

import re
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from carpool.models.weight_format import WeightBytes

_PARTS = (
    ("vision", re.compile(r"visual|vision|image|audio|multi_modal|^v\.|^mm\.")),
    ("draft", re.compile(r"(^|\.)mtp\.|nextn|eagle")),
    ("tables", re.compile(r"embed_tokens|lm_head|wte|word_embeddings|token_embd|^output\.")),
    ("experts", re.compile(r"\.experts\.|_exps\.|experts\.(gate|up|down)")),
    ("latent", re.compile(r"(kv|q)_a_proj|attn_(kv|q)_a|indexer")),
    ("replicated", re.compile(r"norm|router|mlp\.gate\.|gate_inp|e_score")),
)


class StoredTensor(NamedTuple):
    """A tensor of a file, whatever the format: `type` is its storage type."""

    name: str
    type: str
    num_bytes: int
    num_elements: int


class StoredWeights(NamedTuple):
    """`by_type`: bytes by storage type, most first. `draft`: layers that only speculate."""

    bytes: WeightBytes
    draft: int
    by_type: dict[str, int]
    num_elements: int


def count_weights(tensors: Iterable[StoredTensor], num_layers: int) -> StoredWeights:
    """Layers from `num_layers` on are draft layers, as DeepSeek's checkpoints number them."""
    sizes: Counter[str] = Counter()
    by_type: Counter[str] = Counter()
    elements = 0
    for tensor in tensors:
        sizes[_part(tensor.name, num_layers)] += tensor.num_bytes
        by_type[tensor.type] += tensor.num_bytes
        elements += tensor.num_elements
    parts = {name: float(sizes[name]) for name in WeightBytes.__slots__}
    return StoredWeights(
        WeightBytes(**parts), sizes["draft"], dict(by_type.most_common()), elements
    )


def _part(name: str, num_layers: int) -> str:
    layer = re.search(r"(?:layers|blk)\.(\d+)\.", name)
    if layer and int(layer[1]) >= num_layers:
        return "draft"
    return next((part for part, pattern in _PARTS if pattern.search(name)), "dense")
