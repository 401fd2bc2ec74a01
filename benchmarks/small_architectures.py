"""Over a hundred architectures at small sizes, with random weights: those of the trial of converters, the models as
people export them, and families of the package transformers by their configurations, where each setting of `SMALL` that
a configuration has gets that value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
import functools
import json
from typing import Any

import torch

from benchmarks import conversions, exported_models
from benchmarks.conversion_trials import Built
from decomp.tools.cli.configured_models import first_output, make

SMALL: Mapping[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "embedding_size", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim"), 96),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("head_dim", "d_kv", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id", "n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("projection_dim", "max_source_positions", "image_size"), 32),
    **dict.fromkeys(("patch_size", "state_size"), 8),
    "pad_token_id": 0,
    "eos_token_id": 2,
    "ffn_hidden_size": 96,
    "vocab_size": 128,
}
"""Settings of configurations, by the names that they have in transformers."""
TOKENS = 16
FAMILIES = """
    t5 bart whisper dinov2 mixtral gpt_oss mamba clip llava nllb-moe rwkv mra jamba qwen3_next deberta canine siglip
    idefics3 moonshine prophetnet groupvit swiftformer mistral gemma2 gemma3_text phi3 qwen3 qwen2_moe qwen3_moe
    falcon stablelm starcoder2 olmo olmo2 olmoe cohere cohere2 granite granitemoe glm glm4 persimmon gpt_bigcode mpt
    xglm ctrl openai-gpt biogpt smollm3 helium ernie4_5 exaone4 seed_oss arcee apertus phimoe bamba falcon_mamba
    recurrent_gemma lfm2 falcon_h1 jetmoe xlm-roberta camembert mpnet convbert megatron-bert layoutlm rembert xlnet
    squeezebert mobilebert roformer big_bird nystromformer ibert ernie splinter modernbert nomic_bert eurobert yoso
    mt5 umt5 mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart bigbird_pegasus vit_mae vit_msn beit
    data2vec-vision dinov2_with_registers dinov3_vit ijepa pvt_v2 mobilenet_v1 imagegpt vitdet dpt glpn altclip
    chinese_clip clipseg owlvit paligemma git textnet
""".split()
"""Model types of transformers; behind a comma, settings that are needed besides, as for `hf:` on the command line."""


def small(family: str) -> str:
    """A family at a small size, as the command line names it: `hf:bert,hidden_size=64,…`."""
    from transformers import CONFIG_MAPPING

    kind, _, more = family.partition(",")
    settings = [f"{key}={json.dumps(value)}" for key, value in _settings(CONFIG_MAPPING[kind]().to_dict())]
    return ",".join([f"hf:{kind}", *settings, f"tokens={TOKENS}", *([more] if more else [])])


def _settings(config: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Those of `SMALL` that a configuration has, and the configurations within it."""
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config"):
            yield from _settings(value, f"{inside}{key}.")
        elif key in SMALL and isinstance(value, int) or key == "image_size" and isinstance(value, (list, tuple)):
            yield f"{inside}{key}", SMALL[key]  # an image may have a height and a width


def built(kind: str, name: str) -> Built:
    """An architecture and its inputs, the same each time."""
    torch.manual_seed(0)
    if name in conversions.MODELS:
        return conversions.MODELS[name]()
    if name in exported_models.MODELS:
        made = exported_models.MODELS[name]()
        return made.model.eval(), made.args
    return _of_transformers(_families()[name])


def _of_transformers(family: str) -> Built:
    meta = make(small(family))
    made = meta._replace(model=type(meta.model)(meta.config).eval())
    args = tuple(_random_like(value) for value in made.inputs.values())
    return first_output(made), args


def _random_like(value: torch.Tensor) -> torch.Tensor:
    """Tokens, none of which is special, or normally distributed numbers."""
    if value.dtype == torch.int64:
        return torch.randint(3, SMALL["vocab_size"], value.shape)
    return torch.randn(value.shape)


@functools.cache
def _families() -> Mapping[str, str]:
    return {family.partition(",")[0]: family for family in FAMILIES}


def names() -> list[str]:
    """Of all architectures. Those of the models with open sizes are there once, with sizes that are closed."""
    closed = [name for name in exported_models.MODELS if not name.endswith(", open")]
    return list(dict.fromkeys([*conversions.MODELS, *closed, *_families()]))
