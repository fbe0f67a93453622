"""Writes testdata/: what PyTorch's modules, losses, optimizers and schedules do in 20 steps of training.

Needs torch 2.11.0, on the CPU. Everything follows from seeds and from ramp(), a formula. LAMB and Lion, which torch.optim
lacks, are written here from their papers.
"""
import json
import pathlib

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

FOLDER = pathlib.Path(__file__).parent / "testdata"
SEED, STEPS, LR = 20, 20, 0.1


def ramp(*shape, start=0):
    """Float32 numbers in [-0.5, 0.5) that look random, the same in Go."""
    n = torch.Size(shape).numel()
    bits = torch.arange(start, start + n, dtype=torch.int64) * 2654435761 & 0xFFFFFFFF
    return (bits.double() / 2**32 - 0.5).float().reshape(shape)


def more(x, *shape, start):
    """Another input, of the dtype of x."""
    return ramp(*shape, start=start).to(x.dtype)


class Self(nn.Module):
    """A module with one input, whose state is that of the module in it."""

    def __init__(self, module, call):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, x):
        return self.call(self.module, x)


def with_state(m, x):
    n, d = x.shape[0 if m.batch_first else 1], m.num_layers * (2 if m.bidirectional else 1)
    width = getattr(m, "proj_size", 0) or m.hidden_size
    state = more(x, d, n, width, start=5000)
    if isinstance(m, nn.LSTM):
        out, (h, c) = m(x, (state, more(x, d, n, m.hidden_size, start=6000)))
        return torch.cat([out.flatten(), h.flatten(), c.flatten()])
    out, h = m(x, state)
    return torch.cat([out.flatten(), h.flatten()])


def with_lengths(m, x):
    lengths = torch.tensor([2, 5, 3, 5])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=m.batch_first, enforce_sorted=False)
    out, last = m(packed)
    out, _ = nn.utils.rnn.pad_packed_sequence(out, batch_first=m.batch_first, total_length=6)
    return torch.cat([out.flatten(), *(t.flatten() for t in (last if isinstance(last, tuple) else [last]))])


def first(m, x):
    return m(x)[0]


HIDDEN = torch.ones(4, 5, dtype=torch.bool).triu(2)
PADDING = torch.zeros(2, 5, dtype=torch.bool)
PADDING[1, 3:] = True


def attend(m, x):
    key = more(x, 2, 5, 6, start=5000)
    return m(x, key, key, need_weights=False, attn_mask=HIDDEN, key_padding_mask=PADDING)[0]


def attend_three(m, x):
    hidden = more(x, 4, 4, 5, start=7000)
    return m(x, more(x, 2, 5, 6, start=5000), more(x, 2, 5, 6, start=6000), need_weights=False, attn_mask=hidden)[0]


def weigh(m, x):
    key = more(x, 2, 5, 6, start=5000)
    out, weights = m(x, key, key, key_padding_mask=PADDING)
    return torch.cat([out.flatten(), weights.flatten()])


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def decode(m, x):
    return m(x, more(x, 2, 5, 6, start=5000), tgt_mask=causal(4), memory_key_padding_mask=PADDING)


def translate(m, x):
    return m(more(x, 2, 5, 6, start=5000), x, tgt_mask=causal(4), src_key_padding_mask=PADDING, memory_key_padding_mask=PADDING)


def layer(kind, **o):
    return kind(6, 2, dim_feedforward=8, **{"dropout": 0.0, "batch_first": True, **o})


def encoder(n=2, norm=False, **o):
    return nn.TransformerEncoder(layer(nn.TransformerEncoderLayer, **o), n, nn.LayerNorm(6) if norm else None, enable_nested_tensor=False)


def self_attention(m, x):
    return m(x, x, x, need_weights=False)[0]


TOKENS = torch.tensor([[1, 6, 3], [0, 1, 1]])


def bags(m, x):
    factors = x if m.mode == "sum" else None
    return m(torch.tensor([1, 6, 3, 0, 1, 1, 2]), torch.tensor([0, 3, 3, 5]), per_sample_weights=factors) + x.sum()


# For each name: the module, the shape of its input, and a function that calls it, if it is not called with its input.
MODULES = {
    "rnn": (lambda: nn.RNN(3, 4), (5, 2, 3), first),
    "rnn_relu": (lambda: nn.RNN(3, 4, num_layers=2, nonlinearity="relu", bias=False, batch_first=True), (2, 5, 3), with_state),
    "lstm": (lambda: nn.LSTM(3, 4), (5, 2, 3), first),
    "lstm_all": (lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True, proj_size=2), (2, 5, 3), with_state),
    "lstm_dropout": (lambda: nn.LSTM(3, 4, num_layers=3, dropout=0.3), (5, 2, 3), first),
    "lstm_projection_no_bias": (lambda: nn.LSTM(3, 4, proj_size=3, bias=False), (5, 2, 3), with_state),
    "gru": (lambda: nn.GRU(3, 4), (5, 2, 3), first),
    "gru_all": (lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True, batch_first=True), (2, 5, 3), with_state),
    "rnn_lengths": (lambda: nn.RNN(3, 4), (6, 4, 3), with_lengths),
    "gru_lengths": (lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True), (6, 4, 3), with_lengths),
    "lstm_lengths": (lambda: nn.LSTM(3, 4, bidirectional=True, batch_first=True), (4, 6, 3), with_lengths),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3), (2, 3, 7), None),
    "conv1d_options": (
        lambda: nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False, padding_mode="circular"), (2, 4, 9), None),
    "conv1d_same": (lambda: nn.Conv1d(3, 4, 4, padding="same", dilation=3), (2, 3, 11), None),
    "conv2d_same": (lambda: nn.Conv2d(3, 4, (4, 3), padding="same", padding_mode="reflect"), (2, 3, 6, 5), None),
    "conv3d_same": (lambda: nn.Conv3d(2, 3, 3, padding="same", groups=1), (1, 2, 3, 4, 3), None),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 3, 4, 4), None),
    "conv3d_options": (
        lambda: nn.Conv3d(2, 4, (3, 2, 3), stride=(1, 2, 1), padding=(1, 0, 2), groups=2, padding_mode="replicate"), (2, 2, 4, 5, 4), None),
    "conv_transpose1d": (lambda: nn.ConvTranspose1d(3, 4, 3), (2, 3, 5), None),
    "conv_transpose1d_options": (
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=3, padding=1, output_padding=2, groups=2, dilation=2, bias=False), (2, 4, 5), None),
    "conv_transpose3d": (lambda: nn.ConvTranspose3d(2, 3, 2), (1, 2, 3, 3, 3), None),
    "conv_transpose3d_options": (
        lambda: nn.ConvTranspose3d(2, 4, (3, 2, 2), stride=(2, 1, 2), padding=(1, 0, 0), output_padding=(1, 0, 1), groups=2),
        (1, 2, 3, 3, 3), None),
    "batch_norm1d": (lambda: nn.BatchNorm1d(3), (8, 3), None),
    "batch_norm1d_sequences": (lambda: nn.BatchNorm1d(3, eps=0.1, momentum=0.3), (4, 3, 5), None),
    "batch_norm1d_cumulative": (lambda: nn.BatchNorm1d(3, momentum=None), (4, 3, 5), None),
    "batch_norm3d": (lambda: nn.BatchNorm3d(3), (2, 3, 2, 3, 2), None),
    "batch_norm3d_plain": (lambda: nn.BatchNorm3d(3, affine=False, track_running_stats=False), (2, 3, 2, 3, 2), None),
    "group_norm": (lambda: nn.GroupNorm(2, 6), (3, 6, 4), None),
    "group_norm_options": (lambda: nn.GroupNorm(3, 6, eps=0.1, affine=False), (3, 6, 4, 2), None),
    "instance_norm1d": (lambda: nn.InstanceNorm1d(3), (2, 3, 5), None),
    "instance_norm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), (2, 3, 5, 4), None),
    "instance_norm3d": (lambda: nn.InstanceNorm3d(3, eps=0.1, momentum=0.3, track_running_stats=True), (2, 3, 2, 3, 4), None),
    "rms_norm": (lambda: nn.RMSNorm(6), (3, 4, 6), None),
    "rms_norm_options": (lambda: nn.RMSNorm((4, 6), eps=0.1, elementwise_affine=False), (3, 4, 6), None),
    "prelu": (nn.PReLU, (4, 5), None),
    "prelu_channels": (lambda: nn.PReLU(3, init=0.1), (4, 3, 5), None),
    "glu": (nn.GLU, (4, 6), None),
    "glu_dim": (lambda: nn.GLU(1), (3, 4, 5), None),
    "hard_sigmoid": (nn.Hardsigmoid, (4, 5), None),
    "hard_tanh": (lambda: nn.Hardtanh(-0.4, 0.3), (4, 5), None),
    "log_sigmoid": (nn.LogSigmoid, (4, 5), None),
    "mish": (nn.Mish, (4, 5), None),
    "elu": (nn.ELU, (4, 5), None),
    "elu_alpha": (lambda: nn.ELU(0.5), (4, 5), None),
    "celu": (lambda: nn.CELU(0.5), (4, 5), None),
    "selu": (nn.SELU, (4, 5), None),
    "softplus": (lambda: nn.Softplus(2, 0.5), (4, 5), None),
    "softsign": (nn.Softsign, (4, 5), None),
    "tanh_shrink": (nn.Tanhshrink, (4, 5), None),
    "hard_shrink": (lambda: nn.Hardshrink(0.3), (4, 5), None),
    "soft_shrink": (lambda: nn.Softshrink(0.3), (4, 5), None),
    "threshold": (lambda: nn.Threshold(0.1, 0.4), (4, 5), None),
    "rrelu": (nn.RReLU, (4, 5), None),
    "softmax": (lambda: nn.Softmax(-1), (4, 5), None),
    "softmax_dim": (lambda: nn.Softmax(1), (2, 4, 5), None),
    "log_softmax": (lambda: nn.LogSoftmax(-1), (4, 5), None),
    "softmin": (lambda: nn.Softmin(-1), (4, 5), None),
    "dropout1d": (lambda: nn.Dropout1d(0.4), (4, 3, 5), None),
    "dropout2d": (lambda: nn.Dropout2d(0.4), (4, 3, 5, 2), None),
    "dropout3d": (lambda: nn.Dropout3d(0.4), (4, 3, 5, 2, 2), None),
    "alpha_dropout": (lambda: nn.AlphaDropout(0.4), (4, 5), None),
    "feature_alpha_dropout": (lambda: nn.FeatureAlphaDropout(0.4), (4, 3, 5), None),
    "unflatten": (lambda: nn.Unflatten(1, (2, 3)), (4, 6), None),
    "pixel_shuffle": (lambda: nn.PixelShuffle(2), (2, 8, 3, 2), None),
    "pixel_unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 2, 6, 4), None),
    "channel_shuffle": (lambda: nn.ChannelShuffle(2), (2, 6, 3, 2), None),
    "pad_zero": (lambda: nn.ZeroPad2d((1, 2, 0, 3)), (2, 2, 4, 3), None),
    "pad_constant": (lambda: nn.ConstantPad1d((2, 1), 0.7), (2, 2, 4), None),
    "pad_reflection": (lambda: nn.ReflectionPad2d((1, 2, 0, 3)), (2, 2, 4, 3), None),
    "pad_replication": (lambda: nn.ReplicationPad3d((1, 2, 0, 3, 1, 1)), (2, 2, 4, 3, 2), None),
    "pad_circular": (lambda: nn.CircularPad1d((2, 1)), (2, 2, 4), None),
    "upsample_nearest": (lambda: nn.Upsample(scale_factor=2), (2, 2, 4, 3), None),
    "upsample_nearest_exact": (lambda: nn.Upsample(size=(7,), mode="nearest-exact"), (2, 2, 4), None),
    "upsample_linear": (lambda: nn.Upsample(scale_factor=1.7, mode="linear"), (2, 2, 4), None),
    "upsample_bilinear": (lambda: nn.Upsample(size=(5, 8), mode="bilinear", align_corners=True), (2, 2, 4, 3), None),
    "upsample_bicubic": (lambda: nn.Upsample(scale_factor=(1.5, 2.0), mode="bicubic"), (2, 2, 4, 3), None),
    "upsample_trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), (1, 2, 2, 3, 2), None),
    "max_pool1d": (lambda: nn.MaxPool1d(3, stride=2, padding=1, dilation=2, ceil_mode=True), (2, 3, 8), None),
    "max_pool3d": (lambda: nn.MaxPool3d((2, 3, 2), padding=(1, 0, 1)), (2, 2, 4, 6, 5), None),
    "avg_pool1d": (lambda: nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False), (2, 3, 8), None),
    "avg_pool3d": (lambda: nn.AvgPool3d((2, 3, 2), stride=(1, 2, 1), padding=1), (2, 2, 4, 6, 5), None),
    "adaptive_avg_pool1d": (lambda: nn.AdaptiveAvgPool1d(3), (2, 3, 8), None),
    "adaptive_avg_pool3d": (lambda: nn.AdaptiveAvgPool3d((1, 2, 3)), (2, 2, 4, 6, 5), None),
    "adaptive_max_pool1d": (lambda: nn.AdaptiveMaxPool1d(3), (2, 3, 8), None),
    "adaptive_max_pool2d": (lambda: nn.AdaptiveMaxPool2d((2, 3)), (2, 2, 5, 7), None),
    "adaptive_max_pool3d": (lambda: nn.AdaptiveMaxPool3d(1), (2, 2, 3, 4, 2), None),
    "lp_pool3d": (lambda: nn.LPPool3d(2, 2), (1, 2, 4, 4, 4), None),
    "fractional_max_pool2d": (lambda: nn.FractionalMaxPool2d((2, 3), output_size=(4, 3)), (2, 3, 7, 8), None),
    "fractional_max_pool2d_ratio": (lambda: nn.FractionalMaxPool2d(2, output_ratio=(0.6, 0.5)), (2, 3, 7, 8), None),
    "fractional_max_pool3d": (lambda: nn.FractionalMaxPool3d((2, 1, 2), output_size=(2, 3, 2)), (2, 2, 5, 6, 5), None),
    "fractional_max_pool3d_ratio": (lambda: nn.FractionalMaxPool3d(2, output_ratio=(0.6, 0.5, 0.7)), (2, 2, 6, 6, 5), None),
    "adaptive_log_softmax": (lambda: adaptive(), (6, 9), lambda m, x: torch.cat([v.flatten() for v in m(x, WORDS)])),
    "adaptive_log_softmax_options": (lambda: adaptive(div_value=2.0, head_bias=True), (6, 9), lambda m, x: m(x, WORDS)[1]),
    "adaptive_log_softmax_log_prob": (lambda: adaptive(), (6, 9), lambda m, x: m.log_prob(x)),
    "max_unpool1d": (lambda: nn.Identity(), (2, 3, 8), lambda m, x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2)),
    "max_unpool2d": (
        lambda: nn.Identity(), (2, 3, 7, 6), lambda m, x: F.max_unpool2d(*F.max_pool2d(x, (3, 2), return_indices=True), (3, 2), output_size=(7, 6))),
    "max_unpool3d": (lambda: nn.Identity(), (1, 2, 4, 4, 2), lambda m, x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2)),
    "unfold": (lambda: nn.Unfold((2, 3), dilation=(1, 2), padding=(1, 0), stride=(2, 1)), (2, 3, 5, 6), None),
    "fold": (lambda: nn.Fold((5, 6), (2, 3), dilation=(1, 2), padding=(1, 0), stride=(2, 1)), (2, 18, 6), None),
    "local_response_norm": (lambda: nn.LocalResponseNorm(3, alpha=0.5, beta=0.6, k=2.0), (2, 5, 4, 3), None),
    "local_response_norm_even": (lambda: nn.LocalResponseNorm(2), (2, 5, 4), None),
    "cosine_similarity": (
        lambda: nn.CosineSimilarity(2), (2, 4, 6), lambda m, x: m(x, more(x, 2, 4, 6, start=5000))),
    "pairwise_distance": (
        lambda: nn.PairwiseDistance(1.5, keepdim=True), (2, 4, 6), lambda m, x: m(x, more(x, 2, 4, 6, start=5000))),
    "lp_pool1d": (lambda: nn.LPPool1d(2, 3, stride=2), (2, 3, 9), None),
    "lp_pool2d": (lambda: nn.LPPool2d(2, (2, 3)), (2, 2, 6, 6), None),
    "embedding_bag": (lambda: nn.EmbeddingBag(7, 4), (1,), lambda m, x: m(TOKENS) + x),
    "embedding_bag_sum": (lambda: nn.EmbeddingBag(7, 4, mode="sum", padding_idx=-1), (7,), bags),
    "embedding_bag_max": (lambda: nn.EmbeddingBag(7, 4, mode="max"), (1,), bags),
    "multihead_attention": (lambda: nn.MultiheadAttention(6, 2, batch_first=True), (2, 4, 6), self_attention),
    "multihead_attention_masks": (lambda: nn.MultiheadAttention(6, 2, batch_first=True), (2, 4, 6), attend),
    "multihead_attention_weights": (lambda: nn.MultiheadAttention(6, 2, batch_first=True), (2, 4, 6), weigh),
    "multihead_attention_widths": (
        lambda: nn.MultiheadAttention(6, 2, batch_first=True, kdim=3, vdim=5), (2, 4, 6),
        lambda m, x: m(x, more(x, 2, 5, 3, start=5000), more(x, 2, 5, 5, start=6000), need_weights=False)[0]),
    "multihead_attention_three": (lambda: nn.MultiheadAttention(6, 2, batch_first=True, bias=False), (2, 4, 6), attend_three),
    "transformer_encoder_layer": (lambda: layer(nn.TransformerEncoderLayer), (2, 5, 6), None),
    "transformer_encoder_layer_options": (
        lambda: layer(nn.TransformerEncoderLayer, activation="gelu", norm_first=True, bias=False, layer_norm_eps=0.1), (2, 5, 6),
        lambda m, x: m(x, src_mask=causal(5), src_key_padding_mask=PADDING)),
    "transformer_decoder_layer": (lambda: layer(nn.TransformerDecoderLayer), (2, 4, 6), decode),
    "transformer_decoder_layer_options": (lambda: layer(nn.TransformerDecoderLayer, activation="gelu", norm_first=True), (2, 4, 6), decode),
    "transformer_encoder": (lambda: encoder(norm=True), (2, 5, 6), lambda m, x: m(x, src_key_padding_mask=PADDING)),
    "transformer_decoder": (
        lambda: nn.TransformerDecoder(layer(nn.TransformerDecoderLayer), 2, nn.LayerNorm(6)), (2, 4, 6), decode),
    "transformer": (
        lambda: nn.Transformer(6, 2, 1, 2, dim_feedforward=8, dropout=0.0, batch_first=True), (2, 4, 6), translate),
    "xavier_normal": (lambda: drawn(lambda w: nn.init.xavier_normal_(w, 0.7)), (3, 5), None),
    "xavier_uniform": (lambda: drawn(lambda w: nn.init.xavier_uniform_(w, nn.init.calculate_gain("tanh"))), (3, 5), None),
    "kaiming_normal": (lambda: drawn(lambda w: nn.init.kaiming_normal_(w, mode="fan_out")), (3, 5), None),
    "kaiming_uniform": (lambda: drawn(lambda w: nn.init.kaiming_uniform_(w, a=0.2)), (3, 5), None),
    "orthogonal": (lambda: drawn(lambda w: nn.init.orthogonal_(w, 0.7)), (3, 5), None),
    "apply": (lambda: applied(), (3, 5), None),
}


# No word is of the second cluster of the adaptive softmax, which has the words 3, 4 and 5.
WORDS = torch.tensor([2, 0, 11, 7, 6, 0])


def adaptive(**options):
    return nn.AdaptiveLogSoftmaxWithLoss(9, 12, [3, 6], **({"div_value": 3.0} | options))


def drawn(fn):
    m = nn.Linear(5, 3)
    fn(m.weight)
    return m


def applied():
    m = nn.Sequential(nn.Linear(5, 4), nn.Sequential(nn.Linear(4, 3), nn.Tanh()), nn.Linear(3, 2))

    def fn(m):
        if isinstance(m, nn.Linear):
            nn.init.xavier_normal_(m.weight)
        if isinstance(m, nn.Sequential):
            nn.init.normal_(m[0].bias)

    return m.apply(fn)


def signs(*shape, start=0):
    return torch.sign(ramp(*shape, start=start))


def targets(x, *shape):
    return more(x, *shape, start=3000).abs()


LABELS = torch.tensor([2, 0, 1, 4, 4, 3])
SETS = torch.tensor([[3, 0, -1, 1, 2], [1, -1, 0, 0, 0]])


def cosine_distance(a, b):
    return 1.0 - F.cosine_similarity(a, b)


# For each name: a loss as a function of its first argument, and the shape of that argument.
LOSSES = {
    "l1": (lambda x: F.l1_loss(x, targets(x, 6, 5)), (6, 5)),
    "smooth_l1": (lambda x: F.smooth_l1_loss(x, targets(x, 6, 5), reduction="sum", beta=0.3), (6, 5)),
    "huber": (lambda x: F.huber_loss(x, targets(x, 6, 5)), (6, 5)),
    "huber_delta": (lambda x: F.huber_loss(x, targets(x, 6, 5), delta=0.3, reduction="none"), (6, 5)),
    "poisson_nll": (lambda x: F.poisson_nll_loss(x, targets(x, 6, 5) * 4), (6, 5)),
    "poisson_nll_options": (
        lambda x: F.poisson_nll_loss(x.square() + 0.1, targets(x, 6, 5) * 4, log_input=False, full=True, eps=0.01, reduction="sum"), (6, 5)),
    "gaussian_nll": (lambda x: F.gaussian_nll_loss(x, targets(x, 6, 5), targets(x, 6, 5) + 0.1), (6, 5)),
    "gaussian_nll_variance": (
        lambda x: F.gaussian_nll_loss(more(x, 6, 5, start=100), targets(x, 6, 5), x.square(), full=True, eps=0.05, reduction="sum"), (6, 1)),
    "kl_div": (lambda x: F.kl_div(F.log_softmax(x, 1), targets(x, 6, 5)), (6, 5)),
    "kl_div_batch_mean": (
        lambda x: F.kl_div(F.log_softmax(x, 1), F.log_softmax(targets(x, 6, 5), 1), log_target=True, reduction="batchmean"), (6, 5)),
    "bce": (lambda x: F.binary_cross_entropy(torch.sigmoid(x), targets(x, 6, 5)), (6, 5)),
    "bce_weight": (
        lambda x: F.binary_cross_entropy(torch.sigmoid(x), targets(x, 6, 5), weight=targets(x, 5) + 0.1, reduction="sum"), (6, 5)),
    "margin_ranking": (lambda x: F.margin_ranking_loss(x, more(x, 6, start=50), signs(6).to(x.dtype), margin=0.2), (6,)),
    "cosine_embedding": (lambda x: F.cosine_embedding_loss(x, more(x, 6, 5, start=50), signs(6).to(x.dtype), margin=0.1), (6, 5)),
    "hinge_embedding": (lambda x: F.hinge_embedding_loss(x, signs(6, 5, start=9).to(x.dtype)), (6, 5)),
    "soft_margin": (lambda x: F.soft_margin_loss(x, signs(6, 5, start=9).to(x.dtype)), (6, 5)),
    "multi_label_margin": (lambda x: F.multilabel_margin_loss(x, SETS), (2, 5)),
    "multi_label_soft_margin": (lambda x: F.multilabel_soft_margin_loss(x, targets(x, 6, 5).round(), weight=targets(x, 5) + 0.1), (6, 5)),
    "multi_margin": (lambda x: F.multi_margin_loss(x, LABELS), (6, 5)),
    "multi_margin_options": (lambda x: F.multi_margin_loss(x, LABELS, p=2, margin=0.7, weight=targets(x, 5) + 0.1, reduction="sum"), (6, 5)),
    "triplet_margin": (lambda x: F.triplet_margin_loss(x, more(x, 6, 5, start=50), more(x, 6, 5, start=90)), (6, 5)),
    "triplet_margin_swap": (
        lambda x: F.triplet_margin_loss(x, more(x, 6, 5, start=50), more(x, 6, 5, start=90), margin=0.5, p=1.0, swap=True, reduction="sum"),
        (6, 5)),
    "triplet_margin_distance": (
        lambda x: F.triplet_margin_with_distance_loss(
            x, more(x, 6, 5, start=50), more(x, 6, 5, start=90), distance_function=cosine_distance, swap=True), (6, 5)),
    "ctc": (lambda x: F.ctc_loss(F.log_softmax(x, 2), torch.tensor([[1, 2, 2], [3, 1, 0]]), [7, 6], [3, 2]), (7, 2, 5)),
    "ctc_options": (
        lambda x: F.ctc_loss(
            F.log_softmax(x, 2), torch.tensor([1, 2, 2, 2, 3, 1]), [4, 6], [4, 2], blank=4, reduction="sum", zero_infinity=True), (7, 2, 5)),
}


def steps(module, objective, shape, dtype):
    """The losses of STEPS steps of gradient descent on the parameters and on the input."""
    x = (2 * ramp(*shape)).to(dtype).requires_grad_()
    trained = [*module.parameters(), x]
    losses = []
    torch.manual_seed(SEED + 1)
    for _ in range(STEPS):
        for p in trained:
            p.grad = None
        loss = objective(module, x)
        loss.backward()
        with torch.no_grad():
            for p in trained:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-LR)
        losses.append(loss.item())
    return losses, x.detach()


def near_target(call):
    def objective(m, x):
        out = call(m, x)
        return F.mse_loss(out, more(x, *out.shape, start=1000))

    return objective


def module_fixture(name, make, shape, call, weights):
    objective = near_target(call or (lambda m, x: m(x)))
    torch.manual_seed(SEED)
    module = make()
    fixture = {"input": list(shape), "state": [[n, list(t.shape)] for n, t in module.state_dict().items()]}
    initial = {n: t.clone() for n, t in module.state_dict().items()}
    fixture["losses32"], _ = steps(module, objective, shape, torch.float32)
    module.load_state_dict(initial)
    module.double()
    fixture["losses"], x = steps(module, objective, shape, torch.float64)
    module.eval()
    with torch.no_grad():
        fixture["evaluated"] = objective(module, x).item()
    weights |= {f"{name}/initial/{n}": t for n, t in initial.items()}
    weights |= {f"{name}/final/{n}": t for n, t in module.state_dict().items()}
    weights[f"{name}/final input"] = x
    return fixture


def loss_fixture(name, loss, shape, weights):
    def objective(_, x):
        return loss(x).sum()

    losses32, _ = steps(nn.Identity(), objective, shape, torch.float32)
    losses, x = steps(nn.Identity(), objective, shape, torch.float64)
    weights[f"{name}/final input"] = x
    out = loss((2 * ramp(*shape)).double())
    return {"input": list(shape), "losses32": losses32, "losses": losses, "shape": list(out.shape)}


class Rule(torch.optim.Optimizer):
    """An optimizer that torch.optim lacks, as a function of a parameter, its gradient and its state."""

    def __init__(self, params, rule, **defaults):
        super().__init__(params, defaults)
        self.rule = rule

    @torch.no_grad()
    def step(self):
        for g in self.param_groups:
            for p in g["params"]:
                s = self.state[p]
                if not s:
                    s.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                s["step"] += 1
                self.rule(p, p.grad, s, **{k: v for k, v in g.items() if k != "params"})


def lion(p, g, s, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
    """Algorithm 2 of Chen et al., 2023: Symbolic discovery of optimization algorithms."""
    update = torch.sign(betas[0] * s["m"] + (1 - betas[0]) * g)
    p.sub_(lr * (update + weight_decay * p))
    s["m"].copy_(betas[1] * s["m"] + (1 - betas[1]) * g)


def lamb(p, g, s, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0):
    """Algorithm 2 of You et al., 2020: Large batch optimization for deep learning, with phi(z) = z."""
    s["m"].copy_(betas[0] * s["m"] + (1 - betas[0]) * g)
    s["v"].copy_(betas[1] * s["v"] + (1 - betas[1]) * g * g)
    m, v = s["m"] / (1 - betas[0] ** s["step"]), s["v"] / (1 - betas[1] ** s["step"])
    update = m / (v.sqrt() + eps) + weight_decay * p
    norm, length = p.norm(), update.norm()
    ratio = (norm / length) if norm > 0 and length > 0 else 1.0
    p.sub_(lr * ratio * update)


SHAPES = {"weight": (2, 3, 3, 3), "bias": (33,), "scale": (), "table": (5, 7)}
MATRICES = {"tall": (7, 4), "wide": (4, 7), "square": (5, 5)}
T = torch.optim
# For each name: the optimizer and the shapes of its parameters.
OPTIMIZERS = {
    "rmsprop": (lambda p: T.RMSprop(p), SHAPES),
    "rmsprop_options": (lambda p: T.RMSprop(p, lr=0.02, alpha=0.9, eps=1e-4, weight_decay=0.1, momentum=0.5, centered=True), SHAPES),
    "adagrad": (lambda p: T.Adagrad(p), SHAPES),
    "adagrad_options": (lambda p: T.Adagrad(p, lr=0.1, lr_decay=0.2, weight_decay=0.1, initial_accumulator_value=0.3, eps=1e-4), SHAPES),
    "adadelta": (lambda p: T.Adadelta(p), SHAPES),
    "adadelta_options": (lambda p: T.Adadelta(p, lr=0.5, rho=0.8, eps=1e-3, weight_decay=0.1), SHAPES),
    "adamax": (lambda p: T.Adamax(p), SHAPES),
    "adamax_options": (lambda p: T.Adamax(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1), SHAPES),
    "nadam": (lambda p: T.NAdam(p), SHAPES),
    "nadam_options": (lambda p: T.NAdam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1, momentum_decay=0.01), SHAPES),
    "nadam_decoupled": (lambda p: T.NAdam(p, weight_decay=0.1, decoupled_weight_decay=True), SHAPES),
    "radam": (lambda p: T.RAdam(p), SHAPES),
    "radam_options": (lambda p: T.RAdam(p, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1), SHAPES),
    "radam_decoupled": (lambda p: T.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True), SHAPES),
    "lion": (lambda p: Rule(p, lion, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0), SHAPES),
    "lion_options": (lambda p: Rule(p, lion, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1), SHAPES),
    "lamb": (lambda p: Rule(p, lamb, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0), SHAPES),
    "lamb_options": (lambda p: Rule(p, lamb, lr=0.02, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1), SHAPES),
    "muon": (lambda p: T.Muon(p), MATRICES),
    "muon_options": (lambda p: T.Muon(p, lr=0.02, weight_decay=0.3, momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"), MATRICES),
    "lbfgs": (lambda p: T.LBFGS(p, max_iter=2), SHAPES),
    "lbfgs_options": (lambda p: T.LBFGS(p, lr=0.3, max_iter=3, max_eval=4, tolerance_grad=1e-9, tolerance_change=1e-12, history_size=4), SHAPES),
    "lbfgs_wolfe_rough": (lambda p: T.LBFGS(p, max_iter=3, max_eval=12, line_search_fn="strong_wolfe"), SHAPES),
    "lbfgs_wolfe_long_rough": (lambda p: T.LBFGS(p, lr=4.0, max_iter=3, max_eval=9, line_search_fn="strong_wolfe"), SHAPES),
    "lbfgs_wolfe_longer_rough": (lambda p: T.LBFGS(p, lr=30.0, max_iter=4, max_eval=30, line_search_fn="strong_wolfe"), SHAPES),
    "lbfgs_wolfe_middle_rough": (lambda p: T.LBFGS(p, lr=2.0, max_iter=4, max_eval=30, line_search_fn="strong_wolfe"), SHAPES),
    "lbfgs_wolfe_short_rough": (lambda p: T.LBFGS(p, lr=0.02, max_iter=3, max_eval=6, line_search_fn="strong_wolfe"), SHAPES),
    "lbfgs_wolfe": (lambda p: T.LBFGS(p, max_iter=2, line_search_fn="strong_wolfe"), SHAPES),
}


def optimize(make, shapes, dtype, rough):
    params = [(2 * ramp(*s, start=100 * i)).to(dtype).requires_grad_() for i, s in enumerate(shapes.values())]
    factors = [more(p, *p.shape, start=1000 + 100 * i) + 1 for i, p in enumerate(params)]
    aims = [more(p, *p.shape, start=2000 + 100 * i) for i, p in enumerate(params)]
    opt = make(params)
    losses = []

    def closure():
        opt.zero_grad()
        loss = sum((p * a - t).square().sum() + 0.1 * p.square().square().sum() for p, a, t in zip(params, factors, aims))
        if rough:
            loss = loss + sum((3 * p).cos().sum() for p in params)
        loss.backward()
        return loss

    for _ in range(STEPS):
        if isinstance(opt, T.LBFGS):
            losses.append(opt.step(closure).item())
        else:
            losses.append(closure().item())
            opt.step()
    return losses, [p.detach() for p in params]


def optimizer_fixture(name, make, shapes, weights):
    losses32, _ = optimize(make, shapes, torch.float32, name.endswith("rough"))
    losses, params = optimize(make, shapes, torch.float64, name.endswith("rough"))
    for n, p in zip(shapes, params):
        weights[f"{name}/final/{n}"] = p.contiguous()
    return {"params": [[n, list(s)] for n, s in shapes.items()], "losses32": losses32, "losses": losses}


S = torch.optim.lr_scheduler
METRICS = [1.0, 0.9, 0.95, 0.9, 0.91, 0.92, 0.93, 0.94, 0.85, 0.86, 0.849999, 0.85, 0.85, 0.85, 0.85, 0.85, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]
# For each name: a scheduler for an optimizer whose learning rate is 1.
SCHEDULES = {
    "exponential": lambda o: S.ExponentialLR(o, 0.8),
    "linear": lambda o: S.LinearLR(o, 0.25, 0.75, 6),
    "linear_default": lambda o: S.LinearLR(o),
    "polynomial": lambda o: S.PolynomialLR(o, 9, 2.0),
    "restarts": lambda o: S.CosineAnnealingWarmRestarts(o, 3, 2, 0.1),
    "cyclic": lambda o: S.CyclicLR(o, 0.1, 1.0, 4, cycle_momentum=False),
    "cyclic_halved": lambda o: S.CyclicLR(o, 0.1, 1.0, 3, 2, mode="triangular2", cycle_momentum=False),
    "cyclic_exponential": lambda o: S.CyclicLR(o, 0.1, 1.0, 3, 2, mode="exp_range", gamma=0.9, cycle_momentum=False),
    "one_cycle_three": lambda o: S.OneCycleLR(o, 1.0, total_steps=23, pct_start=0.3, three_phase=True, cycle_momentum=False),
    "sequential": lambda o: S.SequentialLR(o, [S.ConstantLR(o, 0.1, 99), S.ExponentialLR(o, 0.8), S.StepLR(o, 2, 0.5)], [3, 9]),
    "chained": lambda o: S.ChainedScheduler([S.ExponentialLR(o, 0.9), S.StepLR(o, 5, 0.5)]),
    "plateau": lambda o: S.ReduceLROnPlateau(o, patience=2),
    "plateau_options": lambda o: S.ReduceLROnPlateau(
        o, mode="max", factor=0.3, patience=1, threshold=0.01, threshold_mode="abs", cooldown=2, min_lr=0.02),
    "plateau_max": lambda o: S.ReduceLROnPlateau(o, mode="max", factor=0.5, patience=0),
    "plateau_abs": lambda o: S.ReduceLROnPlateau(o, factor=0.5, patience=1, threshold=0.02, threshold_mode="abs", eps=0.2),
}


def schedule_fixture(make):
    opt = T.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    schedule = make(opt)
    values = []
    for metric in METRICS:
        values.append(opt.param_groups[0]["lr"])
        opt.step()
        schedule.step(metric) if isinstance(schedule, S.ReduceLROnPlateau) else schedule.step()
    return values


def write(name, fixture):
    """One line for each entry."""
    text = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in fixture.items())
    (FOLDER / f"{name}.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # whose results in evaluation are other ones where a mask hides a position
    FOLDER.mkdir(exist_ok=True)
    weights = {}
    write("modules", {n: module_fixture(n, *c, weights) for n, c in MODULES.items()})
    write("losses", {n: loss_fixture(n, *c, weights) for n, c in LOSSES.items()})
    write("optimizers", {n: optimizer_fixture(n, *c, weights) for n, c in OPTIMIZERS.items()})
    write("schedules", {"metrics": METRICS} | {n: schedule_fixture(c) for n, c in SCHEDULES.items()})
    save_file({n: t.contiguous() for n, t in weights.items()}, FOLDER / "weights.safetensors")
