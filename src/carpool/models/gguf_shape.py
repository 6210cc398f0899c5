"""From GGUF metadata to the shape of the model: any architecture that is understood, whether
the embedded engine runs it or not."""

import re
from pathlib import Path

from carpool.models.config_fields import UnknownShape
from carpool.models.config_shape import shape_from_config
from carpool.models.gguf import GGUF, GGUFError, read_gguf
from carpool.models.shape import ModelShape

_MODEL_TYPES = {
    "llama": "llama", "mistral3": "mistral", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gemma": "gemma", "gemma2": "gemma2",
    "gemma3": "gemma3", "phi3": "phi3", "granite": "granite", "glm4": "glm4",
    "starcoder2": "starcoder2", "gpt-oss": "gpt_oss", "deepseek2": "deepseek_v2",
    "smollm3": "smollm3",
}  # fmt: skip

_FIELDS = {
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "max_position_embeddings": "context_length",
    "num_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_shared_experts": "expert_shared_count",
    "first_k_dense_replace": "leading_dense_block_count",
    "sliding_window": "attention.sliding_window",
    "kv_lora_rank": "attention.kv_lora_rank",
    "q_lora_rank": "attention.q_lora_rank",
}

_SPLIT = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


def read_split_gguf(path: Path) -> list[GGUF]:
    """The file and, of a split one, its other parts. Raises `GGUFError` for one missing."""
    split = _SPLIT.search(path.name)
    if split is None:
        return [read_gguf(path)]
    stem, count = path.name[: split.start()], int(split[2])
    paths = [path.with_name(f"{stem}-{n:05}-of-{count:05}.gguf") for n in range(1, count + 1)]
    if missing := [part.name for part in paths if not part.is_file()]:
        raise GGUFError(f"{path}: parts are missing: {', '.join(missing)}; fetch them, too")
    return [read_gguf(part) for part in paths]


def shape_from_gguf(gguf: GGUF) -> ModelShape:
    """`gguf` is the first part of a split file. Raises `UnknownShape` or `GGUFError`."""
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise GGUFError(f"{gguf.path}: no general.architecture in its metadata")
    if name not in _MODEL_TYPES:
        raise UnknownShape(
            f"{gguf.path}: architecture {name!r} is not understood in GGUF, so its memory cannot "
            f"be planned; understood: {', '.join(_MODEL_TYPES)}. Give the model's config.json"
        )
    config: dict[str, object] = {"model_type": _MODEL_TYPES[name], "torch_dtype": "float16"}
    for field, key in _FIELDS.items():
        if isinstance(value := gguf.metadata.get(f"{name}.{key}"), int) and value:
            config[field] = value
        elif value is not None and not isinstance(value, int):
            raise UnknownShape(f"{gguf.path}: {name}.{key} differs between layers")
    config |= _heads(gguf, name)
    if config["model_type"] == "llama" and "num_experts" in config:
        config["model_type"] = "mixtral"
    config["vocab_size"] = _vocab_size(gguf)
    tensors = {tensor.name for tensor in gguf.tensors}
    config["tie_word_embeddings"] = "output.weight" not in tensors
    return shape_from_config(config, str(gguf.path))


def _heads(gguf: GGUF, name: str) -> dict[str, object]:
    """Head dimensions; of MLA files, those that are meant for its heads."""
    metadata = gguf.metadata
    key = metadata.get(f"{name}.attention.key_length_mla") or metadata.get(
        f"{name}.attention.key_length"
    )
    value = metadata.get(f"{name}.attention.value_length_mla") or metadata.get(
        f"{name}.attention.value_length"
    )
    rope = metadata.get(f"{name}.rope.dimension_count")
    if f"{name}.attention.kv_lora_rank" not in metadata:
        return {"head_dim": key} if key else {}
    if not (isinstance(key, int) and isinstance(value, int) and isinstance(rope, int)):
        raise GGUFError(f"{gguf.path}: no key, value or rope length of its latent attention")
    return {"qk_rope_head_dim": rope, "qk_nope_head_dim": key - rope, "v_head_dim": value}


def _vocab_size(gguf: GGUF) -> int:
    for tensor in gguf.tensors:
        if tensor.name == "token_embd.weight" and len(tensor.shape) == 2:
            return tensor.shape[1]
    raise GGUFError(f"{gguf.path}: no tensor token_embd.weight, so not a language model")
