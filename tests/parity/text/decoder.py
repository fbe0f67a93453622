"""Writes tiny random models of each family, as transformers saves them, with the logits that transformers gives.

Usage: decoder.py FOLDER [NAME ...]. Each model gets FOLDER/NAME with ids.bin (int64), logits.bin, and the
logits in bfloat16 and float16 of each device, all written as float32.
Needs torch and transformers. Everything follows from seeds.
"""
import copy
import json
import pathlib
import sys

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

LOW = (torch.bfloat16, torch.float16)
BASE = dict(vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512)
YARN = dict(rope_type="yarn", factor=8.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=64, rope_theta=150000.0)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=500000.0)


def long_rope(width, partial=1.0):
    pairs = int(width * partial) // 2
    return dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0 + 0.02 * i for i in range(pairs)], long_factor=[1.5 + 0.5 * i for i in range(pairs)],
                original_max_position_embeddings=64, partial_rotary_factor=partial)


# name: (config class, what differs from BASE, batch, tokens). Without a class, config.json has these fields alone, in the form of older files.
MODELS = {
    "llama": ("LlamaConfig", {}, 2, 37),
    "llama-mha": ("LlamaConfig", dict(num_key_value_heads=4, head_dim=32, tie_word_embeddings=True), 1, 70),
    "llama3": ("LlamaConfig", dict(rope_parameters=LLAMA3, num_key_value_heads=1, attention_bias=True, mlp_bias=True), 2, 130),
    "llama-linear": ("LlamaConfig", dict(rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=10000.0)), 1, 33),
    "llama-odd": ("LlamaConfig", dict(hidden_size=120, head_dim=80, num_attention_heads=3, num_key_value_heads=1, intermediate_size=115, vocab_size=131), 1, 19),
    "mistral": ("MistralConfig", dict(sliding_window=16, head_dim=24), 2, 50),
    "mistral-full": ("MistralConfig", dict(sliding_window=None), 1, 21),
    "qwen2": ("Qwen2Config", {}, 2, 29),
    "qwen2-window": ("Qwen2Config", dict(use_sliding_window=True, sliding_window=8, max_window_layers=1), 1, 41),
    "qwen3": ("Qwen3Config", dict(head_dim=32), 2, 33),
    "qwen3-tied": ("Qwen3Config", dict(head_dim=16, tie_word_embeddings=True, attention_bias=True), 1, 33),
    "gemma2": ("Gemma2Config", dict(head_dim=32, sliding_window=8, query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=3.0), 2, 31),
    "gemma3": ("Gemma3TextConfig", dict(head_dim=32, sliding_window=8, query_pre_attn_scalar=24, num_hidden_layers=7, rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0), sliding_attention=dict(rope_type="default", rope_theta=10000.0))), 2, 40),
    "phi3": ("Phi3Config", dict(num_key_value_heads=4, sliding_window=20, pad_token_id=0), 2, 45),
    "phi3-short": ("Phi3Config", dict(rope_parameters=long_rope(16), original_max_position_embeddings=64, pad_token_id=0), 1, 60),
    "phi3-long": ("Phi3Config", dict(rope_parameters=long_rope(16, 0.75), original_max_position_embeddings=64, pad_token_id=0), 1, 90),
    "olmo2": ("Olmo2Config", dict(), 2, 27),
    "mixtral": ("MixtralConfig", dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=None), 2, 26),
    "qwen3-moe": ("Qwen3MoeConfig", dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=True, head_dim=32), 2, 26),
    "qwen3-moe-dense": ("Qwen3MoeConfig", dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=40, decoder_sparse_step=2, mlp_only_layers=[1], head_dim=32, num_hidden_layers=4), 1, 26),
    "gpt-oss": ("GptOssConfig", dict(num_local_experts=4, num_experts_per_tok=2, head_dim=32, sliding_window=8, rope_parameters=YARN, swiglu_limit=1.5), 2, 70),
    "few-fields": (None, dict(model_type="gemma3_text", vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=7, sliding_window=32,
                              rope_scaling=dict(factor=8.0, rope_type="linear")), 1, 50),
    "null-caps": (None, dict(BASE, model_type="gemma2", head_dim=16, attn_logit_softcapping=None, final_logit_softcapping=None, hidden_act="gelu",
                             hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=144, sliding_window=20), 1, 33),
    "null-rope": (None, dict(BASE, model_type="gpt_oss", head_dim=16, num_experts_per_tok=2, num_local_experts=4, rope_scaling=None, sliding_window=8), 1, 33),
    "two-originals": (None, dict(BASE, model_type="phi3", max_position_embeddings=1024, original_max_position_embeddings=64, pad_token_id=0, rope_scaling=dict(
        long_rope(16), original_max_position_embeddings=128)), 1, 60),
    "two-ropes": (None, dict(BASE, model_type="llama", rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=777.0), rope_theta=5000.0,
                             rope_scaling=dict(type="linear", factor=4.0)), 1, 33),
}

# Sizes of published models that are no powers of two, in one layer; and sequences over several parts of a prompt.
ONE = dict(num_hidden_layers=1, intermediate_size=136)
MODELS |= {
    "size-896": ("Qwen2Config", dict(ONE, hidden_size=896, num_attention_heads=14, num_key_value_heads=2), 1, 17),
    "size-1152": ("Gemma3TextConfig", dict(ONE, hidden_size=1152, num_key_value_heads=1, head_dim=256, query_pre_attn_scalar=256, sliding_window=8), 1, 17),
    "size-2304": ("Gemma2Config", dict(ONE, hidden_size=2304, num_attention_heads=8, num_key_value_heads=4, head_dim=256, query_pre_attn_scalar=256, sliding_window=8), 1, 17),
    "size-2560": ("Qwen3Config", dict(ONE, hidden_size=2560, num_attention_heads=5, num_key_value_heads=1, head_dim=128), 1, 17),
    "size-2880": ("GptOssConfig", dict(ONE, hidden_size=2880, num_attention_heads=8, num_key_value_heads=1, head_dim=64, num_local_experts=3, num_experts_per_tok=2,
                                       sliding_window=8, rope_parameters=YARN), 1, 17),
    "size-96": ("Phi3Config", dict(ONE, hidden_size=384, num_key_value_heads=4, pad_token_id=0), 1, 17),
    "far": ("LlamaConfig", dict(num_hidden_layers=2, max_position_embeddings=4096, rope_parameters=dict(LLAMA3, original_max_position_embeddings=512)), 1, 1300),
    "far-window": ("Gemma3TextConfig", dict(num_hidden_layers=2, max_position_embeddings=4096, head_dim=16, query_pre_attn_scalar=16, sliding_window=300,
                                            sliding_window_pattern=2), 1, 1300),
}


def fill(model, seed):
    """Gives each parameter random values that keep the hidden states' size, and that no part of the model hides."""
    g = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        r = torch.randn(p.shape, generator=g)
        if name.endswith("norm.weight"):
            p.data.copy_(r * 0.1 + p.data)
        elif p.dim() == 1 or name.endswith("bias"):
            p.data.copy_(r * 0.3)
        else:
            fan = p.shape[-2] if name.endswith(("experts.gate_up_proj", "experts.down_proj")) and "GptOss" in type(model).__name__ else p.shape[-1]
            p.data.copy_(r * fan**-0.5 * (8.0 if "embed" in name else 1.5))


def make(name, seed):
    """Returns a model with random values."""
    config, changes, _, _ = MODELS[name]
    c = getattr(transformers, config)(**{**BASE, **changes}) if config else transformers.AutoConfig.for_model(**copy.deepcopy(changes))
    c._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(c, dtype=torch.float32, attn_implementation="eager").eval()
    fill(model, seed)
    for module in model.modules():
        if hasattr(module, "limit"):  # older versions take 7, whatever the configuration says
            module.limit = changes.get("swiglu_limit", 7.0)
    return model


def adapter(folder):
    """Writes FOLDER/adapter, a LoRA of FOLDER/llama in PEFT's form, with the logits of the merged model."""
    to, base = folder / "adapter", folder / "llama"
    to.mkdir()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    rank, alpha, tensors = 4, 10, {}
    g = torch.Generator().manual_seed(7)
    for name, p in model.named_parameters():
        if name.endswith(("q_proj.weight", "v_proj.weight", "down_proj.weight")):
            a, b = torch.randn(rank, p.shape[1], generator=g) * 0.1, torch.randn(p.shape[0], rank, generator=g) * 0.1
            key = "base_model.model." + name.removesuffix(".weight")
            tensors[key + ".lora_A.weight"], tensors[key + ".lora_B.weight"] = a, b
            p.data += b @ a * (alpha / rank)
    save_file(tensors, to / "adapter_model.safetensors", {"format": "pt"})
    (to / "adapter_config.json").write_text(json.dumps(dict(
        peft_type="LORA", base_model_name_or_path=str(base), r=rank, lora_alpha=alpha, bias="none", target_modules=["q_proj", "v_proj", "down_proj"], use_rslora=False)))
    write(to, model, 2, 37, 500)


def write(to, model, batch, n, seed):
    """Writes random ids, and the logits that the model gives."""
    vocab = model.config.vocab_size
    ids = torch.randint(1, vocab, (batch, n), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits.float()
    (to / "ids.bin").write_bytes(ids.numpy().tobytes())
    (to / "logits.bin").write_bytes(logits.contiguous().numpy().tobytes())
    for dtype in LOW:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            low = copy.deepcopy(model).to(device, dtype)
            with torch.no_grad():
                logits = low(ids.to(device), use_cache=False).logits.float().cpu()
            (to / f"{device}-{str(dtype).removeprefix('torch.')}.bin").write_bytes(logits.contiguous().numpy().tobytes())
    (to / "shape.json").write_text(json.dumps([batch, n, vocab]))


def main(folder, names):
    for i, (name, (config, fields, batch, n)) in enumerate(MODELS.items()):
        if names and name not in names:
            continue
        model = make(name, i + 1)
        c, to = model.config, folder / name
        model.save_pretrained(to)
        if config is None:
            (to / "config.json").write_text(json.dumps(fields))
        elif "swiglu_limit" in fields:  # older versions do not write it
            saved = json.loads((to / "config.json").read_text())
            (to / "config.json").write_text(json.dumps({**saved, "swiglu_limit": fields["swiglu_limit"]}))
        write(to, model, batch, n, 100 + i)
    if "llama" in names or not names:
        adapter(folder)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), sys.argv[2:])
