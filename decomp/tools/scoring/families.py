"""Families of language models: small copies of their configurations in the package transformers, for the structural
half of a score. They are made on the meta device, so that nothing is downloaded and nothing takes memory."""

from __future__ import annotations

from collections.abc import Mapping

_SMALL = "num_hidden_layers=2,hidden_size=64,num_attention_heads=4,vocab_size=128,tokens=16"
_GROUPED = f"{_SMALL},intermediate_size=96,num_key_value_heads=2"
_LATENT = "q_lora_rank=32,kv_lora_rank=32,qk_rope_head_dim=8,qk_nope_head_dim=16,v_head_dim=16,n_routed_experts=4"
_ROUTED = "n_shared_experts=1,moe_intermediate_size=32,num_experts_per_tok=2,n_group=1,topk_group=1"
_EXPERTS = "num_experts=4,moe_intermediate_size=32,shared_expert_intermediate_size=32,num_experts_per_tok=2"

FAMILIES: Mapping[str, str] = {
    "gpt2": "hf:gpt2,n_layer=2,n_embd=64,n_head=4,vocab_size=128,tokens=16",
    "gpt_neox": f"hf:gpt_neox,{_SMALL},intermediate_size=96",
    "bloom": "hf:bloom,n_layer=2,hidden_size=64,n_head=4,vocab_size=128,tokens=16",
    "opt": f"hf:opt,{_SMALL},ffn_dim=96,word_embed_proj_dim=64",
    "falcon": f"hf:falcon,{_SMALL}",
    "llama": f"hf:llama,{_GROUPED}",
    "mistral": f"hf:mistral,{_GROUPED}",
    "phi3": f"hf:phi3,{_GROUPED},pad_token_id=0",
    "qwen2": f"hf:qwen2,{_GROUPED}",
    "qwen3": f"hf:qwen3,{_GROUPED},head_dim=16",
    "gemma2": f"hf:gemma2,{_GROUPED},head_dim=16",
    "gemma3": f"hf:gemma3_text,{_GROUPED},head_dim=16",
    "mixtral": f"hf:mixtral,{_GROUPED},num_local_experts=4",
    "qwen2_moe": f"hf:qwen2_moe,{_GROUPED},{_EXPERTS}",
    "gpt_oss": f"hf:gpt_oss,{_GROUPED},head_dim=16,num_local_experts=4",
    "deepseek_v3": f"hf:deepseek_v3,{_SMALL},intermediate_size=96,num_key_value_heads=4,{_LATENT},{_ROUTED},"
    "first_k_dense_replace=1",
    "mamba": "hf:mamba,num_hidden_layers=2,hidden_size=64,vocab_size=128,state_size=8,tokens=16",
}
"""By name, as the command line names models of transformers: two layers of width 64, on 16 tokens."""
