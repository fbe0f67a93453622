"""Many callers of one Llama by transformers' continuous batching, in bfloat16 with random weights.

Reads JSON from standard input: {"shapes": {...}, "tiny": bool, "rounds": [{"callers": n, "requests": [[prompt, answer], ...]}]}.
As many requests run at once as there are callers. No token ends an answer. Each round runs once with each scheduler, and prints its
rate.

Without flash-attn, this file makes a module of that name with two functions. Prompts take PyTorch's FlashAttention-2, and tokens a
Triton kernel over pages. The line of a round says which.
"""

import importlib.metadata
import importlib.util
import json
import os
import random
import sys
import tempfile
import time

asked = json.load(sys.stdin)
TINY = asked["tiny"]
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if TINY:
    os.environ["TRITON_INTERPRET"] = "1"

FLASH = '''
import torch
__version__ = "2.8.3"

def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None, causal=False, **other):
    if q.is_cuda:
        return torch.ops.aten._flash_attention_forward(q, k, v, cu_seqlens_q, cu_seqlens_k, int(max_seqlen_q), int(max_seqlen_k), 0.0, causal, False, scale=softmax_scale)[0]
    out = torch.zeros_like(q)
    for a, b, c, d in zip(cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:]):
        if b > a:
            mask = torch.ones(b - a, d - c, dtype=torch.bool).tril((d - c) - (b - a))
            rows = [t.transpose(0, 1)[None] for t in (q[a:b], k[c:d], v[c:d])]
            out[a:b] = torch.nn.functional.scaled_dot_product_attention(*rows, attn_mask=mask, scale=softmax_scale, enable_gqa=True)[0].transpose(0, 1)
    return out

def flash_attn_func(*args, **kwargs):
    raise NotImplementedError

def flash_attn_with_kvcache(q, k_cache, v_cache, k=None, v=None, cache_seqlens=None, block_table=None, softmax_scale=None, **other):
    from flash_attn import pages
    return pages.step(q, k_cache, v_cache, k, v, cache_seqlens, block_table, softmax_scale)
'''
PADDING = "def pad_input(*a, **k): raise NotImplementedError\ndef unpad_input(*a, **k): raise NotImplementedError\n"
PAGES = '''
import torch, triton, triton.language as tl

@triton.jit
def write(k, v, kc, vc, lens, table, stride, BS: tl.constexpr, W: tl.constexpr):
    b = tl.program_id(0)
    n = tl.load(lens + b)
    at = tl.maximum(n, 0)
    page = tl.load(table + b * stride + at // BS)
    if (n >= 0) & (page >= 0):
        o = tl.arange(0, W)
        row = (page.to(tl.int64) * BS + at % BS) * W
        tl.store(kc + row + o, tl.load(k + b * W + o))
        tl.store(vc + row + o, tl.load(v + b * W + o))

@triton.jit
def part(q, kc, vc, lens, table, stride, sums, states, scale, HK: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr,
         BS: tl.constexpr, N: tl.constexpr, SPLITS: tl.constexpr):
    b, h, s = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    n = tl.maximum(tl.load(lens + b) + 1, 0)  # rows of padding have none
    chunk = tl.cdiv(tl.cdiv(n, SPLITS), N) * N
    end = tl.minimum(n, s * chunk + chunk)
    g, d, j = tl.arange(0, GP), tl.arange(0, D), tl.arange(0, N)
    x = tl.load(q + (b * HK * G + h * G + g[:, None]) * D + d[None, :], mask=g[:, None] < G, other=0.0)
    most, total, acc = tl.full([GP], -1e30, tl.float32), tl.zeros([GP], tl.float32), tl.zeros([GP, D], tl.float32)
    for at in range(s * chunk, end, N):
        page = tl.maximum(tl.load(table + b * stride + at // BS), 0).to(tl.int64)
        row = ((page * BS + at % BS + j) * HK + h) * D
        live = at + j < end
        keys = tl.load(kc + row[:, None] + d[None, :], mask=live[:, None], other=0.0)
        values = tl.load(vc + row[:, None] + d[None, :], mask=live[:, None], other=0.0)
        z = tl.where(live[None, :], tl.dot(x, tl.trans(keys)) * scale, -1e30)
        top = tl.maximum(most, tl.max(z, 1))
        p = tl.where(live[None, :], tl.exp(z - top[:, None]), 0.0)
        shrink = tl.exp(most - top)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None] + tl.dot(p.to(values.dtype), values)
        most = top
    base = ((b * HK + h) * SPLITS + s) * GP
    tl.store(sums + (base + g[:, None]) * D + d[None, :], acc)
    tl.store(states + (base + g) * 2, most)
    tl.store(states + (base + g) * 2 + 1, total)

@triton.jit
def join(sums, states, out, HK: tl.constexpr, G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr):
    b, h = tl.program_id(0), tl.program_id(1)
    d, s = tl.arange(0, D), tl.arange(0, SPLITS)
    row = ((b * HK + h // G) * SPLITS + s) * GP + h % G
    most, total = tl.load(states + row * 2), tl.load(states + row * 2 + 1)
    w = tl.where(total > 0, tl.exp(most - tl.max(most, 0)), 0.0)
    acc = tl.sum(tl.load(sums + row[:, None] * D + d[None, :]) * w[:, None], 0)
    tl.store(out + (b * HK * G + h) * D + d, (acc / tl.maximum(tl.sum(total * w, 0), 1e-30)).to(out.dtype.element_ty))

def step(q, kc, vc, k, v, lens, table, scale):
    B, _, H, D = q.shape
    BS, HK = kc.shape[1], kc.shape[2]
    G = H // HK
    GP, splits = max(16, triton.next_power_of_2(G)), 1
    while splits < 32 and B * HK * splits < 528:
        splits *= 2
    q, k, v, lens, table = (t.contiguous() for t in (q, k, v, lens, table))
    write[(B,)](k, v, kc, vc, lens, table, table.stride(0), BS=BS, W=HK * D)
    sums, states = torch.empty(B, HK, splits, GP, D, device=q.device, dtype=torch.float32), torch.empty(B, HK, splits, GP, 2, device=q.device, dtype=torch.float32)
    out = torch.empty_like(q)
    part[(B, HK, splits)](q, kc, vc, lens, table, table.stride(0), sums, states, scale, HK=HK, G=G, GP=GP, D=D, BS=BS, N=min(64, BS), SPLITS=splits, num_warps=4, num_stages=3)
    join[(B, H)](sums, states, out, HK=HK, G=G, GP=GP, D=D, SPLITS=splits, num_warps=2)
    return out
'''

if importlib.util.find_spec("flash_attn") is None:
    site = tempfile.mkdtemp(prefix="flash-")
    for path, text in {"flash_attn/__init__.py": FLASH, "flash_attn/bert_padding.py": PADDING, "flash_attn/pages.py": PAGES,
                       "flash_attn-2.8.3.dist-info/METADATA": "Metadata-Version: 2.1\nName: flash-attn\nVersion: 2.8.3\n",
                       "flash_attn-2.8.3.dist-info/top_level.txt": "flash_attn\n"}.items():
        os.makedirs(os.path.dirname(os.path.join(site, path)), exist_ok=True)
        with open(os.path.join(site, path), "w") as f:
            f.write(text)
    sys.path.insert(0, site)
    attention = "PyTorch's flash and Triton"
else:
    attention = "flash-attn " + importlib.metadata.version("flash_attn")

import torch
import transformers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig
from transformers.generation.continuous_batching import initialization
from transformers.generation.continuous_batching.utils import WorkloadHints

transformers.logging.set_verbosity_error()
if TINY:  # transformers is to take flash attention on the CPU, too
    from transformers import modeling_flash_attention_utils
    from transformers.utils import import_utils

    import_utils.is_torch_cuda_available = lambda: True
    modeling_flash_attention_utils.is_flash_attn_2_available = lambda *a, **k: True
    transformers.PreTrainedModel._flash_attn_can_dispatch = lambda *a, **k: True
    initialization.ensure_decode_fast_path_is_available = lambda *_: None


def make():
    torch.manual_seed(1)
    with torch.device("cpu" if TINY else "cuda"):
        config = LlamaConfig(**asked["shapes"], bos_token_id=None, eos_token_id=None, pad_token_id=None)
        return LlamaForCausalLM._from_config(config, dtype=torch.float32 if TINY else torch.bfloat16, attn_implementation="sdpa").eval()


def drive(manager, requests, callers, prefix):
    """Keeps as many requests under way as there are callers. Returns the seconds until the last one has ended."""
    began, sent, ended = time.perf_counter(), 0, 0
    while ended < len(requests):
        while sent < len(requests) and sent - ended < callers:
            tokens, answer = requests[sent]
            manager.add_request(tokens, request_id=f"{prefix}{sent}", max_new_tokens=answer, eos_token_id=-1)
            sent += 1
        result = manager.get_result(timeout=0.5)
        if result is None:
            if not manager.is_running():
                raise RuntimeError(f"the manager has ended: {manager.background_thread_status.fatal_error!r}")
            continue
        if result.error:
            raise RuntimeError(result.error)
        if result.is_finished():
            if len(result.generated_tokens) != requests[int(result.request_id.removeprefix(prefix))][1]:
                raise RuntimeError(f"{result.request_id} has {len(result.generated_tokens)} tokens")
            ended += 1
    return time.perf_counter() - began


def measure(model, callers, lengths, scheduler):
    block, draw = 32 if TINY else 256, random.Random(callers)
    model.set_attn_implementation("flash_attention_2")
    requests = [([draw.randrange(1, asked["shapes"]["vocab_size"]) for _ in range(prompt)], answer) for prompt, answer in lengths]
    prompts, answers = max(n for n, _ in lengths), max(n for _, n in lengths)
    each = -(-(prompts + answers) // block) + 1  # pages of the longest
    config = ContinuousBatchingConfig(
        block_size=block, num_blocks=min(each * callers + 32, max(8 * callers, each * 64 + 32)), max_batch_tokens=64 if TINY else 8192, allow_block_sharing=False,
        use_cuda_graph=None if TINY else (False, True), scheduler_type=scheduler, max_requests_per_batch=max(callers, 2), seed=1)
    hints = WorkloadHints(max_prompt_length=prompts, max_generated_length=answers, num_requests=max(callers, 2))
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=answers), continuous_batching_config=config, workload_hints=hints)
    try:
        with torch.no_grad():
            manager.warmup()
        manager.start()
        drive(manager, [(tokens, min(answer, 12)) for tokens, answer in requests[:16]], callers, "w")
        return sum(answer for _, answer in requests) / drive(manager, requests, callers, "r")
    finally:
        manager.stop(block=True, timeout=20)
        manager.destroy()
        if not TINY:
            torch.cuda.empty_cache()


model = make()
for asked_round in asked["rounds"]:
    for scheduler in ("fifo", "prefill_first"):
        rate = measure(model, asked_round["callers"], asked_round["requests"], scheduler)
        print(f"PEER callers={asked_round['callers']} tokens_s={rate:.1f} scheduler={scheduler} transformers={transformers.__version__} attention={attention}", flush=True)
