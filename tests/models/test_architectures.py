"""Every kind of layout against the parameters that its model card counts, in billions, and what
its layers keep."""

import pytest

from carpool.models.config_shape import shape_from_config
from carpool.models.layer_cache import AttentionCache, LatentCache, StateCache
from carpool.models.shape import ModelShape

MAMBA = {
    "model_type": "mamba", "num_hidden_layers": 64, "hidden_size": 2560, "intermediate_size": 5120,
    "state_size": 16, "conv_kernel": 4, "time_step_rank": 160, "vocab_size": 50280,
    "tie_word_embeddings": True,
}  # fmt: skip
MAMBA2 = {
    "model_type": "mamba2", "num_hidden_layers": 64, "hidden_size": 4096, "state_size": 128,
    "num_heads": 128, "head_dim": 64, "n_groups": 8, "conv_kernel": 4, "vocab_size": 32768,
}  # fmt: skip
BIGCODE = {
    "model_type": "gpt_bigcode", "n_layer": 40, "n_embd": 6144, "n_head": 48, "n_inner": 24576,
    "multi_query": True, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
FALCON = {
    "model_type": "falcon", "num_hidden_layers": 32, "hidden_size": 4544, "vocab_size": 65024,
    "num_attention_heads": 71, "multi_query": True, "tie_word_embeddings": True,
}  # fmt: skip
FALCON_40B = {
    "model_type": "falcon", "num_hidden_layers": 60, "hidden_size": 8192, "vocab_size": 65024,
    "num_attention_heads": 128, "num_kv_heads": 8, "multi_query": True,
    "new_decoder_architecture": True, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA3N = {
    "model_type": "gemma3n", "num_hidden_layers": 35, "hidden_size": 2048, "head_dim": 256,
    "intermediate_size": [16384] * 35, "num_attention_heads": 8, "num_key_value_heads": 2,
    "vocab_size": 262400, "vocab_size_per_layer_input": 262144, "num_kv_shared_layers": 15,
    "hidden_size_per_layer_input": 256, "sliding_window": 512, "tie_word_embeddings": True,
}  # fmt: skip
GRANITE_H = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 1536,
    "intermediate_size": 512, "shared_intermediate_size": 1024, "num_attention_heads": 12,
    "num_key_value_heads": 4, "num_local_experts": 64, "num_experts_per_tok": 6,
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    "mamba_d_conv": 4, "vocab_size": 100352, "tie_word_embeddings": True,
    "layer_types": ["mamba"] * 36 + ["attention"] * 4,
}  # fmt: skip
DEEPSEEK_V32 = {
    "model_type": "deepseek_v32", "num_hidden_layers": 61, "hidden_size": 7168,
    "num_attention_heads": 128, "intermediate_size": 18432, "moe_intermediate_size": 2048,
    "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "index_head_dim": 128,
    "index_n_heads": 64,
}  # fmt: skip


def shape(config: dict[str, object]) -> ModelShape:
    return shape_from_config(config, "config.json")


@pytest.mark.parametrize(
    ("config", "billions", "attention"),
    [
        (MAMBA, 2.77, "recurrent state alone"),
        (MAMBA2, 7.29, "recurrent state alone"),
        (BIGCODE, 15.5, "MQA"),
        (FALCON, 6.92, "MQA"),
        (FALCON_40B, 41.3, "GQA"),
        (GEMMA3N, 6.87, "GQA + sliding window"),
        (GRANITE_H, 6.94, "GQA + recurrent state, MoE"),
        (DEEPSEEK_V32, 671.0, "MLA + sparse indexer, MoE"),
    ],
)
def test_parameters_are_those_of_the_model_card(
    config: dict[str, object], billions: float, attention: str
) -> None:
    made = shape(config)
    assert made.parameters.total / 1e9 == pytest.approx(billions, rel=0.015)
    assert made.attention_class == attention


def test_layers_that_share_keys_and_values_keep_none() -> None:
    kept = {g.cache.window: g.num_layers for g in shape(GEMMA3N).caches
            if isinstance(g.cache, AttentionCache)}  # fmt: skip
    assert kept == {512: 16, None: 4}


def test_states_stand_beside_attention() -> None:
    kinds = {type(group.cache): group.num_layers for group in shape(GRANITE_H).caches}
    assert kinds == {StateCache: 36, AttentionCache: 4}


def test_an_indexer_has_a_key_of_its_own() -> None:
    (group,) = shape(DEEPSEEK_V32).caches
    assert isinstance(group.cache, LatentCache)
    assert (group.cache.index_dim, group.num_layers) == (128, 61)
