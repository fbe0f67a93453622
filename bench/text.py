"""A decoder of Llama's shapes in PyTorch, with random bfloat16 weights: its token at batch 1, and the load of a folder with transformers."""

import copy
import gc
import time

import torch
import torch.nn.functional as F

from peer import seconds, serve, synchronize

state = {}


class Decoder:
    """Llama, written for one token after a context: fused products, flash attention over the live part of a static cache."""

    def __init__(self, c, device, dtype, context):
        self.c, self.context = c, context
        self.heads, self.key_heads, self.head = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        width, inner = c["hidden_size"], c["intermediate_size"]

        def weight(*shape):
            return torch.empty(shape, device=device, dtype=dtype).normal_(0, 0.02)

        one = torch.ones(width, device=device, dtype=dtype)
        self.embedding = weight(c["vocab_size"], width)
        self.last = self.embedding if c["tie_word_embeddings"] else weight(c["vocab_size"], width)
        self.norm = one
        self.layers = []
        for _ in range(c["num_hidden_layers"]):
            keys, values = (weight(1, self.key_heads, context + 1, self.head) for _ in range(2))
            qkv = weight((self.heads + 2 * self.key_heads) * self.head, width)
            self.layers.append((qkv, weight(width, self.heads * self.head), weight(2 * inner, width), weight(width, inner), one, one, keys, values))
        frequencies = 1 / c["rope_theta"] ** (torch.arange(0, self.head, 2, device=device).float() / self.head)
        self.position = torch.tensor([context], device=device)
        angles = context * frequencies
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.token = torch.tensor([1], device=device)

    def turned(self, t):
        first, second = t.chunk(2, -1)
        return torch.cat([first * self.cos - second * self.sin, second * self.cos + first * self.sin], -1)

    def layer(self, h, qkv, out, gate_up, down, first_norm, second_norm, keys, values):
        width = h.shape[-1:]
        sizes = [n * self.head for n in (self.heads, self.key_heads, self.key_heads)]
        q, k, v = F.linear(F.rms_norm(h, width, first_norm, 1e-5), qkv).split(sizes, -1)
        q, k = self.turned(q.view(1, self.heads, 1, self.head)), self.turned(k.view(1, self.key_heads, 1, self.head))
        keys[:, :, self.position], values[:, :, self.position] = k, v.view(1, self.key_heads, 1, self.head)
        o = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        h = h + F.linear(o.reshape(1, -1), out)
        gate, up = F.linear(F.rms_norm(h, width, second_norm, 1e-5), gate_up).chunk(2, -1)
        return h + F.linear(F.silu(gate) * up, down)

    def end(self, h):
        return F.linear(F.rms_norm(h, h.shape[-1:], self.norm, 1e-5), self.last).argmax(-1)

    def step(self):
        h = F.embedding(self.token, self.embedding)
        for layer in self.layers:
            h = self.layer(h, *layer)
        self.token.copy_(self.end(h))

    def compiled(self):
        """The same decoder, its layers and its end compiled by torch.compile's longest search."""
        from torch._inductor import config

        config.coordinate_descent_tuning = True
        options = {"mode": "max-autotune-no-cudagraphs", "fullgraph": True, "dynamic": False}
        other = copy.copy(self)
        other.layer, other.end = torch.compile(self.layer, **options), torch.compile(self.end, **options)
        return other


@torch.inference_mode()
def prepare(*, config, device, contexts, graph):
    """Makes decoders that have so many tokens of context. With graph each is in a CUDA graph, by itself and compiled."""
    state.clear()
    state["device"], state["step"], state["compiled"], state["decoders"] = device, {}, {}, []
    dtype = torch.bfloat16
    for context in contexts:
        decoder = Decoder(config, device, dtype, context)
        state["decoders"].append(decoder)  # a graph does not keep the memory that it reads
        step = decoder.step
        if graph:
            step = captured(step)
            compiled = decoder.compiled()
            state["decoders"].append(compiled)
            state["compiled"][context] = captured(compiled.step)
        state["step"][context] = step


def captured(step):
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.inference_mode()
def block(*, context, steps, form="step"):
    """Milliseconds per token, of so many between two synchronisations."""
    return {"milliseconds": seconds(state["device"], state[form][context], steps) * 1e3}


def prepare_transformers(*, config, device):
    """Makes transformers' model of the configuration, with random bfloat16 weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = {k: v for k, v in config.items() if k not in ("architectures", "model_type", "torch_dtype")}
    state["device"] = device
    with torch.device(device):
        state["model"] = LlamaForCausalLM._from_config(LlamaConfig(**config), dtype=torch.bfloat16).eval()


@torch.inference_mode()
def transformers_block(*, context, steps):
    """Milliseconds per token of generate after a prompt of so many tokens, the prompt left out; and milliseconds of the prompt."""
    ids = torch.ones(1, context, dtype=torch.long, device=state["device"])

    def generate(n):
        state["model"].generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)

    prompt = seconds(state["device"], lambda: generate(1), 3)
    whole = seconds(state["device"], lambda: generate(steps + 1), 1)
    return {"milliseconds": (whole - prompt) / steps * 1e3, "prompt": prompt * 1e3}


def load(*, folder, device):
    """Seconds that from_pretrained takes to a model on the device."""
    from transformers import AutoModelForCausalLM

    state.pop("model", None)
    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
    synchronize(device)
    began = time.perf_counter()
    straight = {"device_map": device} if device.startswith("cuda") else {}
    state["model"] = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **straight)
    synchronize(device)
    return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    serve(prepare, block, prepare_transformers, transformers_block, load)
