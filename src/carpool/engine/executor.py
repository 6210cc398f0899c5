"""Runs a scheduled step on the model: tokens and block tables in, logits out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from carpool.engine.input_batch import InputBatch, make_input_batch
from carpool.engine.options import Dtype, EngineOptions, KVCacheDtype
from carpool.engine.paged_model import ModelFileError, read_paged_model, reason
from carpool.engine.resident_memory import forget_pages
from carpool.errors import CarpoolError
from carpool.scheduling.outputs import ScheduledRequest


class KVCacheError(CarpoolError):
    """The memory budget of the KV cache does not do, or the processor cannot hold it so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorConfig:
    """How to run the model. `num_threads` 0 leaves the number to OpenVINO.

    AUTO types are bf16 where the processor multiplies bf16, and f32 elsewhere: there, bf16
    would be emulated, and OpenVINO has no bf16 KV cache.
    """

    dtype: Dtype = Dtype.AUTO
    kv_cache_dtype: KVCacheDtype = KVCacheDtype.AUTO
    num_threads: int = 0

    @classmethod
    def from_options(cls, options: EngineOptions) -> "ExecutorConfig":
        return cls(
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype,
            num_threads=options.num_threads,
        )

    def for_this_machine(self, core: openvino.Core) -> "ExecutorConfig":
        """The same with AUTO types replaced by what this processor does best."""
        has_bf16 = "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        dtype, kv = self.dtype, self.kv_cache_dtype
        if dtype is Dtype.AUTO:
            dtype = Dtype.BF16 if has_bf16 else Dtype.F32
        if kv is KVCacheDtype.AUTO:
            kv = KVCacheDtype.BF16 if has_bf16 and dtype is Dtype.BF16 else KVCacheDtype.F32
        return ExecutorConfig(dtype=dtype, kv_cache_dtype=kv, num_threads=self.num_threads)


class Executor:
    """A compiled model and its KV cache. Used by one thread at a time.

    `weight_bytes` is the size of the weights as executed. `block_size` is in tokens,
    `bytes_per_block` over all layers, keys and values with the scales of a u8 cache; both are
    read off the compiled model. The cache is made by `allocate_kv_cache`, before the first
    `execute`.
    """

    def __init__(self, path: Path, config: ExecutorConfig) -> None:
        """Load the IR at `path`. Raises ModelFileError or KVCacheError."""
        core = openvino.Core()
        self.path = path
        self.weight_bytes = path.with_suffix(".bin").stat().st_size
        self.config = config.for_this_machine(core)
        self._compiled = _compile(core, read_paged_model(core, path), self.config, path)
        self._caches = _cache_inputs(self._compiled, path)
        self.block_size = _block_size(self._caches)
        self.bytes_per_block = sum(
            kind.size * int(np.prod(shape)) for _, kind, shape in self._caches
        )
        self.vocab_size = int(self._compiled.output(0).get_partial_shape()[-1].get_length())
        self.num_blocks = 0
        self._request = self._compiled.create_infer_request()
        forget_pages(path.with_suffix(".bin"))

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks; the system hands the memory out as it is written.

        Raises KVCacheError when there is not enough of it.
        """
        try:
            for name, kind, shape in self._caches:
                self._request.set_tensor(name, openvino.Tensor(kind, [num_blocks, *shape]))
        except (MemoryError, RuntimeError) as error:
            raise KVCacheError(
                f"no memory for a KV cache of {num_blocks * self.bytes_per_block:,} bytes; "
                "give a smaller --kv-cache-memory"
            ) from error
        self.num_blocks = num_blocks

    def execute(
        self, scheduled: Sequence[ScheduledRequest], num_logits: Sequence[int]
    ) -> NDArray[np.float32]:
        """Compute the step's tokens, writing their keys and values into the cache.

        Returns float32[sum(num_logits), vocab_size]: for each item in order, logits after
        its last `num_logits[i]` tokens. The array is the model's own output buffer, free to
        be modified and valid until the next call. Raises RuntimeError if the model fails.
        """
        return self.run(make_input_batch(scheduled, self.block_size, num_logits))

    def run(self, batch: InputBatch) -> NDArray[np.float32]:
        """`execute` for arrays already laid out."""
        for name in InputBatch.__slots__:
            self._request.set_tensor(name, openvino.Tensor(getattr(batch, name)))
        self._request.infer()
        logits: NDArray[np.float32] = self._request.get_output_tensor(0).data
        return logits.reshape(-1, logits.shape[-1])


def _compile(
    core: openvino.Core, model: openvino.Model, config: ExecutorConfig, path: Path
) -> openvino.CompiledModel:
    properties: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": config.dtype.value,
        "KV_CACHE_PRECISION": config.kv_cache_dtype.value,
        # One stream: a step has all threads, and steps never overlap.
        "PERFORMANCE_HINT": "LATENCY",
    }
    if config.num_threads:
        properties["INFERENCE_NUM_THREADS"] = config.num_threads
    try:
        return core.compile_model(model, "CPU", properties)
    except RuntimeError as error:
        message = reason(error)
        if "cache_type" in message:
            raise KVCacheError(
                f"this processor has no {config.kv_cache_dtype} KV cache; "
                "give --kv-cache-dtype f32 or u8"
            ) from error
        raise ModelFileError(f"{path}: OpenVINO cannot compile it: {message}") from error


def _cache_inputs(
    compiled: openvino.CompiledModel, path: Path
) -> list[tuple[str, openvino.Type, list[int]]]:
    """(name, element type, shape of one block) of each layer's key and value cache."""
    caches = []
    for port in compiled.inputs:
        name = port.get_any_name()
        if name.startswith(("key_cache.", "value_cache.")):
            shape = [int(d.get_length()) for d in list(port.get_partial_shape())[1:]]
            caches.append((name, port.get_element_type(), shape))
    if not caches:
        raise ModelFileError(f"{path}: the model has no KV cache, so it cannot be paged")
    return caches


def _block_size(caches: list[tuple[str, openvino.Type, list[int]]]) -> int:
    """Tokens of a block, from a value cache: [heads, tokens, head size]. A u8 key cache has
    rows for its scales beside those of its tokens."""
    return next(shape[1] for name, _, shape in caches if name.startswith("value_cache."))
