"""The KV cache's blocks: who holds which, which are free, and which are worth keeping."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from carpool.scheduling.invariants import InvariantViolation
from carpool.scheduling.prefix_cache import PrefixCache, PrefixKey


class Block:
    """One KV block. `key` is set while the prefix cache can find it; a block with
    `ref_count` 0 is in the free list, through `previous` and `next`."""

    __slots__ = ("block_id", "key", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.key: PrefixKey | None = None
        self.previous: Block = self
        self.next: Block = self


class FreeList:
    """Free blocks in the order of their reuse; a ring around a sentinel, so that any block
    leaves it in O(1)."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._sentinel = Block(-1)
        self._length = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Block]:
        block = self._sentinel.next
        while block is not self._sentinel:
            yield block
            block = block.next

    def append(self, block: Block) -> None:
        """Put `block` where it is reused last."""
        self._insert_before(block, self._sentinel)

    def append_left(self, block: Block) -> None:
        """Put `block` where it is reused first."""
        self._insert_before(block, self._sentinel.next)

    def pop_left(self) -> Block:
        block = self._sentinel.next
        if block is self._sentinel:
            raise IndexError("pop from an empty free list")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        block.previous.next = block.next
        block.next.previous = block.previous
        self._length -= 1

    def _insert_before(self, block: Block, other: Block) -> None:
        block.previous, block.next = other.previous, other
        other.previous.next = block
        other.previous = block
        self._length += 1


class Allocation(NamedTuple):
    """A new block table, whose first `num_hits` blocks already hold their tokens."""

    block_ids: list[int]
    num_hits: int


class BlockPool:
    """Reference-counted blocks over one free list.

    Blocks that the prefix cache cannot find are reused first, then the least recently
    used, the tail of a chain before its head. Finding cached blocks and taking them is one
    operation (`allocate`): no caller can hold a block that it has not referenced.
    """

    def __init__(self, num_blocks: int, prefix_cache: PrefixCache) -> None:
        self._blocks = [Block(block_id) for block_id in range(num_blocks)]
        self._free = FreeList(self._blocks)
        self._cache = prefix_cache
        self._num_cached = 0

    @property
    def num_blocks(self) -> int:
        return len(self._blocks)

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds, cached or not."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that nobody holds and the prefix cache can still find."""
        return self._num_cached

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds and that hold nothing of use."""
        return len(self._free) - self._num_cached

    @property
    def num_used(self) -> int:
        return len(self._blocks) - len(self._free)

    def count_hits(self, keys: Sequence[PrefixKey]) -> int:
        """How many leading blocks of `keys` are cached now. A number and no blocks: what
        is not taken may be gone after the next allocation."""
        for num_hits, key in enumerate(keys):
            if self._cache.find(key) is None:
                return num_hits
        return len(keys)

    def allocate(
        self, keys: Sequence[PrefixKey], num_blocks: int, headroom: int = 0
    ) -> Allocation | None:
        """Take `num_blocks` blocks, the leading ones from the cache as far as `keys` hit.

        None, and nothing changed, if this would leave fewer than `headroom` blocks.
        `keys` must be no longer than `num_blocks`.
        """
        hits: list[Block] = []
        num_idle_hits = 0
        for key in keys:
            block_id = self._cache.find(key)
            if block_id is None:
                break
            block = self._blocks[block_id]
            hits.append(block)
            num_idle_hits += block.ref_count == 0
        num_new = num_blocks - len(hits)
        if num_idle_hits + num_new + headroom > len(self._free):
            return None
        for block in hits:
            self._hold(block)
        block_ids = [block.block_id for block in hits]
        block_ids.extend(self._take_first_free() for _ in range(num_new))
        return Allocation(block_ids, len(hits))

    def allocate_one(self) -> int | None:
        """Take one block to write to; None if nobody can spare one."""
        return self._take_first_free() if len(self._free) else None

    def register(self, block_id: int, key: PrefixKey) -> None:
        """Let the cache find a held block, whose slots all hold the tokens of `key` now."""
        if self._cache.insert(key, block_id):
            self._blocks[block_id].key = key

    def release(self, block_ids: Sequence[int]) -> None:
        """Give back one reference to each block of a block table."""
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            block.ref_count -= 1
            if block.ref_count > 0:
                continue
            if block.key is None:
                self._free.append_left(block)
            else:
                self._free.append(block)
                self._num_cached += 1

    def _hold(self, block: Block) -> None:
        if block.ref_count == 0:
            self._free.remove(block)
            self._num_cached -= 1
        block.ref_count += 1

    def _take_first_free(self) -> int:
        block = self._free.pop_left()
        if block.key is not None:
            self._cache.remove(block.key)
            block.key = None
            self._num_cached -= 1
        block.ref_count = 1
        return block.block_id

    def check_invariants(self, block_tables: Iterable[Sequence[int]]) -> None:
        """Raise InvariantViolation unless `block_tables` are all the references there are,
        the free list holds the rest, and the cache tells the truth."""
        references = [0] * len(self._blocks)
        for table in block_tables:
            for block_id in table:
                references[block_id] += 1
        for block, expected in zip(self._blocks, references, strict=True):
            if block.ref_count != expected:
                raise InvariantViolation(
                    f"block {block.block_id} counts {block.ref_count} references, "
                    f"but {expected} block tables hold it"
                )
        self._check_free_list()
        indexed = {block_id: key for key, block_id in self._cache.items()}
        keyed = {block.block_id: block.key for block in self._blocks if block.key is not None}
        if indexed != keyed:
            raise InvariantViolation("the prefix cache and the blocks' keys differ")

    def _check_free_list(self) -> None:
        listed = [block.block_id for block in self._free]
        idle = [block.block_id for block in self._blocks if block.ref_count == 0]
        if sorted(listed) != idle or len(listed) != len(self._free):
            raise InvariantViolation(f"free list {listed} is not the idle blocks {idle}")
        num_cached = sum(block.key is not None for block in self._free)
        if num_cached != self._num_cached:
            raise InvariantViolation(
                f"{num_cached} idle blocks are cached, but {self._num_cached} are counted"
            )
        if [block.key is not None for block in self._free] != sorted(
            block.key is not None for block in self._free
        ):
            raise InvariantViolation("a cached block stands before a useless one in the free list")
