"""Writes testdata/: what PyTorch and torchvision make of the models and layers that the Go tests beside it build.

Needs torch 2.11.0 and torchvision 0.26.0, on the CPU. Everything follows from seeds and from ramp(), a formula.
"""
import json
import pathlib

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from resnet20 import ResNet20

FOLDER = pathlib.Path(__file__).parent / "testdata"
SEED = 20


def ramp(*shape, start=0):
    """Float32 numbers in [-0.5, 0.5) that look random, the same in Go."""
    n = torch.Size(shape).numel()
    bits = torch.arange(start, start + n, dtype=torch.int64) * 2654435761 & 0xFFFFFFFF
    return (bits.double() / 2**32 - 0.5).float().reshape(shape)


def number(v):
    return float(f"{float(v):.9g}")


def digest(t):
    """Two sums over t: one that changes when elements change places, and that of the magnitudes."""
    t = t.detach().double().contiguous()
    return [number((t * ramp(*t.shape).double()).sum()), number(t.abs().sum())]


def state_of(model):
    return [[name, list(t.shape), *digest(t)] for name, t in model.state_dict().items()]


def model_fixture(make, images=None):
    torch.manual_seed(SEED)
    model = make()
    fixture = {"seed": SEED, "parameters": sum(p.numel() for p in model.parameters()), "state": state_of(model)}
    if images is None:
        return fixture
    if isinstance(model, torchvision.models.VisionTransformer):  # whose head begins as zeros
        with torch.no_grad():
            model.heads.head.weight.copy_(ramp(*model.heads.head.weight.shape))
    x = ramp(*images)
    logits = model(x)
    logits, *heads = logits if isinstance(logits, tuple) else [logits]
    labels = torch.arange(images[0]) * 3 % logits.shape[1]
    loss = F.cross_entropy(logits, labels)
    for head in heads:
        loss = loss + 0.3 * F.cross_entropy(head, labels)
    loss.backward()
    step = max(1, logits.shape[1] // 20)
    fixture |= {
        "images": list(images),
        "logits": [number(v) for v in logits.detach()[:, ::step].flatten()],
        **({"heads": [[number(v) for v in head.detach()[:, ::step].flatten()] for head in heads]} if heads else {}),
        "loss": number(loss.detach()),
        "gradients": [number(p.grad.double().norm()) for p in model.parameters()],
        "buffers": [digest(b)[1] for b in model.buffers()],
    }
    model.eval()
    with torch.no_grad():
        fixture["evaluated"] = [number(v) for v in model(x)[:, ::step].flatten()]
    return fixture


MODELS = {
    "resnet18": (torchvision.models.resnet18, (4, 3, 64, 64)),
    "resnet34": (torchvision.models.resnet34, None),
    "resnet50": (torchvision.models.resnet50, (4, 3, 64, 64)),
    "resnet101": (torchvision.models.resnet101, None),
    "resnext50_32x4d": (torchvision.models.resnext50_32x4d, (2, 3, 64, 64)),
    "wide_resnet50_2": (torchvision.models.wide_resnet50_2, (2, 3, 64, 64)),
    "resnet20": (ResNet20, (8, 3, 32, 32)),
    "resnet20_pad": (lambda: ResNet20(pad_shortcut=True), (8, 3, 32, 32)),
    "mobilenet_v2": (lambda: torchvision.models.mobilenet_v2(dropout=0.0), (4, 3, 64, 64)),
    "mobilenet_v2_third": (lambda: torchvision.models.mobilenet_v2(width_mult=0.35, dropout=0.3), None),
    "efficientnet_b0": (lambda: torchvision.models.efficientnet_b0(dropout=0.0, stochastic_depth_prob=0.0), (4, 3, 64, 64)),
    "vit_b_16": (lambda: torchvision.models.vit_b_16(image_size=64), (2, 3, 64, 64)),
    "googlenet": (lambda: torchvision.models.googlenet(init_weights=True, dropout=0.0, dropout_aux=0.0), (4, 3, 64, 64)),
    "googlenet_plain": (
        lambda: torchvision.models.googlenet(init_weights=True, aux_logits=False, transform_input=True, dropout=0.0),
        (4, 3, 64, 64),
    ),
    "inception_v3": (lambda: torchvision.models.inception_v3(init_weights=True, dropout=0.0), (3, 3, 299, 299)),
    "squeezenet1_0": (lambda: torchvision.models.squeezenet1_0(dropout=0.0), (4, 3, 64, 64)),
    "squeezenet1_1": (lambda: torchvision.models.squeezenet1_1(dropout=0.0), (4, 3, 64, 64)),
    "mlp": (lambda: nn.Sequential(nn.Flatten(), *torchvision.ops.MLP(3 * 16 * 16, [64, 32, 10])), (8, 3, 16, 16)),
}


def mlp_names(fixture):
    """The Flatten in front is ours: torchvision's names begin behind it."""
    for entry in fixture["state"]:
        position, name = entry[0].split(".")
        entry[0] = f"{int(position) - 1}.{name}"


def truncated(layer, **bounds):
    nn.init.trunc_normal_(layer.weight, **bounds)
    return layer


class SelfAttention(nn.MultiheadAttention):
    """Attention of one input to itself, which is all that ours does."""

    def __init__(self, causal=False, **options):
        super().__init__(6, 2, batch_first=True, **options)
        self.causal = causal

    def forward(self, x):
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1) if self.causal else None
        return super().forward(x, x, x, need_weights=False, attn_mask=mask)[0]


# For each name: a function that makes the module, and the input or its shape, which is a tuple.
LAYERS = {
    "linear": (lambda: nn.Linear(5, 3), (4, 5)),
    "linear_no_bias": (lambda: nn.Linear(5, 3, bias=False), (2, 4, 5)),
    "linear_truncated": (lambda: truncated(nn.Linear(5, 3), mean=0.2, std=1.5, a=-1, b=0.75), (4, 5)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 7, 8)),
    "conv2d_rectangular": (lambda: nn.Conv2d(3, 4, (3, 5), stride=(2, 1), padding=(1, 2)), (2, 3, 9, 8)),
    "conv2d_dilated": (lambda: nn.Conv2d(2, 3, 3, dilation=(2, 1), bias=False), (2, 2, 9, 8)),
    "conv2d_groups": (lambda: nn.Conv2d(6, 9, 3, groups=3, padding=1), (2, 6, 5, 6)),
    "conv2d_depthwise": (lambda: nn.Conv2d(4, 8, 3, groups=4, stride=2), (2, 4, 9, 9)),
    "conv2d_reflect": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="reflect"), (2, 2, 5, 6)),
    "conv2d_replicate": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="replicate"), (2, 2, 5, 6)),
    "conv2d_circular": (lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), stride=2, padding_mode="circular"), (2, 2, 5, 6)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 3, 4, 5)),
    "conv_transpose2d_options": (
        lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), groups=2, dilation=(2, 1)),
        (2, 4, 4, 5),
    ),
    "conv_transpose2d_no_bias": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2, bias=False), (2, 3, 4, 5)),
    "batch_norm2d": (lambda: nn.BatchNorm2d(3), (4, 3, 5, 6)),
    "batch_norm2d_eval": (lambda: nn.BatchNorm2d(3).eval(), (4, 3, 5, 6)),
    "batch_norm2d_options": (lambda: nn.BatchNorm2d(3, eps=0.1, momentum=0.3), (4, 3, 5, 6)),
    "batch_norm2d_momentum_zero": (lambda: nn.BatchNorm2d(3, momentum=0.0), (4, 3, 5, 6)),
    "batch_norm2d_cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), (4, 3, 5, 6)),
    "batch_norm2d_no_affine": (lambda: nn.BatchNorm2d(3, affine=False), (4, 3, 5, 6)),
    "batch_norm2d_no_statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False).eval(), (4, 3, 5, 6)),
    "layer_norm": (lambda: nn.LayerNorm(6), (2, 3, 6)),
    "layer_norm_two": (lambda: nn.LayerNorm((3, 6), eps=0.1), (2, 3, 6)),
    "layer_norm_no_affine": (lambda: nn.LayerNorm(6, elementwise_affine=False), (2, 3, 6)),
    "layer_norm_no_bias": (lambda: nn.LayerNorm(6, bias=False), (2, 3, 6)),
    "embedding": (lambda: nn.Embedding(7, 4), torch.tensor([[1, 6, 3], [0, 1, 1]])),
    "embedding_padding": (lambda: nn.Embedding(7, 4, padding_idx=-6), torch.tensor([[1, 6, 3], [0, 1, 1]])),
    "embedding_padding_first": (lambda: nn.Embedding(7, 4, padding_idx=0), torch.tensor([[1, 6, 3], [0, 1, 1]])),
    "relu": (nn.ReLU, (4, 5)),
    "relu_in_place": (lambda: nn.Sequential(nn.Linear(5, 3), nn.ReLU(inplace=True)), (4, 5)),
    "relu6": (lambda: nn.Sequential(nn.BatchNorm2d(3), nn.ReLU6()), (4, 3, 5, 6)),
    "silu": (nn.SiLU, (4, 5)),
    "multihead_attention": (SelfAttention, (2, 5, 6)),
    "multihead_attention_causal": (lambda: SelfAttention(causal=True), (2, 5, 6)),
    "stochastic_depth": (lambda: torchvision.ops.StochasticDepth(0.4, "row"), (9, 3, 2)),
    "leaky_relu": (nn.LeakyReLU, (4, 5)),
    "leaky_relu_slope": (lambda: nn.LeakyReLU(0.2), (4, 5)),
    "sigmoid": (nn.Sigmoid, (4, 5)),
    "tanh": (nn.Tanh, (4, 5)),
    "gelu": (nn.GELU, (4, 5)),
    "gelu_tanh": (lambda: nn.GELU(approximate="tanh"), (4, 5)),
    "hard_swish": (nn.Hardswish, (4, 5)),
    "max_pool2d": (lambda: nn.MaxPool2d(2), (2, 3, 5, 6)),
    "max_pool2d_options": (lambda: nn.MaxPool2d((3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), ceil_mode=True), (2, 3, 8, 7)),
    "avg_pool2d": (lambda: nn.AvgPool2d(2), (2, 3, 5, 6)),
    "avg_pool2d_options": (
        lambda: nn.AvgPool2d((3, 2), stride=(2, 1), padding=(1, 1), ceil_mode=True, count_include_pad=False),
        (2, 3, 8, 7),
    ),
    "avg_pool2d_divisor": (lambda: nn.AvgPool2d(2, padding=1, divisor_override=3), (2, 3, 8, 7)),
    "adaptive_avg_pool2d": (lambda: nn.AdaptiveAvgPool2d(1), (2, 3, 5, 6)),
    "adaptive_avg_pool2d_size": (lambda: nn.AdaptiveAvgPool2d((2, 3)), (2, 3, 5, 7)),
    "flatten": (nn.Flatten, (2, 3, 4, 5)),
    "flatten_middle": (lambda: nn.Flatten(2, 3), (2, 3, 4, 5, 2)),
    "dropout": (lambda: nn.Dropout(0.3), (4, 50)),
    "dropout_eval": (lambda: nn.Dropout(0.3).eval(), (4, 50)),
    "identity": (nn.Identity, (4, 5)),
    "sequential": (lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), (4, 5)),
}


def layer_fixture(make, given):
    torch.manual_seed(SEED)
    layer = make()
    fixture = {"state": state_of(layer)}
    leaf = given if isinstance(given, torch.Tensor) else ramp(*given).requires_grad_()
    fixture["input"] = list(leaf.shape)
    torch.manual_seed(SEED + 1)
    out = layer(leaf)
    # The factors differ from the input, because a norm has no gradient in the direction of its input.
    (out * ramp(*out.shape, start=1000) ** 2).sum().backward()
    fixture["output"] = [list(out.shape), *digest(out)]
    fixture["gradients"] = [digest(p.grad) for p in layer.parameters()]
    if leaf.grad is not None:
        fixture["input_gradient"] = digest(leaf.grad)
    fixture["buffers"] = [digest(b)[1] for b in layer.buffers()]
    return fixture


labels = torch.tensor([2, 0, 1, -100, 4, 3])
zero_ignored = torch.tensor([2, 0, 1, 0, 4, 3])
weight = ramp(5).abs() + 0.1
pixels = torch.arange(24).reshape(2, 3, 4) % 5

# For each name: a loss as a function of its first argument, and the shape of that argument. The
# gradient is that with respect to the argument.
LOSSES = {
    "cross_entropy": (lambda x: F.cross_entropy(x, labels), (6, 5)),
    "cross_entropy_sum": (lambda x: F.cross_entropy(x, labels, reduction="sum"), (6, 5)),
    "cross_entropy_none": (lambda x: F.cross_entropy(x, labels, reduction="none"), (6, 5)),
    "cross_entropy_ignore_0": (lambda x: F.cross_entropy(x, zero_ignored, ignore_index=0), (6, 5)),
    "cross_entropy_smoothing": (lambda x: F.cross_entropy(x, labels, label_smoothing=0.1), (6, 5)),
    "cross_entropy_weight": (lambda x: F.cross_entropy(x, labels, weight=weight, label_smoothing=0.2), (6, 5)),
    "cross_entropy_pixels": (lambda x: F.cross_entropy(x, pixels), (2, 5, 3, 4)),
    "cross_entropy_probabilities": (lambda x: F.cross_entropy(x, ramp(6, 5).abs()), (6, 5)),
    "nll": (lambda x: F.nll_loss(F.log_softmax(x, 1), labels), (6, 5)),
    "nll_options": (lambda x: F.nll_loss(F.log_softmax(x, 1), zero_ignored, weight=weight, ignore_index=0, reduction="sum"), (6, 5)),
    "bce_with_logits": (lambda x: F.binary_cross_entropy_with_logits(x, ramp(6, 5).abs()), (6, 5)),
    "bce_with_logits_options": (
        lambda x: F.binary_cross_entropy_with_logits(x, ramp(6, 5).abs(), weight=weight, pos_weight=weight + 1, reduction="none"),
        (6, 5),
    ),
    "mse": (lambda x: F.mse_loss(x, ramp(6, 5).abs()), (6, 5)),
    "mse_sum": (lambda x: F.mse_loss(x, ramp(6, 5).abs(), reduction="sum"), (6, 5)),
}


def loss_fixture(loss, shape):
    leaf = ramp(*shape).requires_grad_()
    out = loss(leaf)
    out.sum().backward()
    return {"loss": [list(out.shape), *digest(out)], "gradient": digest(leaf.grad)}


def write(name, fixture):
    """One line for each entry of the first two levels, so that a change can be read."""
    def lines(value, depth):
        if depth == 0 or not isinstance(value, (dict, list)) or not value:
            return json.dumps(value, separators=(",", ":"))
        if isinstance(value, dict):
            return "{\n" + ",\n".join(f"{json.dumps(k)}: {lines(v, depth - 1)}" for k, v in value.items()) + "\n}"
        if isinstance(value[0], list):
            return "[\n" + ",\n".join(lines(v, 0) for v in value) + "\n]"
        return lines(value, 0)

    (FOLDER / f"{name}.json").write_text(lines(fixture, 2) + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    FOLDER.mkdir(exist_ok=True)
    for name, (make, images) in MODELS.items():
        fixture = model_fixture(make, images)
        if name == "mlp":
            mlp_names(fixture)
        write(name, fixture)
    write("layers", {name: layer_fixture(*case) for name, case in LAYERS.items()})
    write("losses", {name: loss_fixture(*case) for name, case in LOSSES.items()})
