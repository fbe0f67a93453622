"""Small programs that hold each kind of thing that a file of torch.export can hold."""

import collections
import dataclasses
import math

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn
from torch.export import Dim

Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Found:
    score: torch.Tensor
    boxes: torch.Tensor | None = None


torch.export.register_dataclass(Found, serialized_type_name="Found")
torch.utils._pytree._register_namedtuple(Pair, serialized_type_name="Pair")


def module(of, **parts):
    """Returns a module whose forward is the function, with parameters, buffers and modules."""

    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, tuple):
                    self.register_buffer(name, part[0], persistent=part[1])
                else:
                    setattr(self, name, part)

    Module.forward = of
    return Module().eval()


class TextClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.recurrent = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 10)

    def forward(self, words):
        return self.head(self.recurrent(self.embedding(words))[0][:, -1])


def programs():
    torch.manual_seed(1)
    r = torch.randn
    n = Dim("n")
    first = ({0: n},)
    all = {}

    def add(name, of, calls, dynamic=None, parts={}, **options):
        calls = [c if len(c) == 2 and isinstance(c[1], dict) else (c, {}) for c in calls]
        all[name] = (module(of, **parts), calls, dynamic, options)

    add("plain", lambda self, x: x * 2 + 1, [(r(2, 3),), (r(5, 3),)], first)
    add("tree_in", lambda self, d, l: d["a"] + l[0] * l[1][0], [({"a": r(3), "b": r(2)}, [r(3), (r(3),)])])
    add("tree_out", lambda self, x: {"y": x + 1, "l": [x, (x * 2, 3)], "none": None, "f": 0.5, "t": True}, [(r(3),)])
    add("named_tuple", lambda self, p: Pair(p.right, p.left * 2), [(Pair(r(2), r(2)),)])
    add("dataclass", lambda self, x: Found(x * 2), [(r(2),)])
    add("ordered_dict", lambda self, x: collections.OrderedDict(b=x, a=x + 1), [(r(2),)])
    add("keywords", lambda self, x, *, scale, mask=None: x * scale if mask is None else x * mask,
        [((r(2),), {"scale": r(2)})])
    add("constants", lambda self, x, n, f, b, s, none: x * n + f if b and s == "a" else x, [(r(2), 3, 0.25, True, "a", None)])
    add("sizes", lambda self, x: (x.reshape(x.shape[0] * 2, -1), x.shape[0] * 3 + 1, x.shape[0] // 2, x.numel()),
        [(r(4, 6),), (r(6, 6),)], ({0: n},))
    add("ranges", lambda self, x: (F.silu(x.clone(), inplace=True), F.hardswish(x.clone(memory_format=torch.channels_last), inplace=True), torch.arange(5),
                                   torch.arange(x.shape[0]), torch.arange(2, x.shape[0]), torch.arange(4.5), torch.arange(1, 4, dtype=torch.int32),
                                   torch.arange(0, 6, 2), torch.arange(0, 1, 0.25, dtype=torch.float64)), [(r(4, 3, 2, 2),), (r(6, 3, 2, 2),)], ({0: Dim.AUTO},))
    add("equal_sizes", lambda self, x, y: x @ y.transpose(0, 1), [(r(4, 6), r(4, 6)), (r(7, 6), r(7, 6))], ({0: n}, {0: n}))
    add("formula", lambda self, x, y: torch.cat([x, x]) + y, [(r(2, 3), r(4, 3)), (r(3, 3), r(6, 3))], ({0: n}, {0: 2 * n}))
    add("floats", lambda self, x: x * math.inf + torch.full((2,), float("nan")) - math.inf, [(r(2),)])
    add("complex", lambda self, x: torch.view_as_real(torch.polar(x.abs(), x) * (2 + 1j)), [(r(3),)])
    add("dtypes", lambda self, x: (x.to(torch.float64), x.half(), x.bfloat16().float(), x.int(), x.to(torch.int8), x > 0,
                                   x.to(torch.uint8).to(torch.int16), torch.arange(3)), [(r(3).abs(),)])
    add("float8", lambda self, x: x.to(torch.float8_e4m3fn).float(), [(r(3),)])
    add("formats", lambda self, x: x.contiguous(memory_format=torch.channels_last).clone(memory_format=torch.contiguous_format),
        [(r(2, 3, 4, 4),)])
    add("in_place", lambda self, x: (x.clone().relu_().add_(1).mul_(2), x), [(r(3),)])
    add("writes_input", lambda self, x: (x.add_(1), x * 2)[1], [(r(3),)])
    add("writes_input_plain", lambda self, x: (x.add_(1), x * 2)[1], [(r(3),)], decompose=True)

    def count(self, x):
        self.seen.add_(1)
        self.last.copy_(x)
        return x * self.seen
    for decompose in (False, True):
        add("writes_buffers" + "_plain" * decompose, count, [(r(3),), (r(3),)], parts={"seen": (torch.zeros(()), True), "last": (torch.zeros(3), False)},
            decompose=decompose)
    add("returns_inputs", lambda self, x: (x, self.w, x.view(-1), self.w), [(r(2, 2),)], parts={"w": nn.Parameter(r(3))})
    shared = nn.Linear(4, 4)
    add("shared", lambda self, x: self.a(x) + self.b(x), [(r(2, 4),)], parts={"a": shared, "b": shared})
    base = r(6, 4)
    add("views", lambda self, x: x @ self.w + self.e + self.o, [(r(2, 6),)],
        parts={"w": nn.Parameter(base), "e": (r(1).expand(4), True), "o": (r(10)[3:7], True), "t": (base.t(), True)})
    add("non_persistent", lambda self, x: x + self.b + torch.tensor([1.0, 2.0]), [(r(2),)], parts={"b": (r(2), False)})
    add("empty", lambda self, x: torch.cat([x, self.e]), [(r(0, 3),)], parts={"e": (torch.zeros(0, 3), True)})
    add("scalar", lambda self, x: x + self.s, [(torch.tensor(2.0),)], parts={"s": nn.Parameter(torch.tensor(1.5))})
    add("no_grad", lambda self, x: _no_grad(x) + x, [(r(3),)])

    def cast(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            y = self.l(x)
        return y.float() + self.l(x)
    add("autocast", cast, [(r(2, 4),)], parts={"l": nn.Linear(4, 4)})
    add("condition", lambda self, x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x.sin(), (x,)), [(r(3).abs(),), (-r(3).abs(),)])
    add("condition_size", lambda self, x: torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x.sin(), (x,)), [(r(2, 2),), (r(6, 2),)], first)
    add("while_loop", lambda self, i, x: torch._higher_order_ops.while_loop(lambda i, x: i > 0, lambda i, x: (i - 1, x * 2), (i, x)),
        [(torch.tensor(3), r(2)), (torch.tensor(0), r(2))], strict=True)
    add("map", lambda self, xs, y: torch._higher_order_ops.map(lambda x, y: x * y, xs, y), [(r(4, 3), r(3))], strict=True)
    add("scan", lambda self, s, xs: torch._higher_order_ops.scan(lambda c, x: (c + x, (c * x).clone()), s, xs), [(r(3), r(4, 3))], strict=True)
    add("item", lambda self, x: x * _checked(x.max().int().item()), [(r(3).abs() + 1,)])
    add("nonzero", lambda self, x: (torch.nonzero(x), x[x > 0]), [(r(5),), (r(5),)])
    add("index", lambda self, x, i: (x[:, i], x[i], x[None, 1:, ::2], x[..., -1]), [(r(4, 4), torch.tensor([1, 3]))])
    add("lists", lambda self, x: [*x.split(2), *x.unbind(1), *torch.chunk(x, 2), x.topk(2, 0)[0]], [(r(4, 3),)])
    add("index_put", lambda self, x, i: x.clone().index_put_((i,), torch.zeros(3)), [(r(4, 3), torch.tensor([1, 3]))])
    add("recurrent", lambda self, x: self.l(x)[0] + self.g(x)[0], [(r(3, 2, 4),)],
        parts={"l": nn.LSTM(4, 4), "g": nn.GRU(4, 4)})
    add("attention", lambda self, x: self.m(x, x, x)[0], [(r(3, 2, 4),), (r(5, 2, 4),)], first, parts={"m": nn.MultiheadAttention(4, 2)})
    add("transformer", lambda self, x: self.t(x), [(r(3, 2, 8),)], parts={"t": nn.TransformerEncoderLayer(8, 2, 16)})
    add("embedding", lambda self, i: self.e(i) + self.b(i), [(torch.tensor([[1, 2], [3, 0]]),)],
        parts={"e": nn.Embedding(5, 3), "b": nn.EmbeddingBag(5, 3, mode="sum")} if False else {"e": nn.Embedding(5, 3), "b": nn.Embedding(5, 3)})
    add("fourier", lambda self, x: torch.fft.irfft(torch.fft.rfft(x) * 2), [(r(8),)])
    add("einsum", lambda self, x, y: torch.einsum("bij,bjk->bik", x, y), [(r(2, 3, 4), r(2, 4, 5))])
    add("resize", lambda self, x: F.interpolate(x, scale_factor=2, mode="bilinear") + F.interpolate(x, size=(x.shape[2] * 2, 8), mode="bilinear"),
        [(r(1, 2, 4, 4),), (r(1, 2, 6, 4),)], ({2: Dim("h")},))
    add("unicode", lambda self, größe: größe * 2 + self.gewicht_ä, [(r(2),)], parts={"gewicht_ä": nn.Parameter(r(2))})
    add("random", lambda self, x: torch.randn(3) + F.dropout(x, 0.5, True) + torch.rand_like(x), [(r(3),)])
    add("int_input", lambda self, x, k: x * k, [(r(3), 4), (r(3), 7)], (None, Dim.DYNAMIC))
    add("defaultdict", lambda self, x: collections.defaultdict(list, b=x, a=[x + 1]), [(r(2),)])
    add("deque", lambda self, x: collections.deque([x, x + 1], maxlen=4), [(r(2),)])
    add("number_keys", lambda self, d: {3: d[1] + d[2], 4: d[1]}, [({1: r(2), 2: r(2)},)])
    add("returns_twice", lambda self, x, k: (x * 2, k, None, (y := x + 1), y, y.view(-1), 3), [(r(2, 2), 4)])
    add("same_argument", lambda self, x, y: x.add_(1) + y, [(r(2), r(2))])
    add("no_result", lambda self, x: None, [(r(2),)])
    add("weight_result", lambda self, x: (self.w, self.b, x), [(r(2),)], parts={"w": nn.Parameter(r(2)), "b": (r(3), True)})
    add("square_root", lambda self, x: (x * x.shape[0] ** 0.5, x.shape[0] / 3, torch.sym_float(x.shape[0]), -x.shape[0]),
        [(r(16),), (r(64),)], ({0: Dim.DYNAMIC},))
    add("symbols", lambda self, x: (x[: x.shape[0] // 2], x.new_zeros(max(x.shape[0], 5), min(x.shape[0], 5)), x.split([1, x.shape[0] - 1]),
                                    x.shape[0] % 3, 2 ** x.shape[0]), [(r(4),), (r(7),)], ({0: Dim.DYNAMIC},))
    add("scale", lambda self, x: F.interpolate(x, scale_factor=1.5, mode="bilinear", recompute_scale_factor=True), [(r(1, 2, 4, 4),), (r(1, 2, 8, 6),)],
        ({2: Dim.DYNAMIC, 3: Dim.DYNAMIC},))
    add("size_one", lambda self, x: x.sum(0) + x.shape[0], [(r(4, 2),), (r(1, 2),), (r(2, 2),)], ({0: Dim.DYNAMIC},))
    add("sum_of_sizes", lambda self, x, y: torch.cat([x, y])[1:], [(r(2, 2), r(3, 2)), (r(5, 2), r(1, 2))], ({0: Dim("a")}, {0: Dim("b")}))
    add("next_size", lambda self, x, y: x[1:] + y, [(r(5), r(4)), (r(9), r(8))], ({0: Dim("m") + 1}, {0: Dim("m")}))
    add("foreach", lambda self, x, y: torch._foreach_mul(torch._foreach_add([x, y], [y, x]), 2.0), [(r(2), r(2))])
    add("foreach_in_place", lambda self, x, y: (l := [x.clone(), y.clone()], torch._foreach_add_(l, 1.0), l[0] * l[1])[2], [(r(2), r(2))])
    add("scalars", lambda self, x: (torch.where(x > 0, 1.0, x), torch.where(x > 0, 1, 2), torch.clamp(x, max=0.5), x ** 2, 2 ** x, 1 - x, x // 2, x % 2,
                                    torch.full_like(x, 3), torch.tensor(2.5) * x, x.masked_fill(x > 0, -math.inf)), [(r(5),)])
    add("assignment", _assign, [(r(4, 4),)])
    add("assignment_plain", _assign, [(r(4, 4),)], decompose=True)
    add("complex_weights", lambda self, x: torch.view_as_real(torch.fft.ifft(torch.fft.fft(x) * self.w) @ self.w.conj().T), [(r(3, 3),)],
        parts={"w": nn.Parameter(torch.randn(3, 3, dtype=torch.complex64))})
    add("weights_of_all_dtypes", lambda self, x: [w.float() if "float8" in k else w for k in ALL_DTYPES for w in [getattr(self, "w_" + k)]] + [x * self.w_float64], [(r(2),)],
        parts={"w_" + k: (torch.ones(2).to(getattr(torch, k)), True) for k in ALL_DTYPES})
    channels = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    add("channels_last", lambda self, x: self.c(x.to(memory_format=torch.channels_last)), [(r(2, 3, 5, 5),)], parts={"c": channels})
    add("nested_condition", lambda self, x: torch.cond(x.sum() > 0, lambda x: torch.cond(x.max() > 1, lambda x: (x + self.w, x.clone()), lambda x: (x - 1, x + 2), (x,)),
                                                       lambda x: (x.sin(), x.cos()), (x,)),
        [(r(3).abs() + 2,), (r(3).abs() * 0.1,), (-r(3).abs(),)], parts={"w": nn.Parameter(r(3))})

    add("map_tree", lambda self, xs: torch._higher_order_ops.map(lambda x: {"a": x[0] + x[1], "b": x[0] * 2}, xs), [((r(4, 3), r(4, 3)),)], strict=True)
    add("scan_tree", lambda self, a, b, xs: torch._higher_order_ops.scan(lambda c, x: ((c[0] + x["k"], c[1] * 2), (c[0] - x["j"]).clone()), (a, b), xs),
        [(r(3), r(3), {"k": r(4, 3), "j": r(4, 3)})], strict=True)
    add("scan_reverse", lambda self, a, xs: torch._higher_order_ops.scan(lambda c, x: (c + x, (c * x).clone()), a, xs, dim=1, reverse=True), [(r(3), r(3, 4))], strict=True)
    add("checkpoint", lambda self, x: torch.utils.checkpoint.checkpoint(lambda x: (x * 2).sin(), x, use_reentrant=False), [(r(3),)])

    add("masks", lambda self, x: (torch.masked_select(x, x > 0), x[x > 0] * 2, torch.unique(x.round()), torch.bincount(x.abs().int()),
                                  x.int().repeat_interleave(torch.tensor([1, 2, 0, 3, 1]))), [(r(5),)])
    add("items", lambda self, x: x.new_ones(2) * sum(x.int().tolist()), [(r(3) * 5,)])
    add("item_size", lambda self, x, n: torch.zeros(_checked(n.item())) + x, [(r(1), torch.tensor(4)), (r(1), torch.tensor(7))])
    add("item_float", lambda self, x: x * x[0].item() + (x[1].item() > 0), [(r(3),)])
    add("index_none", lambda self, x, i, j: (x[i, :, j], x[:, i, None, j], x[i[:, None], j]), [(r(4, 4, 4), torch.tensor([1, 3]), torch.tensor([0, 2]))])
    add("windows", lambda self, x: torch.view_as_real(torch.stft(x, 8, window=torch.hann_window(8), return_complex=True)), [(r(32),)])
    add("statistics", lambda self, x: (x.std(), x.var(0), torch.var_mean(x, 1), x.norm(), tuple(torch.aminmax(x)), x.cumsum(0),
                                       x.logsumexp(0), x.prod(), tuple(x.kthvalue(2))), [(r(4, 4),)])
    add("linear_algebra", lambda self, x: (torch.linalg.inv(x), torch.linalg.solve(x, x[0]), torch.linalg.det(x), tuple(torch.linalg.qr(x)), torch.linalg.cholesky(x @ x.T)),
        [(r(4, 4) + 4 * torch.eye(4),)])
    add("losses", lambda self, x, y: (F.cross_entropy(x, y), F.mse_loss(x, x + 1), F.nll_loss(x.log_softmax(1), y), F.binary_cross_entropy_with_logits(x, x.sigmoid()),
                                      F.smooth_l1_loss(x, x * 2), F.kl_div(x.log_softmax(1), x.softmax(1), reduction="batchmean")), [(r(4, 5), torch.tensor([1, 2, 3, 0]))])
    add("convolutions", lambda self, x: (self.t(x), self.s(x), self.d(x), F.unfold(x, 2), F.pixel_shuffle(x, 2), F.grid_sample(x, r(1, 2, 2, 2).new_zeros(2, 2, 2, 2), align_corners=False)),
        [(r(2, 4, 6, 6),)], parts={"t": nn.ConvTranspose2d(4, 2, 3, 2), "s": nn.Conv2d(4, 4, 3, padding="same"), "d": nn.Conv2d(4, 4, 3, groups=4, dilation=2, padding_mode="reflect", padding=1)})
    add("bag", lambda self, i, o: self.b(i, o), [(torch.tensor([1, 2, 3, 0]), torch.tensor([0, 2]))], parts={"b": nn.EmbeddingBag(5, 3, mode="sum")})
    add("mask_attention", lambda self, q, m: (F.scaled_dot_product_attention(q, q, q, attn_mask=m), F.scaled_dot_product_attention(q, q, q, is_causal=True)),
        [(r(2, 2, 4, 8), torch.ones(4, 4).tril().bool())])
    add("mask_attention_plain", lambda self, q, m: (F.scaled_dot_product_attention(q, q, q, attn_mask=m), F.scaled_dot_product_attention(q, q, q, is_causal=True)),
        [(r(2, 2, 4, 8), torch.ones(4, 4).tril().bool())], decompose=True)
    add("recurrent_plain", lambda self, x: self.l(x)[0] + self.g(x)[0], [(r(3, 2, 4),)], parts={"l": nn.LSTM(4, 4), "g": nn.GRU(4, 4)}, decompose=True)
    add("recurrent_states", lambda self, x, h, c: self.l(x, (h, c)), [(r(3, 2, 4), r(4, 2, 4), r(4, 2, 4))],
        parts={"l": nn.LSTM(4, 4, num_layers=2, bidirectional=True)})
    add("spectral", lambda self, x: self.l(x), [(r(2, 4),)], parts={"l": torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))})
    for decompose in (False, True):
        add("batch_norm_training" + "_plain" * decompose, lambda self, x: self.n(x), [(r(4, 3, 5, 5),), (r(4, 3, 5, 5),)],
            parts={"n": nn.BatchNorm2d(3).train()}, decompose=decompose, training=True)
    return all


ALL_DTYPES = "float64 float16 bfloat16 int8 int16 int32 int64 uint8 bool complex64 float8_e4m3fn float8_e5m2".split()


def _assign(self, x):
    y = x.clone()
    y[0] = 1
    y[:, 1] = x[:, 0]
    y[y > 1] = 0
    y[torch.tensor([1, 2])] += 3
    return y


@torch.no_grad()
def _no_grad(x):
    return x.sin() * 2


def _checked(n):
    torch._check(n >= 0)
    return n
