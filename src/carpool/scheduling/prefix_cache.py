"""Which full KV blocks hold which tokens: a hash chain over (parent, namespace, tokens)."""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol


class PrefixKey(NamedTuple):
    """Identity of a full block: its own tokens and, through `parent`, all before them.

    Two keys are equal only if their tokens are, so a colliding digest is a miss and never
    a wrong hit.
    """

    digest: bytes
    parent: bytes
    namespace: str
    token_ids: tuple[int, ...]


def extend_prefix_keys(
    keys: list[PrefixKey], namespace: str, token_ids: Sequence[int], block_size: int
) -> None:
    """Append the keys of the full blocks of `token_ids` that `keys` lacks."""
    if (len(keys) + 1) * block_size > len(token_ids):
        return
    parent = keys[-1].digest if keys else _digest(b"", namespace.encode())
    for start in range(len(keys) * block_size, len(token_ids) - block_size + 1, block_size):
        block = tuple(token_ids[start : start + block_size])
        digest = _digest(parent, array("q", block).tobytes())
        keys.append(PrefixKey(digest, parent, namespace, block))
        parent = digest


def _digest(parent: bytes, content: bytes) -> bytes:
    return blake2b(parent + content, digest_size=16).digest()


class PrefixCache(Protocol):
    """An index from keys to block ids. It owns no block: the pool keeps it truthful."""

    def find(self, key: PrefixKey) -> int | None:
        """The block that holds exactly the tokens of `key`."""
        ...

    def insert(self, key: PrefixKey, block_id: int) -> bool:
        """Index a block; False if its content is indexed already, under another block."""
        ...

    def remove(self, key: PrefixKey) -> None:
        """Forget the block of `key`, because it is about to be overwritten."""
        ...

    def items(self) -> Iterator[tuple[PrefixKey, int]]: ...


class HashPrefixCache:
    """The index by digest. The first block with some content stays the one that is found."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, tuple[PrefixKey, int]] = {}

    def find(self, key: PrefixKey) -> int | None:
        entry = self._blocks.get(key.digest)
        return entry[1] if entry is not None and entry[0] == key else None

    def insert(self, key: PrefixKey, block_id: int) -> bool:
        return self._blocks.setdefault(key.digest, (key, block_id))[1] == block_id

    def remove(self, key: PrefixKey) -> None:
        del self._blocks[key.digest]

    def items(self) -> Iterator[tuple[PrefixKey, int]]:
        return iter(self._blocks.values())


class NoPrefixCache:
    """Finds nothing and keeps nothing: the baseline to compare the cache with."""

    def find(self, key: PrefixKey) -> int | None:
        return None

    def insert(self, key: PrefixKey, block_id: int) -> bool:
        return False

    def remove(self, key: PrefixKey) -> None:
        raise KeyError(key.digest)

    def items(self) -> Iterator[tuple[PrefixKey, int]]:
        return iter(())
