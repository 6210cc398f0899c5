"""Which request holds which KV blocks: taking, growing, registering, giving back."""

from collections.abc import Iterable

from carpool.scheduling.block_pool import BlockPool
from carpool.scheduling.config import BatchingPolicy, MemoryPolicy, SchedulerConfig
from carpool.scheduling.invariants import InvariantViolation
from carpool.scheduling.person_caps import PersonCaps
from carpool.scheduling.prefix_cache import HashPrefixCache, NoPrefixCache, extend_prefix_keys
from carpool.scheduling.request import Request, WaitingReason


class KVCacheManager:
    """Binds requests to the block pool, the prefix cache and the caps per person.

    Modifies of a request: `block_table`, `num_computed_tokens` (when it takes blocks),
    `prefix_keys` and `num_registered_blocks`. Never its status.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.pool = BlockPool(
            config.num_blocks,
            HashPrefixCache() if config.enable_prefix_cache else NoPrefixCache(),
        )
        self._config = config
        self._block_size = config.block_size
        self._caps = PersonCaps(config)
        self._defers = (
            config.defer_shared_prefixes and config.batching_policy is BatchingPolicy.CONTINUOUS
        )
        self._pending: dict[bytes, Request] = {}

    def reason_to_wait(self, request: Request) -> WaitingReason | None:
        """Why a new request should not take blocks now, even if they fit."""
        num_blocks = self._num_blocks_to_take(request)
        reason = self._caps.reason_to_wait(request.person_id, num_blocks)
        if reason is None and self._is_prefix_pending(request):
            return WaitingReason.SHARED_PREFIX
        return reason

    def take_blocks(self, request: Request, headroom: int) -> bool:
        """Give `request` blocks for all its tokens, cached ones first; False if that would
        leave fewer than `headroom` blocks."""
        allocation = self.pool.allocate(
            request.prefix_keys[: self._num_usable_keys(request)],
            self._num_blocks_to_take(request),
            headroom,
        )
        if allocation is None:
            return False
        request.block_table = allocation.block_ids
        request.num_registered_blocks = allocation.num_hits
        request.num_computed_tokens = allocation.num_hits * self._block_size
        self._caps.add(request.person_id, 1, len(request.block_table))
        if self._defers:
            for key in request.prefix_keys[allocation.num_hits :]:
                self._pending.setdefault(key.digest, request)
        return True

    def grow(self, request: Request) -> bool:
        """Give `request` one more block; False if there is none."""
        block_id = self.pool.allocate_one()
        if block_id is None:
            return False
        request.block_table.append(block_id)
        self._caps.add(request.person_id, 0, 1)
        return True

    def may_grow(self, request: Request) -> bool:
        """Whether a running request may still need a block."""
        return len(request.block_table) * self._block_size < request.max_kv_tokens

    def extend_keys(self, request: Request) -> None:
        """Hash the full blocks of `request` that have not been hashed yet."""
        if self._config.enable_prefix_cache:
            extend_prefix_keys(
                request.prefix_keys, request.namespace, request.all_token_ids, self._block_size
            )

    def register(self, request: Request) -> None:
        """Let the prefix cache find the blocks that are full now, after the step that filled
        them. Nothing is shared earlier, and a block that is not full is never shared."""
        self.extend_keys(request)
        num_full = request.num_computed_tokens // self._block_size
        for position in range(request.num_registered_blocks, num_full):
            if position < len(request.prefix_keys):
                key = request.prefix_keys[position]
                self.pool.register(request.block_table[position], key)
                self._forget_pending(key.digest, request)
        request.num_registered_blocks = num_full

    def release(self, request: Request) -> None:
        """Give back all blocks of a request that stops running."""
        for key in request.prefix_keys[request.num_registered_blocks :]:
            self._forget_pending(key.digest, request)
        self.pool.release(request.block_table)
        self._caps.add(request.person_id, -1, -len(request.block_table))
        request.block_table = []
        request.num_registered_blocks = 0

    def check_invariants(self, holders: Iterable[Request]) -> None:
        """Raise InvariantViolation unless `holders` hold exactly the blocks in use, enough
        for what they have computed, and the books by person agree."""
        holders = list(holders)
        self.pool.check_invariants(request.block_table for request in holders)
        expected = PersonCaps(self._config)
        for request in holders:
            expected.add(request.person_id, 1, len(request.block_table))
            if len(request.block_table) * self._block_size < request.num_computed_tokens:
                raise InvariantViolation(f"{request!r} has computed more than its blocks hold")
            if len(set(request.block_table)) < len(request.block_table):
                raise InvariantViolation(f"{request!r} holds a block twice: {request.block_table}")
        if self._caps.held() != expected.held():
            raise InvariantViolation(
                f"people are booked with {self._caps.held()}, but hold {expected.held()}"
            )
        for request in self._pending.values():
            if not any(request is holder for holder in holders):
                raise InvariantViolation(f"a prefix waits for {request!r}, which is not running")

    def _num_blocks_to_take(self, request: Request) -> int:
        """Blocks for all tokens there are, so that a chunked prompt loses none to growing
        decodes; or for all there can ever be."""
        if self._config.memory_policy is MemoryPolicy.RESERVE_MAX:
            return self._config.num_blocks_for(request.max_kv_tokens)
        return self._config.num_blocks_for(request.num_tokens)

    def _num_usable_keys(self, request: Request) -> int:
        """Leading full blocks that may come from the cache: never the last token, which has
        to be computed for its logits."""
        if request.skip_prefix_cache:
            return 0
        return (request.num_tokens - 1) // self._block_size

    def _is_prefix_pending(self, request: Request) -> bool:
        """Whether a running prefill is computing the first block that `request` misses.

        To wait for it costs no more than to compute the same tokens, and it ends with that
        prefill at the latest.
        """
        if not self._pending:
            return False
        keys = request.prefix_keys[: self._num_usable_keys(request)]
        num_hits = self.pool.count_hits(keys)
        return num_hits < len(keys) and keys[num_hits].digest in self._pending

    def _forget_pending(self, digest: bytes, request: Request) -> None:
        if self._pending.get(digest) is request:
            del self._pending[digest]
