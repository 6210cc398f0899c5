"""From a resolved model and a person's options to an engine core that can run."""

import logging
from dataclasses import dataclass
from pathlib import Path

from carpool.engine.chat_template import ChatTemplate
from carpool.engine.core import EngineCore
from carpool.engine.executor import Executor, ExecutorConfig, KVCacheError
from carpool.engine.guidance import GuidanceVocabulary
from carpool.engine.options import KV_CACHE_SHARE, EngineOptions
from carpool.engine.paged_model import ModelFileError
from carpool.engine.step_timing import uniform_batch
from carpool.engine.tokenizer import Tokenizer, TokenizerConfig
from carpool.hardware.host_memory import available_bytes
from carpool.models.resolved import ResolvedModel
from carpool.scheduling.scheduler import Scheduler, SchedulerConfig

log = logging.getLogger(__name__)

_FEW_SEQUENCES = 4
"""Of the full length: with less room than that, people soon wait for each other."""


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A core, and what turns text into its requests and its tokens into text."""

    core: EngineCore
    executor: Executor
    scheduler_config: SchedulerConfig
    tokenizer: Tokenizer
    vocabulary: GuidanceVocabulary
    chat_template: ChatTemplate | None


def load_model(model: ResolvedModel, path: Path, options: EngineOptions) -> LoadedModel:
    """Load the IR at `path` (see `prepare_weights`), tokeniser and template, and make the KV
    cache.

    Raises CarpoolError for files that are broken and for memory that does not do.
    """
    executor = Executor(path, ExecutorConfig.from_options(options))
    config = scheduler_config(model, options, executor.block_size, executor.bytes_per_block)
    executor.allocate_kv_cache(config.num_blocks)
    # The first step of a model compiles its kernels: half a second that nobody waits for here.
    executor.run(uniform_batch(1, 1, 0, 1))
    facts = TokenizerConfig.from_facts(model.tokenizer, executor.vocab_size)
    tokenizer = Tokenizer(model.folder, facts)
    try:
        vocabulary = GuidanceVocabulary(tokenizer)
    except ValueError as error:
        raise ModelFileError(f"{model.folder}: {error}") from error
    core = EngineCore(
        executor,
        Scheduler(config),
        eos_token_ids=tokenizer.eos_token_ids,
        vocab_mask=vocabulary.allocate_bitmask,
    )
    return LoadedModel(
        core,
        executor,
        config,
        tokenizer,
        vocabulary,
        _chat_template(facts, tokenizer),
    )


def _chat_template(facts: TokenizerConfig, tokenizer: Tokenizer) -> ChatTemplate | None:
    if not facts.chat_template:
        return None
    special_tokens = [tokenizer.token_text(number) for number in facts.special_token_ids]
    return ChatTemplate(
        facts.chat_template, facts.bos_token, facts.eos_token, special_tokens=special_tokens
    )


def scheduler_config(
    model: ResolvedModel, options: EngineOptions, block_size: int, bytes_per_block: int
) -> SchedulerConfig:
    """Fit the KV cache into its budget. Raises KVCacheError if one full context does not fit."""
    max_model_len = _max_model_len(model, options)
    blocks_per_sequence = -(-max_model_len // block_size)
    budget = options.kv_cache_memory
    is_default = budget is None
    if budget is None:
        budget = int(KV_CACHE_SHARE * available_bytes())
    num_blocks = budget // bytes_per_block
    if is_default:
        num_blocks = min(num_blocks, options.max_num_seqs * blocks_per_sequence)
    if num_blocks < blocks_per_sequence:
        source = f"{KV_CACHE_SHARE:.0%} of the free memory" if is_default else "--kv-cache-memory"
        raise KVCacheError(
            f"{source} is {budget / 2**20:,.0f} MiB, which holds {num_blocks * block_size:,} "
            f"tokens, but one sequence of --max-model-len {max_model_len:,} needs "
            f"{blocks_per_sequence * bytes_per_block / 2**20:,.0f} MiB; give a larger "
            "--kv-cache-memory or a smaller --max-model-len"
        )
    if is_default and num_blocks < _FEW_SEQUENCES * blocks_per_sequence:
        log.warning(
            "the KV cache has %s MiB, %.0f%% of the memory that is free: %s tokens, which is %.1f "
            "sequences of %s; free some memory, or give a larger --kv-cache-memory or a smaller "
            "--max-model-len",
            f"{num_blocks * bytes_per_block / 2**20:,.0f}",
            100 * KV_CACHE_SHARE,
            f"{num_blocks * block_size:,}",
            num_blocks / blocks_per_sequence,
            f"{max_model_len:,}",
        )
    threshold = options.long_prefill_token_threshold
    return SchedulerConfig(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=max(options.max_num_batched_tokens, options.max_num_seqs),
        max_model_len=max_model_len,
        long_prefill_token_threshold=(
            options.max_num_batched_tokens // 2 if threshold is None else threshold
        ),
        enable_prefix_cache=options.enable_prefix_cache,
        batching_policy=options.batching_policy,
        memory_policy=options.memory_policy,
        queue_policy=options.queue_policy,
    )


def _max_model_len(model: ResolvedModel, options: EngineOptions) -> int:
    if options.max_model_len is None:
        return model.spec.max_model_len
    if options.max_model_len > model.spec.max_model_len:
        raise KVCacheError(
            f"--max-model-len is {options.max_model_len:,}, but {model.name} was made for "
            f"{model.spec.max_model_len:,} tokens"
        )
    return options.max_model_len
