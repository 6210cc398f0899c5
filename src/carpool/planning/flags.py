"""Ready-to-paste commands, each flag with its reason."""

import json
import shlex
from dataclasses import dataclass

from carpool.planning.engine_kind import EngineKind
from carpool.planning.plan import Plan


@dataclass(frozen=True, slots=True)
class Flag:
    """One argument, or one that takes a value, and why it is there."""

    text: str
    why: str


@dataclass(frozen=True, slots=True)
class Command:
    """`engine` as people call it; `is_planned` for the engine that the figures are of."""

    engine: str
    argv: str
    flags: tuple[Flag, ...]
    is_planned: bool

    @property
    def text(self) -> str:
        """To paste into a shell."""
        lines = [self.argv, *(flag.text for flag in self.flags)]
        return " \\\n    ".join(lines)


def commands(plan: Plan) -> list[Command]:
    """For every engine that would do; the planned one first. Empty if nothing starts."""
    if plan.trouble or plan.people is None:
        return []
    engine = plan.settings.engine
    found = [
        Command("vLLM", f"vllm serve {_model(plan)}", _vllm(plan), engine is EngineKind.VLLM),
        Command(
            "SGLang",
            f"python -m sglang.launch_server --model-path {_model(plan)}",
            _sglang(plan),
            engine is EngineKind.SGLANG,
        ),
        Command("TGI", f"text-generation-launcher --model-id {_model(plan)}", _tgi(plan), False),
        Command(
            "llama-server",
            f"llama-server --model {_model(plan)}.gguf",
            _llama_server(plan),
            engine is EngineKind.LLAMA_CPP,
        ),
        Command("Ollama", "env", _ollama(plan), False),
        Command(
            "Carpool",
            f"carpool serve {_model(plan)}",
            _carpool(plan),
            engine is EngineKind.EMBEDDED,
        ),
    ]
    return sorted(found, key=lambda command: not command.is_planned)


def _model(plan: Plan) -> str:
    return shlex.quote(plan.request.model.name)


def _length(plan: Plan) -> int:
    return plan.settings.max_model_len or 1


def _seats(plan: Plan) -> int:
    return plan.people.num_seats if plan.people else 1


def _vllm(plan: Plan) -> tuple[Flag, ...]:
    settings, length = plan.settings, _length(plan)
    flags = [
        Flag(f"--max-model-len {length}", _length_reason(plan)),
        Flag(f"--max-num-seqs {_seats(plan)}",
             "the plan's seats; more would only be preempted, and each takes memory for logits"),
        Flag(f"--gpu-memory-utilization {settings.memory_share or 0.9:.2f}",
             "share of the card for weights, cache and the rest; graphs come on top"),
        Flag("--enable-prefix-caching", "system prompts and chat histories are computed once"),
    ]  # fmt: skip
    if settings.kv_dtype != "auto":
        flags.append(Flag(f"--kv-cache-dtype {settings.kv_dtype}", "half the memory of a token"))
    if settings.tensor_parallel > 1:
        flags.append(
            Flag(f"--tensor-parallel-size {settings.tensor_parallel}", "weights over the GPUs")
        )
    if settings.data_parallel > 1:
        flags.append(
            Flag(f"--data-parallel-size {settings.data_parallel}", "engines, each with GPUs")
        )
    if settings.expert_parallel:
        flags.append(Flag("--enable-expert-parallel", "whole experts on each GPU"))
    if settings.pipeline_parallel > 1:
        flags.append(
            Flag(f"--pipeline-parallel-size {settings.pipeline_parallel}", "layers over GPUs")
        )
    flags += _vllm_extras(plan)
    if (name := plan.request.weight_format) in ("fp8", "awq", "gptq", "bnb-nf4"):
        method = {"bnb-nf4": "bitsandbytes"}.get(name, name)
        flags.append(Flag(f"--quantization {method}", f"weights planned as {name}"))
    return tuple(flags)


def _vllm_extras(plan: Plan) -> list[Flag]:
    """Weights in the host's memory, and tokens drafted ahead."""
    settings, flags = plan.settings, []
    if settings.host_offload:
        why = "GiB of each rank's weights that stay in the host's memory: slower"
        flags.append(Flag(f"--cpu-offload-gb {settings.host_offload / 2**30:.0f}", why))
    if num_tokens := settings.num_draft_tokens:
        draft = plan.request.draft
        method = {"model": draft.name} if draft else {"method": "mtp"}
        config = json.dumps(method | {"num_speculative_tokens": num_tokens})
        why = "tokens drafted ahead: faster for few people, slower for many"
        flags.append(Flag(f"--speculative-config {shlex.quote(config)}", why))
    return flags


def _sglang(plan: Plan) -> tuple[Flag, ...]:
    settings = plan.settings
    share = 0.88 if settings.engine is not EngineKind.SGLANG else settings.memory_share or 0.88
    flags = [
        Flag(f"--context-length {_length(plan)}", _length_reason(plan)),
        Flag(f"--max-running-requests {_seats(plan)}", "the plan's seats"),
        Flag(f"--mem-fraction-static {share:.2f}", "weights and cache; activations take the rest"),
    ]
    if (name := plan.request.weight_format) in ("fp8", "awq", "gptq"):
        flags.append(Flag(f"--quantization {name}", f"weights planned as {name}"))
    if settings.kv_dtype.startswith("fp8"):
        flags.append(Flag("--kv-cache-dtype fp8_e5m2", "half the memory of a token"))
    if settings.tensor_parallel > 1:
        flags.append(Flag(f"--tp {settings.tensor_parallel}", "weights over the GPUs"))
    if settings.host_offload:
        flags.append(Flag(f"--cpu-offload-gb {settings.host_offload / 2**30:.0f}",
                          "GiB of weights that stay in the host's memory: slower"))  # fmt: skip
    if settings.data_parallel > 1:
        flags.append(Flag(f"--dp {settings.data_parallel}", "engines, each with GPUs of its own"))
    if settings.num_draft_tokens and plan.request.draft is None:
        steps = settings.num_draft_tokens
        text = (
            f"--speculative-algorithm EAGLE --speculative-num-steps {steps} "
            f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}"
        )
        flags.append(Flag(text, "the model's own layers draft tokens ahead"))
    if draft := plan.request.draft:
        flags.append(
            Flag(
                "--speculative-algorithm STANDALONE --speculative-draft-model-path "
                f"{shlex.quote(draft.name)} --speculative-num-steps {settings.num_draft_tokens} "
                "--speculative-eagle-topk 1 "
                f"--speculative-num-draft-tokens {settings.num_draft_tokens + 1}",
                "a small model drafts tokens ahead",
            )
        )
    return tuple(flags)


def _tgi(plan: Plan) -> tuple[Flag, ...]:
    length = _length(plan)
    settings = plan.settings
    flags = [
        Flag(f"--max-total-tokens {length}", _length_reason(plan)),
        Flag(f"--max-input-tokens {length - 1}", "the rest is for the answer"),
        Flag(f"--max-concurrent-requests {2 * _seats(plan)}", "seats, and as many that wait"),
        Flag(f"--cuda-memory-fraction {settings.memory_share or 0.9:.2f}",
             "share of the card; prefixes are cached unless PREFIX_CACHING=0"),
        Flag(f"--num-shard {settings.tensor_parallel}", "weights over the GPUs"),
    ]  # fmt: skip
    if settings.kv_dtype.startswith("fp8"):
        flags.append(Flag("--kv-cache-dtype fp8_e5m2", "half the memory of a token"))
    if method := {"awq": "awq", "gptq": "gptq", "fp8": "fp8", "bnb-nf4": "bitsandbytes-nf4"}.get(
        plan.request.weight_format or ""
    ):
        flags.append(Flag(f"--quantize {method}", f"weights planned as {method}"))
    return tuple(flags)


def _llama_server(plan: Plan) -> tuple[Flag, ...]:
    seats, length = _seats(plan), _length(plan)
    slots = max(1, min(seats, plan.pool.num_seqs(length) or 1))
    flags = [
        Flag(f"--parallel {slots}", "slots; each has a fixed share of the context"),
        Flag(f"--ctx-size {slots * length}", f"the slots divide it: {length} tokens each"),
        _gpu_layers(plan),
        Flag("--flash-attn on", "without it, scores of the whole context take memory"),
    ]
    if draft := plan.request.draft:
        most = plan.settings.num_draft_tokens
        text = f"--model-draft {shlex.quote(draft.name)}.gguf --draft-max {most}"
        flags.append(Flag(text, "a small model drafts tokens ahead"))
    if types := _ggml_types(plan.settings.kv_dtype):
        keys, values = types
        why = "fewer bits an element: a token takes less memory"
        flags.append(Flag(f"--cache-type-k {keys} --cache-type-v {values}", why))
    return tuple(flags)


def _gpu_layers(plan: Plan) -> Flag:
    """Layers whose weights are not to stay in the host's memory."""
    settings, shape = plan.settings, plan.request.model.shape
    if not settings.host_offload:
        return Flag("--n-gpu-layers 999", "all layers on the GPU")
    share = settings.host_offload * settings.tensor_parallel / max(1.0, plan.weights.bytes.total)
    layers = max(0, int(shape.num_layers * (1 - share)))
    return Flag(f"--n-gpu-layers {layers}", f"of {shape.num_layers}; the processor does the rest")


def _ggml_types(kv_dtype: str) -> tuple[str, str] | None:
    """What llama.cpp calls the types of keys and values; None for the model's own."""
    if kv_dtype in ("auto", "f16", "fp16", "bf16"):
        return None
    keys, _, values = kv_dtype.partition("/")
    keys, values = (_GGML_TYPES.get(name, name) for name in (keys, values or keys))
    return keys, values


_GGML_TYPES = {"fp8": "q8_0", "int8": "q8_0", "fp16": "f16", "auto": "f16"}


def _ollama(plan: Plan) -> tuple[Flag, ...]:
    seats, length = _seats(plan), _length(plan)
    slots = max(1, min(seats, plan.pool.num_seqs(length) or 1))
    return (
        Flag(f"OLLAMA_NUM_PARALLEL={slots}", "slots; each has the whole context length"),
        Flag(f"OLLAMA_CONTEXT_LENGTH={length}", _length_reason(plan)),
        Flag("OLLAMA_FLASH_ATTENTION=1", "a smaller compute buffer; 8-bit caches need it"),
        Flag(f"OLLAMA_KV_CACHE_TYPE={_ollama_kv(plan)}", "of keys and values"),
        Flag("ollama serve", "and pull the model in the weights you planned with"),
    )


def _ollama_kv(plan: Plan) -> str:
    """It has one type for both, of three."""
    keys, _ = _ggml_types(plan.settings.kv_dtype) or ("f16", "")
    return keys if keys in ("q8_0", "q4_0") else "f16"


def _carpool(plan: Plan) -> tuple[Flag, ...]:
    """The engine's own flags come after "--"; what it is started with, admission knows, too."""
    engine = plan.settings.engine
    if engine is not EngineKind.EMBEDDED:
        why = "a key per person and a fair queue before the engine"
        own = {EngineKind.VLLM: _vllm, EngineKind.SGLANG: _sglang}.get(engine, _llama_server)
        return (Flag(f"--backend {engine}", why), Flag("--", "what follows is the engine's"),
                *own(plan))  # fmt: skip
    return (
        Flag(f"--max-model-len {_length(plan)}", _length_reason(plan)),
        Flag(f"--max-num-seqs {_seats(plan)}", "the plan's seats"),
    )


def _length_reason(plan: Plan) -> str:
    longest = plan.request.model.shape.max_model_len
    could = f"; the model could do {longest:,}" if longest else ""
    return f"a policy: four average contexts, so that nobody takes everybody's cache{could}"


ENGINE_ADVICE = (
    ("you and family", "llama-server or Ollama: one file, any GPU, no server to care for"),
    ("a few developers", "vLLM, or Carpool's own engine where there is no GPU"),
    ("a team's chat", "vLLM behind Carpool: keys, a fair queue, a ledger"),
    ("agent fleets with a shared system prompt", "SGLang or vLLM with prefix caching"),
)
"""Which engine for which workload."""
