"""A tiny random model of every architecture, made from its configuration: nothing to download."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

import esscher
from esscher.engine.models.capture import attention_override
from esscher.engine.models.loaded import wrap_model
from esscher.engine.models.transformers_library import quiet

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY = 60
WINDOW = 5

ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
DECODER = {
    **ENCODER,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": 8,
    "patch_size": 4,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 80,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DISTILBERT = {
    "vocab_size": VOCABULARY,
    "dim": 32,
    "hidden_dim": 24,
    "n_layers": 3,
    "n_heads": 4,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
}
SLIDING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GEMMA2 = {
    "attn_logit_softcapping": 0.5,
    "query_pre_attn_scalar": 5,
    "attn_implementation": "eager",
}
GEMMA3 = {
    "text_config": DECODER | SLIDING,
    "vision_config": VISION,
    "mm_tokens_per_image": 4,
    "boi_token_index": 50,
    "eoi_token_index": 51,
    "image_token_index": 52,
}
SPARSE = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}


def encoder(name, **sizes):
    return f"{name}Config", f"{name}Model", ENCODER | sizes


def decoder(name, **sizes):
    return f"{name}Config", f"{name}ForCausalLM", DECODER | sizes


#: Configuration class, model class, and sizes.
MODELS = {
    "bert": encoder("Bert"),
    "roberta": encoder("Roberta"),
    "xlm-roberta": encoder("XLMRoberta"),
    "distilbert": ("DistilBertConfig", "DistilBertModel", DISTILBERT),
    "mpnet": encoder("MPNet", pad_token_id=1),
    "big_bird": encoder("BigBird", attention_type="original_full"),
    "big_bird sparse": encoder("BigBird", **SPARSE),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", GPT2),
    "gpt2 scaled": (
        "GPT2Config",
        "GPT2LMHeadModel",
        GPT2 | {"scale_attn_by_inverse_layer_idx": True, "attn_implementation": "eager"},
    ),
    "llama": decoder("Llama"),
    "llama one key head": decoder("Llama", num_key_value_heads=1),
    "mistral": decoder("Mistral", sliding_window=WINDOW),
    "qwen2": decoder("Qwen2"),
    "qwen3": decoder("Qwen3", use_sliding_window=True, **SLIDING),
    "smollm3": decoder("SmolLM3"),
    "gemma": decoder("Gemma"),
    "gemma2": decoder("Gemma2", **SLIDING, **GEMMA2),
    "gemma3_text": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        DECODER | SLIDING | {"query_pre_attn_scalar": 5},
    ),
    "gemma3_text bidirectional": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        DECODER | SLIDING | {"use_bidirectional_attention": True},
    ),
    "gemma3": ("Gemma3Config", "Gemma3ForConditionalGeneration", GEMMA3),
}
#: Models whose attention is written out in their own code, without transformers' interface.
HOOKED = ("mpnet", "big_bird", "big_bird sparse")
DECODERS = tuple(
    name for name, (_, kind, _) in MODELS.items() if not kind.endswith("Model") or "LMHead" in kind
)


def tiny_model(name, *, strength=25.0, **options):
    """Build the model of that name; weights are larger than usual, so that attention is uneven."""
    config_name, model_name, sizes = MODELS[name]
    with quiet(), torch.random.fork_rng():
        torch.manual_seed(3)
        sizes = {**sizes, **options}
        implementation = sizes.pop("attn_implementation", None)
        config = getattr(transformers, config_name)(**sizes)
        if implementation is not None:
            config._attn_implementation = implementation
        model = getattr(transformers, model_name)(config)
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if weight.ndim >= 2:
                    weight.mul_(strength)
                elif "norm" in key.lower() or "ln_" in key or "bias" in key:
                    weight.add_(0.2 * torch.randn_like(weight))
    return wrap_model(model.requires_grad_(False), name=name)


def tiny_batch(loaded, *, batch=2, n=21, padding=None, seed=5):
    """Random token ids; with padding, the texts of the batch have different lengths."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 49, (batch, n), generator=generator)
    mask = torch.ones_like(ids)
    if padding is not None:
        for i in range(1, batch):
            missing = 3 * i
            mask[i, :missing] = 0
        if padding == "right":
            mask = mask.flip(1)
        pad = loaded.family.config(loaded.model).pad_token_id or 0
        ids = torch.where(mask.bool(), ids, pad)
    return {"input_ids": ids, "attention_mask": mask}


def head_of(weights, h, tokens):
    """A head of a layer over hidden states, one per row."""
    return esscher.weight_head(
        esscher.laws.FiniteTokens(tokens),
        query=weights.W_q[h],
        key=weights.W_k[h],
        value=weights.W_v[h],
        query_bias=weights.b_q[h],
        key_bias=weights.b_k[h],
        value_bias=weights.b_v[h],
        scale=weights.scaling,
    )


def final_output(loaded, batch):
    """Output of the model: hidden states or logits."""
    with torch.no_grad():
        output = loaded.model(**batch)
    return output[0] if not hasattr(output, "logits") else output.logits


def captured(loaded, batch, **options):
    """Inputs of every layer for a batch, and the output of the model."""
    seen = []
    with attention_override(loaded, lambda inputs: seen.append(inputs), **options):
        final = final_output(loaded, batch)
    return seen, final


def footprint(loaded):
    """Everything that a block may touch and has to put back."""
    modeling = transformers.modeling_utils
    masking = transformers.masking_utils
    model = loaded.model
    configs = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}
    return {
        "implementations": [c._attn_implementation for c in configs.values()],
        "attention": list(modeling.ALL_ATTENTION_FUNCTIONS.valid_keys()),
        "masks": list(masking.ALL_MASK_ATTENTION_FUNCTIONS.valid_keys()),
        "hooks": sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()),
        "modules": [(name, id(module)) for name, module in model.named_modules()],
        "types": [getattr(module, "attention_type", None) for module in model.modules()],
        "forward": [name for name, m in model.named_modules() if "forward" in vars(m)],
        "training": model.training,
    }
