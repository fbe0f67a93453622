"""Writes operators.json: what PyTorch returns for the cases of operators_test.go, which have the same names here. The cases with
arguments in calls.py are in calls.json instead.

Run it with a Python that has torch 2.11.0, on the CPU: python operators.py
Every case starts from the seed 42 and from fresh copies of the inputs.
"""

import json
import pathlib
import struct
from types import SimpleNamespace

import torch
import torch.nn.functional as F

T = torch
torch.manual_seed(0)


def real(*shape, low=-2.0, high=2.0):
    return (torch.rand(*shape) * (high - low) + low).mul(100).round().div(100)


INPUTS = {
    "a": real(2, 3), "b": real(2, 3), "p": real(2, 3, low=0.1), "q": real(2, 3, low=0.1), "u": real(2, 3, low=0.0, high=1.0),
    "g": real(3, 4), "v": real(3), "w": real(3), "one": torch.full((), 3.0), "row": real(1, 3),
    "n": torch.tensor([[-5, 2, 3], [7, -4, 0]]), "o": torch.tensor([[2, 3, 2], [4, 3, 1]]),
    "c": torch.tensor([[True, False, True], [False, False, True]]), "d": torch.tensor([[True, True, False], [False, True, True]]),
    "s": torch.tensor([float("nan"), float("inf"), float("-inf"), 0.5, 1.5, -2.5]),
    "ties": torch.tensor([[2.0, 1.0, 2.0, 1.0]]),
    "x3": real(2, 3, 4), "y3": real(2, 4, 2),
    "seq": real(1, 2, 6), "w1": real(2, 2, 3), "img": real(1, 4, 5, 6), "w2": real(4, 4, 3, 3), "w2g": real(4, 2, 3, 3),
    "wt": real(4, 2, 3, 3), "vol": real(1, 2, 3, 3, 3), "w3": real(2, 2, 2, 2, 2),
    "b2": real(2), "b4": real(4), "p4": real(4, low=0.1), "p5": real(5, low=0.1), "mean4": real(4), "var4": real(4, low=0.1),
    "rows": torch.tensor([2, 0]), "ix": torch.tensor([[2, 0, 1], [1, 1, 0]]),
    "logits": real(4, 5), "target": torch.tensor([1, 0, 4, 2]), "emb": real(6, 3), "tok": torch.tensor([[1, 5, 0], [2, 2, 3]]),
    "query": real(1, 2, 3, 4), "key": real(1, 2, 3, 4), "value": real(1, 2, 3, 4), "key1": real(1, 1, 3, 4), "value1": real(1, 1, 3, 4),
}


def with_out(fn):
    """Runs fn(out) and returns its result and out, which are the same."""
    out = torch.empty(0)
    return fn(out), out


def foreach(fn):
    """Runs fn on the lists ts and us, and returns ts, which fn changes."""
    def run(i):
        ts, us, vs = [i.p, i.v.abs()], [i.q, i.w.abs() + 0.5], [i.a, i.v]
        result = fn(ts, us, vs)
        return ts if result is None or isinstance(result, tuple) and not result else result
    return run


def fused(fn, steps):
    def run(i):
        params, grads, first, second = [i.a, i.v], [i.b, i.w], [i.p, i.v.abs()], [i.q, i.w.abs()]
        fn(params, grads, first, second, [torch.full((), steps) for _ in params])
        return params + first + second
    return run


def adam(name, **options):
    full = dict(beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False, lr=0.01)
    full.update(options)
    op = getattr(torch, name)

    def step(params, grads, first, second, steps):
        largest = [t * 2 for t in second] if full["amsgrad"] else []
        op(params, grads, first, second, largest, steps, **full)
    return step


def sgd(**options):
    full = dict(weight_decay=0.0, momentum=0.0, lr=0.1, dampening=0.0, nesterov=False, maximize=False, is_first_step=False)
    full.update(options)

    def step(params, grads, first, second, steps):
        torch._fused_sgd_(params, grads, first if full["momentum"] else [], **full)
    return step


def unscale(i):
    grads, found = [i.a, i.s], torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.full((), 0.5))
    return [i.a, found]


def update_scale(i):
    scale, tracker = torch.full((), 8.0), torch.full((), 1, dtype=torch.int32)
    return [torch._amp_update_scale_(scale, tracker, torch.zeros(()), 2.0, 0.5, 2), scale, tracker]


CASES = {
    "Empty": lambda i: T.zeros(2, 3, dtype=T.int32),
    "Zeros": lambda i: T.zeros(2, 3), "Zeros/scalar": lambda i: T.zeros((), dtype=T.bool),
    "Ones": lambda i: T.ones(2, dtype=T.float64), "Full": lambda i: T.full((2, 2), 2.5), "Full/int": lambda i: T.full((2,), 7, dtype=T.uint8),
    "Arange": lambda i: T.arange(1, 2, 0.25), "Arange/step": lambda i: T.arange(0, 5, dtype=T.int64),
    "Linspace": lambda i: T.linspace(-1, 1, 5), "Eye": lambda i: T.eye(3),
    "Rand": lambda i: T.rand(2, 3), "Randn": lambda i: T.randn(2, 3), "RandInt": lambda i: T.randint(3, 9, (2, 4)), "RandPerm": lambda i: T.randperm(7),
    "EmptyLike": lambda i: T.zeros_like(i.a), "ZerosLike": lambda i: T.zeros_like(i.n), "OnesLike": lambda i: T.ones_like(i.a),
    "FullLike": lambda i: T.full_like(i.a, -1.5), "RandLike": lambda i: T.rand_like(i.a), "RandnLike": lambda i: T.randn_like(i.a),
    "FillInPlace": lambda i: [i.a.fill_(3), i.a], "ZeroInPlace": lambda i: [i.a.zero_(), i.a], "CopyInPlace": lambda i: [i.a.copy_(i.n[0]), i.a],
    "UniformInPlace": lambda i: [i.a.uniform_(2, 4), i.a], "NormalInPlace": lambda i: [i.a.normal_(5, 0.5), i.a],
    "BernoulliInPlace": lambda i: [i.a.bernoulli_(0.25), i.a], "Bernoulli": lambda i: T.bernoulli(i.u),
    "Clone": lambda i: i.a.clone(), "CloneAs": lambda i: i.img.clone(memory_format=T.channels_last), "Contiguous": lambda i: i.a.t().contiguous(), "Contiguous/channels": lambda i: i.img.contiguous(memory_format=T.channels_last),
    "Detach": lambda i: i.a.detach(), "To": lambda i: i.a.to(T.int64), "To/half": lambda i: i.a.to(T.bfloat16),
    "ToFormat": lambda i: i.img.to(T.float64, memory_format=T.channels_last),

    "Add": lambda i: i.a + i.b, "Add/broadcast": lambda i: i.a + i.v, "Add/promote": lambda i: i.n + i.a,
    "AddScalar": lambda i: i.a + 1.5, "AddScalar/int": lambda i: i.n + 2, "AddScalar/float": lambda i: i.n + 0.5,
    "AddInPlace": lambda i: [i.a.add_(i.b), i.a], "AddScalarInPlace": lambda i: [i.a.add_(2), i.a],
    "AddOut": lambda i: with_out(lambda out: T.add(i.a, i.b, out=out)),
    "AddScaled": lambda i: T.add(i.a, i.b, alpha=-2.5), "AddScaledInPlace": lambda i: [i.a.add_(i.b, alpha=0.5), i.a],
    "Sub": lambda i: i.a - i.b, "SubScalar": lambda i: i.a - 0.5, "SubInPlace": lambda i: [i.a.sub_(i.b), i.a],
    "SubOut": lambda i: with_out(lambda out: T.sub(i.a, i.b, out=out)), "ScalarSub": lambda i: 1 - i.a,
    "Mul": lambda i: i.a * i.b, "MulScalar": lambda i: i.a * 3, "MulInPlace": lambda i: [i.a.mul_(i.b), i.a], "MulScalarInPlace": lambda i: [i.a.mul_(-1), i.a],
    "MulOut": lambda i: with_out(lambda out: T.mul(i.a, i.b, out=out)),
    "Div": lambda i: i.n / i.o, "DivScalar": lambda i: i.a / 4, "DivInPlace": lambda i: [i.a.div_(i.p), i.a], "DivScalarInPlace": lambda i: [i.a.div_(8.0), i.a],
    "DivOut": lambda i: with_out(lambda out: T.div(i.a, i.p, out=out)),
    "DivFloor": lambda i: i.n // i.o, "DivTrunc": lambda i: T.div(i.n, i.o, rounding_mode="trunc"),
    "Remainder": lambda i: i.n % i.o, "RemainderScalar": lambda i: i.n % -3,
    "Pow": lambda i: i.p ** i.a, "PowScalar": lambda i: i.a ** 2, "ScalarPow": lambda i: 2.0 ** i.a,
    "Maximum": lambda i: T.maximum(i.a, i.b), "Minimum": lambda i: T.minimum(i.a, i.b),
    "Lerp": lambda i: T.lerp(i.a, i.b, 0.25), "LerpTensor": lambda i: T.lerp(i.a, i.b, i.u), "LerpInPlace": lambda i: [i.a.lerp_(i.b, 0.75), i.a],
    "AddCMul": lambda i: T.addcmul(i.a, i.b, i.p), "AddCMul/value": lambda i: T.addcmul(i.a, i.b, i.p, value=-0.5),
    "AddCMulInPlace": lambda i: [i.a.addcmul_(i.b, i.p, value=2), i.a],
    "AddCMulOut": lambda i: with_out(lambda out: T.addcmul(i.a, i.b, i.p, value=2, out=out)),
    "AddCDiv": lambda i: T.addcdiv(i.a, i.b, i.p), "AddCDivInPlace": lambda i: [i.a.addcdiv_(i.b, i.p, value=-1), i.a],

    "Abs": lambda i: T.abs(i.a), "Neg": lambda i: -i.a, "NegInPlace": lambda i: [i.a.neg_(), i.a], "Sign": lambda i: T.sign(i.n),
    "Sqrt": lambda i: T.sqrt(i.p), "Rsqrt": lambda i: T.rsqrt(i.q), "Square": lambda i: T.square(i.a), "Reciprocal": lambda i: T.reciprocal(i.p),
    "Exp": lambda i: T.exp(i.a), "Expm1": lambda i: T.expm1(i.a), "Log": lambda i: T.log(i.u), "Log1p": lambda i: T.log1p(i.u), "Log2": lambda i: T.log2(i.q),
    "Sin": lambda i: T.sin(i.a), "Cos": lambda i: T.cos(i.a), "Erf": lambda i: T.erf(i.a),
    "Floor": lambda i: T.floor(i.a), "Ceil": lambda i: T.ceil(i.a), "Round": lambda i: T.round(i.s), "Trunc": lambda i: T.trunc(i.a),
    "Clamp": lambda i: T.clamp(i.a, -0.5, 1), "Clamp/max": lambda i: T.clamp(i.a, max=0), "ClampInPlace": lambda i: [i.a.clamp_(min=0.25), i.a],
    "NaNToNum": lambda i: T.nan_to_num(i.s), "NaNToNum/options": lambda i: T.nan_to_num(i.s, nan=-1.0, posinf=2.0, neginf=-3.0),

    "Eq": lambda i: i.n == i.o, "EqScalar": lambda i: i.n == 3, "Ne": lambda i: i.n != i.o, "NeScalar": lambda i: i.n != 3,
    "Lt": lambda i: i.a < i.b, "LtScalar": lambda i: i.a < 0.5, "Le": lambda i: i.n <= i.o, "LeScalar": lambda i: i.n <= 2,
    "Gt": lambda i: i.a > i.b, "GtScalar": lambda i: i.a > 0.5, "Ge": lambda i: i.n >= i.o, "GeScalar": lambda i: i.n >= 2,
    "LogicalAnd": lambda i: i.c & i.d, "LogicalOr": lambda i: i.c | i.d, "LogicalXor": lambda i: i.c ^ i.d, "LogicalNot": lambda i: T.logical_not(i.n),
    "IsNaN": lambda i: T.isnan(i.s), "IsInf": lambda i: T.isinf(i.s), "IsFinite": lambda i: T.isfinite(i.s),
    "IsClose": lambda i: T.isclose(i.a, i.b), "IsClose/options": lambda i: T.isclose(i.s, i.s + 0.25, atol=0.3, rtol=0.0, equal_nan=True),
    "AllClose": lambda i: T.tensor(T.allclose(i.a, i.a + 1e-9)), "AllClose/no": lambda i: T.tensor(T.allclose(i.a, i.b)),
    "AllClose/options": lambda i: T.tensor(T.allclose(i.a, i.a + 0.5, atol=1.0)),
    "Equal": lambda i: T.tensor(T.equal(i.a, i.a)), "Equal/no": lambda i: T.tensor(T.equal(i.a, i.b)),
    "Where": lambda i: T.where(i.c, i.a, i.b), "WhereScalar": lambda i: T.where(i.c, i.a, 9.0),
    "WhereOut": lambda i: with_out(lambda out: T.where(i.c, i.a, i.b, out=out)),
    "MaskedFill": lambda i: i.a.masked_fill(i.c, -1), "MaskedFillInPlace": lambda i: [i.a.masked_fill_(i.c, 4.5), i.a],

    "Sum": lambda i: i.a.sum(), "Sum/int": lambda i: i.c.sum(), "SumDim": lambda i: i.x3.sum((0, 2)), "SumDim/all": lambda i: i.a.sum(None, dtype=T.float64),
    "SumDim/keep": lambda i: i.a.sum(-1, keepdim=True), "Mean": lambda i: i.a.mean(), "MeanDim": lambda i: i.x3.mean((1,), keepdim=True),
    "MeanDim/all": lambda i: i.n.mean(None, dtype=T.float32), "Prod": lambda i: i.a.prod(), "ProdDim": lambda i: i.o.prod(1),
    "Var": lambda i: i.x3.var((1, 2)), "Var/options": lambda i: i.a.var(None, correction=0, keepdim=True), "Std": lambda i: i.x3.std((2,)),
    "VectorNorm": lambda i: T.linalg.vector_norm(i.a), "VectorNorm/dim": lambda i: T.linalg.vector_norm(i.a, 1, (0,), keepdim=True),
    "Max": lambda i: i.a.max(), "MaxDim": lambda i: i.a.max(1), "MaxDim/keep": lambda i: i.a.max(0, keepdim=True),
    "Min": lambda i: i.a.min(), "MinDim": lambda i: i.a.min(-1), "AMax": lambda i: i.x3.amax((0, 1)), "AMax/all": lambda i: i.a.amax(),
    "AMin": lambda i: i.x3.amin((2,), keepdim=True), "ArgMax": lambda i: i.a.argmax(1), "ArgMin": lambda i: i.a.argmin(0, keepdim=True),
    "Any": lambda i: i.c.any(), "AnyDim": lambda i: i.n.any(1), "All": lambda i: i.c.all(), "AllDim": lambda i: i.n.all(0, keepdim=True),
    "LogSumExp": lambda i: i.x3.logsumexp((1, 2)), "CumSum": lambda i: i.a.cumsum(1),

    "Sort": lambda i: i.a.sort(1), "Sort/options": lambda i: T.sort(i.ties, dim=1, descending=True, stable=True),
    "ArgSort": lambda i: i.a.argsort(0), "ArgSort/options": lambda i: T.argsort(i.ties, dim=1, descending=True, stable=True),
    "TopK": lambda i: i.a.topk(2, 1), "TopK/options": lambda i: i.a.topk(1, 0, largest=False, sorted=False),
    "NonZero": lambda i: i.c.nonzero(), "MaskedSelect": lambda i: i.a.masked_select(i.c),

    "MatMul": lambda i: i.a @ i.g, "MatMul/vector": lambda i: i.x3 @ i.g[0], "MM": lambda i: T.mm(i.a, i.g), "BMM": lambda i: T.bmm(i.x3, i.y3),
    "AddMM": lambda i: T.addmm(i.b4, i.a, i.g), "AddMM/options": lambda i: T.addmm(i.b4, i.a, i.g, beta=0.5, alpha=2),
    "Linear": lambda i: F.linear(i.a, i.g.t(), i.b4), "Linear/nil": lambda i: F.linear(i.a, i.g.t()),
    "Dot": lambda i: T.dot(i.v, i.w), "Outer": lambda i: T.outer(i.v, i.b4), "Einsum": lambda i: T.einsum("bij,bjk->bik", i.x3, i.y3),

    "Conv1d": lambda i: F.conv1d(i.seq, i.w1), "Conv1d/options": lambda i: F.conv1d(i.seq, i.w1, i.b2, stride=2, padding=1, dilation=2),
    "Conv2d": lambda i: F.conv2d(i.img, i.w2, i.b4), "Conv2d/options": lambda i: F.conv2d(i.img, i.w2g, i.b4, (2, 1), (1, 0), (1, 2), 2),
    "Conv3d": lambda i: F.conv3d(i.vol, i.w3), "Conv3d/options": lambda i: F.conv3d(i.vol, i.w3, i.b2, padding=(1, 0, 0), stride=(2, 1, 1)),
    "ConvTranspose2d": lambda i: F.conv_transpose2d(i.img, i.wt),
    "ConvTranspose2d/options": lambda i: F.conv_transpose2d(i.img, i.wt, i.b4, stride=2, padding=1, output_padding=1, groups=2, dilation=(1, 2)),

    "MaxPool2d": lambda i: F.max_pool2d(i.img, 2), "MaxPool2d/options": lambda i: F.max_pool2d(i.img, (3, 2), stride=(2, 2), padding=(1, 0), dilation=(1, 2), ceil_mode=True),
    "MaxPool2dWithIndices": lambda i: F.max_pool2d(i.img, 2, return_indices=True),
    "AvgPool2d": lambda i: F.avg_pool2d(i.img, 2), "AvgPool2d/options": lambda i: F.avg_pool2d(i.img, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "AvgPool2d/divisor": lambda i: F.avg_pool2d(i.img, 3, padding=1, divisor_override=2),
    "AdaptiveAvgPool2d": lambda i: F.adaptive_avg_pool2d(i.img, (2, 3)), "AdaptiveMaxPool2d": lambda i: F.adaptive_max_pool2d(i.img, (2, 2), return_indices=True),
    "UpsampleNearest2d": lambda i: F.interpolate(i.img, (7, 3)), "UpsampleBilinear2d": lambda i: F.interpolate(i.img, (3, 8), mode="bilinear", align_corners=False),
    "UpsampleBilinear2d/corners": lambda i: F.interpolate(i.img, (3, 8), mode="bilinear", align_corners=True),

    "BatchNorm": lambda i: [F.batch_norm(i.img, i.mean4, i.var4, i.p4, i.b4), i.mean4, i.var4],
    "BatchNorm/training": lambda i: [F.batch_norm(i.img, i.mean4, i.var4, i.p4, i.b4, training=True), i.mean4, i.var4],
    "BatchNorm/options": lambda i: [F.batch_norm(i.img, i.mean4, i.var4, training=True, momentum=0.5, eps=0.01), i.mean4, i.var4],
    "InstanceNorm": lambda i: [F.instance_norm(i.img, i.mean4, i.var4, i.p4, i.b4), i.mean4],
    "InstanceNorm/options": lambda i: [F.instance_norm(i.img, i.mean4, i.var4, use_input_stats=False, eps=0.5), i.mean4],
    "LayerNorm": lambda i: F.layer_norm(i.a, (3,), i.v, i.w), "LayerNorm/options": lambda i: F.layer_norm(i.x3, (3, 4), eps=0.5),
    "GroupNorm": lambda i: F.group_norm(i.img, 2, i.p4, i.b4), "GroupNorm/options": lambda i: F.group_norm(i.img, 4, eps=0.5),

    "ReLU": lambda i: F.relu(i.a), "ReLUInPlace": lambda i: [F.relu_(i.a), i.a], "ReLU6": lambda i: F.relu6(i.n.float()),
    "ReLU6InPlace": lambda i: [F.relu6(i.emb.mul_(5), inplace=True), i.emb],
    "LeakyReLU": lambda i: F.leaky_relu(i.a), "LeakyReLU/slope": lambda i: F.leaky_relu(i.a, 0.2), "ELU": lambda i: F.elu(i.a), "ELU/alpha": lambda i: F.elu(i.a, 0.5),
    "GELU": lambda i: F.gelu(i.a), "GELUTanh": lambda i: F.gelu(i.a, approximate="tanh"), "SiLU": lambda i: F.silu(i.a),
    "SiLUInPlace": lambda i: [F.silu(i.a, inplace=True), i.a], "HardSwishInPlace": lambda i: [F.hardswish(i.a, inplace=True), i.a],
    "HardSwish": lambda i: F.hardswish(i.a), "HardSigmoid": lambda i: F.hardsigmoid(i.a), "HardTanh": lambda i: F.hardtanh(i.a), "HardTanh/bounds": lambda i: F.hardtanh(i.a, -0.5, 0.25),
    "Sigmoid": lambda i: T.sigmoid(i.a), "LogSigmoid": lambda i: F.logsigmoid(i.a), "Tanh": lambda i: T.tanh(i.a),
    "Softplus": lambda i: F.softplus(i.a), "Softplus/options": lambda i: F.softplus(i.a, beta=2, threshold=1),
    "Softmax": lambda i: F.softmax(i.a, 1), "LogSoftmax": lambda i: F.log_softmax(i.a, 0),
    "Dropout": lambda i: F.dropout(i.img, 0.5, True), "Dropout/eval": lambda i: F.dropout(i.a, 0.5, False),

    "Embedding": lambda i: F.embedding(i.tok, i.emb), "Embedding/padding": lambda i: F.embedding(i.tok, i.emb, padding_idx=0),
    "OneHot": lambda i: F.one_hot(i.target, 6), "OneHot/unknown": lambda i: F.one_hot(i.target),
    "ScaledDotProductAttention": lambda i: F.scaled_dot_product_attention(i.query, i.key, i.value),
    "ScaledDotProductAttention/causal": lambda i: F.scaled_dot_product_attention(i.query, i.key, i.value, is_causal=True, scale=0.25),
    "ScaledDotProductAttention/mask": lambda i: F.scaled_dot_product_attention(i.query, i.key, i.value, attn_mask=T.eye(3).bool()),
    "ScaledDotProductAttention/grouped": lambda i: F.scaled_dot_product_attention(i.query, i.key1, i.value1, enable_gqa=True),

    "CrossEntropy": lambda i: F.cross_entropy(i.logits, i.target), "CrossEntropyWith": lambda i: F.cross_entropy(i.logits, i.target),
    "CrossEntropyWith/options": lambda i: F.cross_entropy(i.logits, i.target, i.p5, reduction="sum", ignore_index=0, label_smoothing=0.1),
    "CrossEntropyWith/none": lambda i: F.cross_entropy(i.logits, i.target, reduction="none"),
    "NLLLoss": lambda i: F.nll_loss(i.logits, i.target), "NLLLoss/options": lambda i: F.nll_loss(i.logits, i.target, i.p5, ignore_index=4, reduction="none"),
    "BinaryCrossEntropyWithLogits": lambda i: F.binary_cross_entropy_with_logits(i.a, i.u),
    "BinaryCrossEntropyWithLogits/options": lambda i: F.binary_cross_entropy_with_logits(i.a, i.u, i.p, pos_weight=i.q, reduction="sum"),
    "MSELoss": lambda i: F.mse_loss(i.a, i.b), "MSELoss/none": lambda i: F.mse_loss(i.a, i.b, reduction="none"), "L1Loss": lambda i: F.l1_loss(i.a, i.b, reduction="sum"),
    "SmoothL1Loss": lambda i: F.smooth_l1_loss(i.a, i.b), "SmoothL1Loss/options": lambda i: F.smooth_l1_loss(i.a, i.b, reduction="none", beta=0.25),
    "KLDiv": lambda i: (i.u * (i.u.log() - i.a)).mean(), "KLDiv/options": lambda i: F.kl_div(i.a, i.b, reduction="sum", log_target=True),

    "View": lambda i: i.a.view(3, 2), "View/infer": lambda i: i.a.view(-1), "Reshape": lambda i: i.a.t().reshape(2, -1), "Flatten": lambda i: i.img.flatten(1, -1),
    "Permute": lambda i: i.x3.permute(2, 0, 1), "Transpose": lambda i: i.x3.transpose(0, -1), "MoveDim": lambda i: i.x3.movedim(0, 2),
    "Squeeze": lambda i: i.seq.squeeze((0, 1)), "Unsqueeze": lambda i: i.a.unsqueeze(1), "Expand": lambda i: i.row.expand(2, -1), "Repeat": lambda i: i.a.repeat(2, 1, 2),
    "RepeatInterleave": lambda i: i.a.repeat_interleave(2, 1), "Cat": lambda i: T.cat([i.a, i.b, i.row], 0), "CatOut": lambda i: with_out(lambda out: T.cat([i.a, i.b], 1, out=out)),
    "Stack": lambda i: T.stack([i.a, i.b], -1), "Split": lambda i: i.g.split(3, 1), "SplitWithSizes": lambda i: i.g.split([1, 0, 3], 1), "Chunk": lambda i: i.g.chunk(2, 0),
    "Unbind": lambda i: i.a.unbind(1), "Narrow": lambda i: i.g.narrow(1, 1, 2), "Slice": lambda i: i.g[:, 1:4:2], "Slice/end": lambda i: i.g[-2:], "Slice/all": lambda i: i.g[:],
    "Select": lambda i: i.g.select(1, -1), "Diagonal": lambda i: i.g.diagonal(1), "Diagonal/dims": lambda i: i.x3.diagonal(0, 1, 2),
    "Triu": lambda i: i.g.triu(1), "Tril": lambda i: i.g.tril(-1), "Flip": lambda i: i.x3.flip(0, 2), "Roll": lambda i: i.g.roll((1, -1), (0, 1)),
    "Pad": lambda i: F.pad(i.a, (1, 0, 0, 2)), "Pad/value": lambda i: F.pad(i.a, (1, -1), value=7.0), "Pad/reflect": lambda i: F.pad(i.img, (1, 2, 2, 1), mode="reflect"),
    "Meshgrid": lambda i: T.meshgrid(i.v, i.b2, indexing="ij"), "Meshgrid/xy": lambda i: T.meshgrid(i.v, i.b2, indexing="xy"),

    "IndexSelect": lambda i: i.g.index_select(0, i.rows), "IndexSelectOut": lambda i: with_out(lambda out: T.index_select(i.g, 1, i.rows, out=out)),
    "IndexAdd": lambda i: i.emb.index_add(0, i.rows, i.a), "IndexAdd/alpha": lambda i: i.emb.index_add(0, i.rows, i.a, alpha=-2),
    "Gather": lambda i: i.a.gather(1, i.ix), "Scatter": lambda i: i.p.scatter(1, i.ix[:, :1], i.b), "ScatterScalar": lambda i: i.p.scatter(1, i.ix[:, 1:], 5),
    "ScatterAdd": lambda i: i.a.scatter_add(1, i.ix, i.b), "Index": lambda i: i.g[i.rows, i.target[:2]], "Index/nil": lambda i: i.g[:, i.rows], "Index/mask": lambda i: i.a[i.c],
    "IndexPut": lambda i: i.a.index_put((i.c,), i.one), "IndexPut/accumulate": lambda i: i.v.index_put((T.cat([i.rows, i.rows]),), i.one, accumulate=True),
    "IndexPutInPlace": lambda i: [i.g.index_put_((i.rows,), i.b4), i.g],

    "ForeachAdd": foreach(lambda t, u, v: T._foreach_add(t, u)), "ForeachAdd/alpha": foreach(lambda t, u, v: T._foreach_add(t, u, alpha=-2)),
    "ForeachAddScalar": foreach(lambda t, u, v: T._foreach_add(t, 1.5)), "ForeachAddInPlace": foreach(lambda t, u, v: T._foreach_add_(t, u, alpha=0.5)),
    "ForeachAddScalarInPlace": foreach(lambda t, u, v: T._foreach_add_(t, 2)), "ForeachSub": foreach(lambda t, u, v: T._foreach_sub(t, u)),
    "ForeachSubInPlace": foreach(lambda t, u, v: T._foreach_sub_(t, u, alpha=3)), "ForeachMul": foreach(lambda t, u, v: T._foreach_mul(t, u)),
    "ForeachMulScalar": foreach(lambda t, u, v: T._foreach_mul(t, 3)), "ForeachMulInPlace": foreach(lambda t, u, v: T._foreach_mul_(t, u)),
    "ForeachMulScalarInPlace": foreach(lambda t, u, v: T._foreach_mul_(t, 0.5)), "ForeachMulTensorInPlace": foreach(lambda t, u, v: T._foreach_mul_(t, T.full((), 3.0))),
    "ForeachDiv": foreach(lambda t, u, v: T._foreach_div(t, u)), "ForeachDivInPlace": foreach(lambda t, u, v: T._foreach_div_(t, u)),
    "ForeachDivScalarInPlace": foreach(lambda t, u, v: T._foreach_div_(t, 4)), "ForeachDivTensorInPlace": foreach(lambda t, u, v: T._foreach_div_(t, T.full((), 3.0))),
    "ForeachNegInPlace": foreach(lambda t, u, v: T._foreach_neg_(t)), "ForeachSqrt": foreach(lambda t, u, v: T._foreach_sqrt(t)),
    "ForeachSqrtInPlace": foreach(lambda t, u, v: T._foreach_sqrt_(t)), "ForeachReciprocalInPlace": foreach(lambda t, u, v: T._foreach_reciprocal_(t)),
    "ForeachMaximumInPlace": foreach(lambda t, u, v: T._foreach_maximum_(t, u)), "ForeachClampMinInPlace": foreach(lambda t, u, v: T._foreach_clamp_min_(t, 0.75)),
    "ForeachClampMaxInPlace": foreach(lambda t, u, v: T._foreach_clamp_max_(t, 0.75)), "ForeachLerpInPlace": foreach(lambda t, u, v: T._foreach_lerp_(t, u, 0.25)),
    "ForeachAddCMulInPlace": foreach(lambda t, u, v: T._foreach_addcmul_(t, u, v)), "ForeachAddCDivInPlace": foreach(lambda t, u, v: T._foreach_addcdiv_(t, v, u, -0.5)),
    "ForeachCopyInPlace": foreach(lambda t, u, v: T._foreach_copy_(t, u)), "ForeachZeroInPlace": foreach(lambda t, u, v: T._foreach_zero_(t)),
    "ForeachNorm": foreach(lambda t, u, v: T._foreach_norm(v)), "ForeachNorm/order": foreach(lambda t, u, v: T._foreach_norm(v, 1)),

    "FusedSGDInPlace": fused(sgd(), 1.0),
    "FusedSGDInPlace/options": fused(sgd(weight_decay=0.1, momentum=0.9, dampening=0.2, maximize=True), 1.0),
    "FusedSGDInPlace/nesterov": fused(sgd(momentum=0.9, nesterov=True, is_first_step=True), 1.0),
    "FusedSGDTensorLRInPlace": fused(sgd(lr=T.full((), 0.125), momentum=0.9, nesterov=True), 1.0),
    "FusedAdamInPlace": fused(adam("_fused_adam_"), 2.0),
    "FusedAdamInPlace/options": fused(adam("_fused_adam_", beta1=0.8, beta2=0.9, weight_decay=0.1, eps=0.1, amsgrad=True, maximize=True), 2.0),
    "FusedAdamInPlace/scaled": fused(adam("_fused_adam_", grad_scale=T.full((), 4.0), found_inf=T.zeros(())), 2.0),
    "FusedAdamTensorLRInPlace": fused(adam("_fused_adam_", lr=T.full((), 0.125), weight_decay=0.1), 2.0),
    "FusedAdamWInPlace": fused(adam("_fused_adamw_", weight_decay=0.1), 3.0),
    "FusedAdamWTensorLRInPlace": fused(adam("_fused_adamw_", lr=T.full((), 0.125), weight_decay=0.1), 3.0),
    "AMPForeachNonFiniteCheckAndUnscaleInPlace": unscale, "AMPUpdateScaleInPlace": update_scale,
}


def number(v):
    """The shortest number that is the same in float32; JSON has no NaN and no infinities."""
    if isinstance(v, (bool, int)):
        return int(v)
    if v != v or v in (float("inf"), float("-inf")):
        return str(v)
    for digits in range(1, 9):
        short = float(f"{v:.{digits}g}")
        if struct.pack("f", short) == struct.pack("f", v):
            return short
    return float(f"{v:.9g}")


def describe(t):
    """A tensor as JSON; the strides are left out if they are those of a dense row-major tensor."""
    d = {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape)}
    if t.stride() != torch.empty(t.shape).stride():
        d["strides"] = list(t.stride())
    if t.is_complex():  # real and imaginary parts take turns
        t = torch.view_as_real(t.resolve_conj())
    return d | {"data": [number(v) for v in t.flatten().tolist()]}


def main():
    from calls import ARGUMENTS

    cases = {}
    for name, case in CASES.items():
        if name in ARGUMENTS:
            continue
        torch.manual_seed(42)
        result = case(SimpleNamespace(**{k: t.clone() for k, t in INPUTS.items()}))
        cases[name] = [describe(t) for t in ([result] if isinstance(result, torch.Tensor) else result)]
    lines = ['{"torch": ' + json.dumps(torch.__version__.split("+")[0]) + ",", '"inputs": {']
    lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(describe(t))}" for k, t in INPUTS.items()))
    lines.append('},\n"cases": {')
    lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in cases.items()))
    lines.append("}}\n")
    pathlib.Path(__file__).with_name("operators.json").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
