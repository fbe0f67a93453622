"""A decoder of Switch Transformer's shape that generates tokens one at a time, and the ways in which it has its experts.

Plain eager PyTorch. Attention is matmul and softmax, as in transformers' T5, in its order and without a scale; the bias of relative
positions and the causal mask are one table, made once. Weights are random, so the head is not tied to the embedding: with a tied one,
the next token would always be the last.
"""

import dataclasses
import statistics
import time
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn

from peer import synchronize
from slots import Slots, clear, fill_windows, host_memory, milliseconds, new_event, noise, peak, reset_peak


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes of a decoder; those of switch-base-128 if nothing is said."""

    layers: int = 12  # every second is sparse: 1, 3, 5, ...
    d_model: int = 768
    d_kv: int = 64
    heads: int = 12
    d_ff: int = 3072
    experts: int = 128
    vocab: int = 32128
    source: int = 64  # tokens of the encoder's output
    length: int = 128  # positions of the static KV cache
    dtype: str = "float32"  # or bfloat16
    seed: int = 1

    @property
    def type(self):
        return getattr(torch, self.dtype)

    @property
    def sparse(self):
        """Number of sparse layers."""
        return self.layers // 2

    @property
    def matrix(self):
        """Elements of one of an expert's two matrices: wi [d_ff, d_model], then wo [d_model, d_ff]."""
        return self.d_ff * self.d_model

    @property
    def expert_bytes(self):
        return 2 * self.matrix * self.type.itemsize

    def matrices(self, flat):
        """wi and wo of an expert that is one piece of memory."""
        wi, wo = flat.view(2, self.matrix)
        return wi.view(self.d_ff, self.d_model), wo.view(self.d_model, self.d_ff)

    def fill(self, memory):
        """Fills [sparse, experts, 2 * matrix] of any device with the experts, which are the same on all."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        flat = memory.view(-1, 2, self.matrix)
        for i, fan_in in enumerate((self.d_model, self.d_ff)):
            numbers = noise(self.matrix, len(flat), fan_in**-0.5, self.type, generator)
            fill_windows(flat[:, i], numbers.to(memory.device))


class Attention(nn.Module):
    def __init__(self, shape, device):
        super().__init__()
        self.heads, self.d_kv = shape.heads, shape.d_kv
        inner = shape.heads * shape.d_kv
        like = {"bias": False, "device": device, "dtype": shape.type}
        self.q = nn.Linear(shape.d_model, inner, **like)
        self.k = nn.Linear(shape.d_model, inner, **like)
        self.v = nn.Linear(shape.d_model, inner, **like)
        self.o = nn.Linear(inner, shape.d_model, **like)

    def keys_values(self, x):
        """Keys and values [heads, tokens, d_kv] of x."""
        return (f(x).view(-1, self.heads, self.d_kv).transpose(0, 1) for f in (self.k, self.v))

    def forward(self, x, keys, values, bias=None):
        """x is one token [1, d_model]."""
        scores = self.q(x).view(self.heads, 1, self.d_kv) @ keys.transpose(1, 2)
        if bias is not None:
            scores = scores + bias
        return self.o((F.softmax(scores, dim=-1) @ values).view(1, -1))


class FeedForward(nn.Module):
    def __init__(self, shape, device):
        super().__init__()
        like = {"bias": False, "device": device, "dtype": shape.type}
        self.wi = nn.Linear(shape.d_model, shape.d_ff, **like)
        self.wo = nn.Linear(shape.d_ff, shape.d_model, **like)

    def forward(self, x):
        return self.wo(F.relu(self.wi(x)))


class Layer(nn.Module):
    """A layer of the decoder. A sparse one has a router, in float32 as in transformers, and no experts: Experts has them."""

    def __init__(self, shape, sparse, device):
        super().__init__()
        self.norms = nn.ModuleList(
            nn.RMSNorm(shape.d_model, eps=1e-6, device=device, dtype=shape.type) for _ in range(3)
        )
        self.attention = Attention(shape, device)
        self.cross = Attention(shape, device)
        if sparse:
            self.router = nn.Linear(shape.d_model, shape.experts, bias=False, device=device)
        else:
            self.mlp = FeedForward(shape, device)


class Decoder(nn.Module):
    """The decoder. Where pre-gated, sparse layer i's input chooses the experts of sparse layer i + 1, and the embedding those of the first."""

    def __init__(self, shape, experts, pregated, device):
        super().__init__()
        self.shape, self.experts, self.pregated, self.device = shape, experts, pregated, device
        like = {"device": device, "dtype": shape.type}
        self.embedding = nn.Embedding(shape.vocab, shape.d_model, **like)
        self.layers = nn.ModuleList(Layer(shape, i % 2 == 1, device) for i in range(shape.layers))
        self.norm = nn.RMSNorm(shape.d_model, eps=1e-6, **like)
        self.head = nn.Linear(shape.d_model, shape.vocab, bias=False, **like)
        generator = torch.Generator(device).manual_seed(shape.seed)
        self.fill(generator)
        source = torch.randn(shape.source, shape.d_model, generator=generator, **like)
        self.cross = [[t.contiguous() for t in layer.cross.keys_values(source)] for layer in self.layers]
        cache = (shape.layers, shape.heads, shape.length, shape.d_kv)
        self.keys, self.values = torch.zeros(cache, **like), torch.zeros(cache, **like)
        self.bias = self.positions(generator)
        self.routers = [layer.router for layer in self.layers if hasattr(layer, "router")]
        self.marks = None  # pairs of events around each sparse block, if it is a list

    def fill(self, generator):
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                weight.normal_(std=1 if name.startswith("embedding") else weight.shape[1] ** -0.5, generator=generator)
        for layer in self.layers:  # as T5's: the product of queries and keys has no scale
            layer.attention.q.weight.mul_(self.shape.d_kv**-0.5)
            layer.cross.q.weight.mul_(self.shape.d_kv**-0.5)
            if hasattr(layer, "mlp"):  # what ReLU has above zero would be the same for all tokens, and so would be the experts
                layer.mlp.wo.weight.sub_(layer.mlp.wo.weight.mean(1, keepdim=True))

    def positions(self, generator):
        """What is added to the scores [heads, query, key]: a bias for each distance, where T5 has one for a bucket of them, and the mask."""
        length = self.shape.length
        of_distance = torch.randn(self.shape.heads, length, generator=generator, device=self.device)
        position = torch.arange(length, device=self.device)
        distance = position[:, None] - position
        return of_distance[:, distance.clamp(min=0)].masked_fill(distance < 0, float("-inf")).to(self.shape.type)

    def forward(self, token, position):
        """The token [1] that follows."""
        x = self.embedding(token)
        bias = self.bias[:, position : position + 1]
        if self.pregated:
            self.ahead = self.route(0, next(layer for layer in self.layers if hasattr(layer, "router")).norms[2](x))
        for i, layer in enumerate(self.layers):
            h = layer.norms[0](x)
            keys, values = self.keys[i], self.values[i]
            for cache, new in zip((keys, values), layer.attention.keys_values(h)):
                cache[:, position : position + 1] = new
            x = x + layer.attention(h, keys, values, bias)
            x = x + layer.cross(layer.norms[1](x), *self.cross[i])
            x = self.sparse(layer, x, i // 2) if i % 2 else x + layer.mlp(layer.norms[2](x))
        return self.head(self.norm(x)).argmax(-1)

    def sparse(self, layer, x, i):
        """The sparse block, of sparse layer i."""
        self.mark()
        h = layer.norms[2](x)
        chosen = self.ahead if self.pregated else self.route(i, h)
        if self.pregated and i + 1 < len(self.routers):
            self.ahead = self.route(i + 1, h)
        weight, choice = chosen
        x = x + weight * self.experts.run(i, h, choice)
        self.mark()
        return x

    def route(self, i, h):
        """The weight [1, 1] of the expert that sparse layer i is to run, and which one it is [1]. Tells Experts."""
        weight, choice = F.softmax(self.routers[i](h.float()), dim=-1).max(-1)
        self.experts.announce(i, choice)
        return weight[:, None].to(h.dtype), choice

    def mark(self):
        if self.marks is not None:
            self.marks.append(new_event(self.device, timing=True))
            self.marks[-1].record()

    def generate(self, first, tokens, started=0, start=lambda: None):
        """Ids of so many tokens by greedy search that follow the first, on the device. Calls start before that of index started.

        The host never reads an id, though a program that stops at an end of sequence does once a token.
        """
        self.keys.zero_()
        self.values.zero_()
        self.experts.reset()
        ids = [torch.tensor([first], device=self.device)]
        for position in range(tokens):
            if position == started:
                start()
            ids.append(self(ids[-1], position))
        return torch.cat(ids[1:])


class Experts:
    """A way of having experts. This class counts; others say where the weights are."""

    host = None  # where the weights come from: pinned, pageable, or made on the device if it is None

    def __init__(self, shape, weights, slots, device):
        """weights is [sparse, experts, 2 * matrix], of the host or of the device."""
        self.shape, self.weights, self.device = shape, weights, device
        self.restart()

    def restart(self):
        """Counts from here on."""
        self.runs = self.copies = 0

    def reset(self):
        """Forgets what was copied."""

    def announce(self, layer, choice):
        """Says that the layer's next run has this choice."""

    def run(self, layer, x, choice):
        """Runs the expert of index choice, which is [1] and on the device, on x."""
        raise NotImplementedError

    def on(self, x, flat):
        """The expert that is one piece of memory, on x."""
        self.runs += 1
        wi, wo = self.shape.matrices(flat)
        return F.linear(F.relu(F.linear(x, wi)), wo)


class Resident(Experts):
    """All experts on the device, found as transformers finds them: by a mask of all, whose rows with a token the host reads."""

    def __init__(self, shape, weights, slots, device):
        super().__init__(shape, weights, slots, device)
        self.layers = [nn.ModuleList(self.module(flat) for flat in layer) for layer in weights]

    def module(self, flat):
        expert = FeedForward(self.shape, "meta")
        expert.wi.weight, expert.wo.weight = (nn.Parameter(w, requires_grad=False) for w in self.shape.matrices(flat))
        return expert

    def run(self, layer, x, choice):
        mask = F.one_hot(choice, self.shape.experts)  # [tokens, experts]
        y = torch.zeros_like(x)
        for i in mask.sum(0).gt(0).nonzero():  # waits for the device; so do where and the index of a list
            (rows,) = torch.where(mask[:, i].squeeze(1))
            y.index_add_(0, rows, self.called(layer, int(i), x[rows]))
        return y

    def called(self, layer, i, x):
        self.runs += 1
        return self.layers[layer][i](x)


class Selected(Experts):
    """All experts on the device, and no wait: the chosen one's weights are gathered there."""

    def run(self, layer, x, choice):
        return self.on(x, self.weights[layer].index_select(0, choice).view(-1))


class Accelerated(Resident):
    """Experts in pageable memory, moved to the device when called and dropped after, by accelerate.cpu_offload.

    Its hooks move each matrix when it is used, by .to(device), and accelerate 1.15 gives PyTorch's cached memory back each time.
    Without accelerate the same is done by hooks written here, which leave the cache.
    """

    host = "pageable"

    def __init__(self, shape, weights, slots, device):
        super().__init__(shape, weights, slots, device)
        try:
            import accelerate
        except ImportError:
            self.driven = "by hand"
            for expert in (expert for layer in self.layers for expert in layer):
                offload(expert.wi, device)
                offload(expert.wo, device)
        else:
            self.driven = f"accelerate {accelerate.__version__}"
            for layer in self.layers:
                accelerate.cpu_offload(layer, execution_device=device)

    def called(self, layer, i, x):
        self.copies += 1
        return super().called(layer, i, x)


def offload(module, device):
    """Has the module's weight on the device while it runs."""
    weight = module.weight

    def move(*_):
        module.weight = nn.Parameter(weight.to(device), requires_grad=False)

    def drop(*_):
        module.weight = weight

    module.register_forward_pre_hook(move)
    module.register_forward_hook(drop)


class OnDemand(Experts):
    """Experts in pinned memory: the host waits for the choice, then copies on the stream that computes."""

    host = "pinned"

    def __init__(self, shape, weights, slots, device):
        super().__init__(shape, weights, slots, device)
        self.memory = torch.empty(2 * shape.matrix, dtype=shape.type, device=device)

    def run(self, layer, x, choice):
        self.copies += 1
        self.memory.copy_(self.weights[layer, choice.item()], non_blocking=True)
        return self.on(x, self.memory)


class SideStream(Experts):
    """Experts in pinned memory: the host waits for the choice as soon as there is one, then a side stream copies into one of two slots."""

    host = "pinned"

    def __init__(self, shape, weights, slots, device):
        super().__init__(shape, weights, slots, device)
        self.slots = Slots(2, 2 * shape.matrix, shape.type, device)

    def announce(self, layer, choice):
        self.copies += 1
        self.slots.fill(layer % 2, self.weights[layer, choice.item()])

    def run(self, layer, x, choice):
        y = self.on(x, self.slots.take(layer % 2))
        self.slots.release(layer % 2)
        return y


class LRU(Experts):
    """Experts in pinned memory, and so many slots a layer that keep those used last; else as OnDemand."""

    host = "pinned"

    def __init__(self, shape, weights, slots, device):
        super().__init__(shape, weights, slots, device)
        self.memory = torch.empty(shape.sparse, slots, 2 * shape.matrix, dtype=shape.type, device=device)
        self.reset()

    def reset(self):
        slots = range(self.memory.shape[1])
        self.kept = [OrderedDict((-1 - slot, slot) for slot in slots) for _ in self.memory]  # slot of an expert, the one used last at the end

    def run(self, layer, x, choice):
        i, kept = choice.item(), self.kept[layer]
        if i in kept:
            kept.move_to_end(i)
        else:
            _, kept[i] = kept.popitem(last=False)
            self.copies += 1
            self.memory[layer, kept[i]].copy_(self.weights[layer, i], non_blocking=True)
        return self.on(x, self.memory[layer, kept[i]])


WAYS = {
    "resident": Resident,
    "resident_select": Selected,
    "accelerate": Accelerated,
    "on_demand": OnDemand,
    "side_stream": SideStream,
    "lru": LRU,
}

state = {}  # what was made for the last request; host memory, by its kind, for as long as the shape is the same


@torch.inference_mode()
def switch(*, mode, device, tokens, warm_up=16, first=0, pregated=None, slots=8, **sizes):
    """Generates tokens in one of WAYS, or in mode compute, which is resident_select pre-gated, or copy, which is copies alone.

    pregated is true if nothing is said in side_stream, and false in the others; ways agree in their ids if they agree in it. slots, a
    layer, is lru's. sizes are Shape's. One sequence has warm_up tokens, then those that count; it is generated twice, the second time
    with events around the sparse blocks. An lru cache is empty where a sequence begins.

    Returns milliseconds per token and tokens_per_second; block_milliseconds and block_median_milliseconds of a sparse block, from norm
    to residual sum, with what it waits for; bytes copied from the host in those tokens; hit_rate, the share of runs without a copy;
    peak_bytes on the device, above those before the model was made; ids, of warm_up and tokens.
    """
    shape = Shape(**sizes)
    if warm_up + tokens > shape.length and mode != "copy":
        raise ValueError(f"{warm_up} + {tokens} tokens, and the cache has {shape.length} positions")
    if mode == "copy":
        return copies(shape, device, tokens, warm_up)
    if pregated is None or mode == "compute":
        pregated = mode in ("side_stream", "compute")
    decoder, base = installed(shape, "resident_select" if mode == "compute" else mode, pregated, slots, device)
    return measured(decoder, base, tokens, warm_up, first)


def measured(decoder, base, tokens, warm_up, first):
    experts, device = decoder.experts, decoder.device
    began = 0.0

    def start():
        nonlocal began
        experts.restart()
        synchronize(device)
        began = time.perf_counter()

    reset_peak(device)
    ids = decoder.generate(first, warm_up + tokens, warm_up, start)
    synchronize(device)
    each = (time.perf_counter() - began) * 1e3 / tokens
    runs, copied = experts.runs, experts.copies
    blocks = block_times(decoder, tokens, warm_up, first)
    return {
        "milliseconds": each,
        "tokens_per_second": 1e3 / each,
        "block_milliseconds": statistics.mean(blocks),
        "block_median_milliseconds": statistics.median(blocks),
        "bytes": copied * decoder.shape.expert_bytes,
        "hit_rate": 1 - copied / runs,
        "peak_bytes": peak(device) - base,
        "ids": ids.tolist(),
        "driven": getattr(experts, "driven", ""),
    }


def block_times(decoder, tokens, warm_up, first):
    """Milliseconds of each sparse block of the tokens that count."""

    def start():
        synchronize(decoder.device)
        decoder.marks = []

    decoder.generate(first, warm_up + tokens, warm_up, start)
    synchronize(decoder.device)
    marks, decoder.marks = decoder.marks, None
    return [began.elapsed_time(ended) for began, ended in zip(marks[::2], marks[1::2])]


def copies(shape, device, tokens, warm_up):
    """Milliseconds of the copies of a token's experts alone, from pinned memory, one after another."""
    release_decoder(device)
    weights = host_weights(shape, "pinned", device)
    base = clear(device)
    slots = Slots(2, 2 * shape.matrix, shape.type, device)
    choices = torch.randint(shape.experts, (tokens, shape.sparse), generator=torch.Generator().manual_seed(shape.seed)).tolist()

    def copy(some):
        for token in some:
            for layer, i in enumerate(token):
                slots.fill(layer % 2, weights[layer, i])

    copy(choices[:warm_up])
    each = milliseconds(device, lambda: copy(choices)) / tokens
    return {
        "milliseconds": each,
        "tokens_per_second": 1e3 / each,
        "bytes": tokens * shape.sparse * shape.expert_bytes,
        "peak_bytes": peak(device) - base,
    }


def installed(shape, mode, pregated, slots, device):
    """The decoder with that way of having experts, and the bytes that were allocated before it; that of the last request if it is the same."""
    key = (shape, mode, pregated, slots, device)
    if state.get("key") != key:
        release_decoder(device)
        way = WAYS[mode]
        weights = host_weights(shape, way.host, device) if way.host else None
        base = clear(device)
        if weights is None:
            weights = torch.empty(shape.sparse, shape.experts, 2 * shape.matrix, dtype=shape.type, device=device)
            shape.fill(weights)
        decoder = Decoder(shape, way(shape, weights, slots, device), pregated, device).eval()
        state.update(key=key, decoder=decoder, base=base)
    return state["decoder"], state["base"]


def release_decoder(device):
    synchronize(device)
    for name in ("key", "decoder", "base"):
        state.pop(name, None)


def host_weights(shape, kind, device):
    """The experts in host memory, pinned or pageable; made once for a shape."""
    if state.get("shape") != (shape, device):
        state["host"] = {}
        clear(device)
        state["shape"] = shape, device
    if kind not in state["host"]:
        memory = host_memory((shape.sparse, shape.experts, 2 * shape.matrix), shape.type, device, kind == "pinned")
        shape.fill(memory)
        state["host"][kind] = memory
    return state["host"][kind]
