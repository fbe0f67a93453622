"""Writes calls.json: calls of typed operators, as arguments in Go, with what PyTorch returns for them.

Run it with a Python that has torch 2.11.0, on the CPU: python calls.py
calls_test.go makes each call by reflection. Every case starts from the seed 42 and from fresh copies of the inputs.
"""

import itertools
import json
import pathlib
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from operators import CASES, INPUTS, describe, real

T, L, S = torch, torch.linalg, torch.special
torch.manual_seed(1)

square = real(3, 3) + 3 * T.eye(3)
more = T.stack([real(3, 3) + 3 * T.eye(3), real(3, 3) - 3 * T.eye(3)])
INPUTS = INPUTS | {
    "z": T.complex(real(2, 3), real(2, 3)), "zv": T.complex(real(3), real(3)), "sq": square, "sqs": more,
    "sym": square + square.T, "spd": square @ square.T, "upper": square.triu(), "rhs": real(3, 2), "rhss": real(2, 3, 2),
    "nan": T.tensor([[float("nan"), 2.0, -1.0], [4.0, float("nan"), 0.5]]), "seq2": real(2, 3, 8), "sig": real(16), "vol2": real(1, 2, 4, 4, 4),
    "bins": T.tensor([-1.0, 0.0, 0.5, 1.5]), "counts": T.tensor([1, 0, 3, 1]), "same": T.tensor([2, 2, 1, 3, 3, 3, 1]),
    "unit": real(8, low=0.05, high=0.95), "wide": real(8, low=-4.0, high=6.0), "pos": real(8, low=0.1, high=8.0), "deg": T.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 2.0, 3.0]),
    "u8": T.tensor([1, 200, 7], dtype=T.uint8), "h": T.tensor([0.5, -1.25, 3.0], dtype=T.float16), "d64": T.tensor([0.1, -2.5, 1e-9], dtype=T.float64),
    "pm": T.tensor([1.0, -1.0]), "pm23": T.tensor([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]), "multi": T.tensor([[0, 3, -1, 1, 2], [1, -1, 0, 0, 0], [4, 0, 2, -1, 0], [3, 1, 0, 2, 4]]),
    "lp": real(6, 2, 4).log_softmax(2), "tg": T.tensor([[1, 2], [3, 3]]), "offs": T.tensor([0, 2]), "flat": T.tensor([1, 5, 0, 2, 2]),
    "grid": real(1, 2, 3, 2, low=-1.2, high=1.2), "theta": real(1, 2, 3), "rs2": real(1, 4, 2, low=0.0, high=0.9), "rs3": real(1, 2, 3, low=0.0, high=0.9),
    "packed": real(1, 16, 4), "empty": T.zeros(0, 3), "bf": real(4, 8).bfloat16(), "bfs": real(2, 8, 8).bfloat16(), "ends": T.tensor([2, 4], dtype=T.int32),
    "scales": T.tensor([0.1, 0.25]), "points": T.tensor([0, 3], dtype=T.int32), "va": INPUTS["v"].abs(), "wa": INPUTS["w"].abs() + 0.5,
}
CALLS = {}


def add(name, fn, *args, py=None, tolerance=0, absolute=False, **options):
    """A case: the Go arguments are args, and options as the fields of a struct. A string that names an input is this
    tensor. Without py, PyTorch's call is fn(*args); otherwise it is py(inputs)."""
    assert name not in CALLS, name
    CALLS[name] = (fn, args, options, py, tolerance, absolute)


def of(i, v):
    if isinstance(v, str) and v in INPUTS:
        return getattr(i, v)
    if isinstance(v, (list, tuple)):
        return [of(i, e) for e in v]
    return v


f32 = "float32"

# Factories.
add("Logspace", None, f32, -1, 2, 4, 10.0, py=lambda i: T.logspace(-1, 2, 4))
add("Logspace/base", None, f32, 0, 3, 4, 2.0, py=lambda i: T.logspace(0, 3, 4, base=2))
add("EmptyStrided", None, f32, [0, 3], [1, 7], py=lambda i: T.empty_strided((0, 3), (1, 7)))
add("TrilIndices", T.tril_indices, 3, 4, 1)
add("TriuIndices", T.triu_indices, 3, 4, -1)
add("Complex", T.complex, "a", "b")
add("Polar", T.polar, "p", "a")
add("Multinomial", T.multinomial, "p", 2, False)
add("Multinomial/replacement", T.multinomial, "p", 5, True)
add("Normal", T.normal, "a", "p")
add("Poisson", T.poisson, "p")
add("RandIntLike", T.randint_like, "n", 3, 9)
add("RandomInPlace", None, "a", 3, 9, py=lambda i: i.a.random_(3, 9))
add("CauchyInPlace", None, "a", 1.0, 2.0, py=lambda i: i.a.cauchy_(1, 2))
add("ExponentialInPlace", None, "a", 0.5, py=lambda i: i.a.exponential_(0.5))
add("GeometricInPlace", None, "a", 0.3, py=lambda i: i.a.geometric_(0.3))
add("LogNormalInPlace", None, "a", 0.5, 0.25, py=lambda i: i.a.log_normal_(0.5, 0.25))
for window in ("Bartlett", "Blackman", "Hann", "Hamming", "Kaiser"):
    fn = getattr(T, window.lower() + "_window")
    add(window + "Window", None, f32, 6, py=lambda i, fn=fn: fn(6))
    add(window + "Window/symmetric", None, f32, 6, Symmetric=True, py=lambda i, fn=fn: fn(6, periodic=False))
add("HammingWindow/options", None, "float64", 5, Alpha=0.6, Beta=0.4, py=lambda i: T.hamming_window(5, True, 0.6, 0.4, dtype=T.float64))
add("KaiserWindow/options", None, f32, 5, Beta=0.0, py=lambda i: T.kaiser_window(5, True, 0.0))

# Arithmetic and element by element.
for name in ("FMax", "FMin", "Hypot", "Atan2", "Copysign", "Nextafter", "FMod"):
    add(name, getattr(T, name.lower()), "a", "b")
    add(name + "/broadcast", getattr(T, name.lower()), "x3", "one")
add("FMax/nan", T.fmax, "nan", "a")
add("FMin/nan", T.fmin, "nan", "a")
add("FModScalar", T.fmod, "n", 3)
add("CopysignScalar", T.copysign, "a", -1.0)
add("FloorDivide", T.floor_divide, "n", "o")
add("FloorDivideScalar", T.floor_divide, "a", 0.5)
add("FloatPower", T.float_power, "n", "o")
add("FloatPowerScalar", T.float_power, "p", 1.5)
add("GCD", T.gcd, "n", "o")
add("LCM", T.lcm, "n", "o")
add("Heaviside", T.heaviside, "a", "one")
add("Ldexp", T.ldexp, "a", "o")
add("LogAddExp", T.logaddexp, "a", "b")
add("LogAddExp2", T.logaddexp2, "a", "b")
add("XLogY", T.xlogy, "a", "p")
add("Igamma", T.igamma, "p", "q")
add("Igammac", T.igammac, "p", "q")
for name in ("And", "Or", "Xor"):
    fn = getattr(T, "bitwise_" + name.lower())
    add("Bitwise" + name, fn, "n", "o")
    add("Bitwise" + name + "/bool", fn, "c", "d")
    add("Bitwise" + name + "Scalar", fn, "n", 6)
for name in ("Left", "Right"):
    fn = getattr(T, f"bitwise_{name.lower()}_shift")
    add(f"Bitwise{name}Shift", fn, "n", "o")
    add(f"Bitwise{name}ShiftScalar", fn, "n", 2)
for name in ("Acos", "Asin", "Atanh", "Erfinv"):
    add(name, getattr(T, name.lower()), "u")
for name in ("Asinh", "Atan", "Tan", "Sinh", "Cosh", "Deg2Rad", "Rad2Deg", "Exp2", "Erfc", "Sinc", "I0", "Frac", "Signbit", "Sgn", "Positive", "Angle"):
    add(name, getattr(T, name.lower()), "a")
add("Acosh", T.acosh, "o")
for name in ("Log10", "Lgamma", "Digamma"):
    add(name, getattr(T, name.lower()), "p", tolerance=1e-4)
add("Sgn/complex", T.sgn, "z")
add("Angle/complex", T.angle, "z")
add("Polygamma", None, 2, "p", py=lambda i: T.polygamma(2, i.p), tolerance=1e-4)
add("MvLGamma", None, "pos", 1, py=lambda i: T.mvlgamma(i.pos, 1), tolerance=1e-4)
add("Logit", T.logit, "unit")
add("Logit/eps", None, "u", Eps=0.25, py=lambda i: T.logit(i.u, 0.25))
add("Frexp", T.frexp, "a")
add("BitwiseNot", T.bitwise_not, "n")
for name, fn in {"Real": T.real, "Imag": T.imag, "Conj": T.conj, "ConjPhysical": T.conj_physical, "ResolveConj": T.resolve_conj, "ResolveNeg": T.resolve_neg,
                 "ViewAsReal": T.view_as_real}.items():
    add(name, fn, "z")
add("Real/real", T.real, "a")
add("ViewAsComplex", T.view_as_complex, "grid")
add("FakeQuantizePerTensorAffine", T.fake_quantize_per_tensor_affine, "a", 0.1, 3, 0, 15)
add("FakeQuantizePerChannelAffine", T.fake_quantize_per_channel_affine, "a", "scales", "points", 0, -8, 7)

# Comparisons.
add("IsPosInf", T.isposinf, "s")
add("IsNegInf", T.isneginf, "s")
add("IsReal", T.isreal, "z")
add("IsIn", T.isin, "n", "o")
add("IsIn/options", None, "n", "o", Invert=True, py=lambda i: T.isin(i.n, i.o, invert=True))
add("IsNonZero", T.is_nonzero, "one")
add("IsComplex", T.is_complex, "z")
add("IsConj", T.is_conj, "z")
add("IsFloatingPoint", T.is_floating_point, "n")
add("ResultType", None, "n", "h", py=lambda i: "float16")
add("PromoteTypes", None, "float16", "bfloat16", py=lambda i: "float32")
add("CanCast", None, f32, "int64", py=lambda i: T.can_cast(T.float32, T.int64))

# Reductions.
add("AMinMax", T.aminmax, "a", py=lambda i: tuple(T.aminmax(i.a)))
add("AMinMax/dim", None, "a", Dim=1, KeepDim=True, py=lambda i: tuple(T.aminmax(i.a, dim=1, keepdim=True)))
add("Dist", T.dist, "a", "b", 1)
add("Dist/nil", None, "a", "b", None, py=lambda i: T.dist(i.a, i.b))
for name in ("NaNMean", "NaNSum"):
    fn = getattr(T, name.lower())
    add(name, fn, "nan", [1])
    add(name + "/all", fn, "nan", None)
    add(name + "/options", None, "nan", [0], KeepDim=True, DType="float64", py=lambda i, fn=fn: fn(i.nan, 0, keepdim=True, dtype=T.float64))
for name in ("Median", "NaNMedian"):
    fn = getattr(T, name.lower())
    add(name, fn, "nan")
    add(name + "Dim", fn, "nan", 1)
    add(name + "Dim/keep", None, "nan", 1, KeepDim=True, py=lambda i, fn=fn: fn(i.nan, 1, keepdim=True))
add("Mode", T.mode, "o", 1)
for name in ("Quantile", "NaNQuantile"):
    fn = getattr(T, name.lower())
    add(name, fn, "nan", "unit")
    add(name + "/options", None, "a", "unit", Dim=1, KeepDim=True, Interpolation="lower", py=lambda i, fn=fn: fn(i.a, i.unit, dim=1, keepdim=True, interpolation="lower"))
    add(name + "Scalar", fn, "a", 0.3)
add("StdMean", None, "a", None, py=lambda i: T.std_mean(i.a))
add("StdMean/options", None, "a", [1], Correction=0, KeepDim=True, py=lambda i: T.std_mean(i.a, 1, correction=0, keepdim=True))
add("VarMean", None, "a", [0], py=lambda i: T.var_mean(i.a, 0))
add("CountNonZero", T.count_nonzero, "c", [1])
add("CountNonZero/all", None, "c", None, py=lambda i: T.count_nonzero(i.c))
for name in ("CumProd", "CumMax", "CumMin", "LogCumSumExp"):
    add(name, getattr(T, name.lower()), "a", 1)
add("Trapezoid", None, "a", 0.5, 1, py=lambda i: T.trapezoid(i.a, dx=0.5, dim=1))
add("TrapezoidX", None, "a", "v", 1, py=lambda i: T.trapezoid(i.a, i.v, dim=1))
add("CumulativeTrapezoid", None, "a", None, 0, py=lambda i: T.cumulative_trapezoid(i.a, dim=0))
add("CumulativeTrapezoidX", None, "a", "v", 1, py=lambda i: T.cumulative_trapezoid(i.a, i.v, dim=1))
add("Cov", T.cov, "g")
add("Cov/options", None, "g", Correction=0, FrequencyWeights="counts", ImportanceWeights="p4", py=lambda i: T.cov(i.g, correction=0, fweights=i.counts, aweights=i.p4))
add("CorrCoef", T.corrcoef, "g")
add("Histc", T.histc, "a", 4, -1, 1)
add("Histogram", T.histogram, "a", 3)
add("Histogram/options", None, "a", 3, Range=[-1.0, 1.0], Weight="p", Density=True, py=lambda i: T.histogram(i.a, 3, range=(-1, 1), weight=i.p, density=True))
add("HistogramDD", T.histogramdd, "g", [2, 2, 1, 3])
add("BinCount", T.bincount, "counts")
add("BinCount/options", None, "counts", Weights="p4", MinLength=6, py=lambda i: T.bincount(i.counts, i.p4, 6))

add("LogSumExp/nil", None, "x3", None, py=lambda i: T.logsumexp(i.x3, (0, 1, 2)))
add("LogSumExp/empty", None, "x3", [], KeepDim=True, py=lambda i: T.logsumexp(i.x3, (0, 1, 2), True))
add("LogSumExp/scalar", None, "one", None, py=lambda i: T.logsumexp(i.one, ()))

# Sorting and searching.
add("MSort", T.msort, "g")
add("KthValue", T.kthvalue, "a", 2, 1)
add("KthValue/keep", None, "a", 2, 1, KeepDim=True, py=lambda i: T.kthvalue(i.a, 2, 1, True))
add("ArgWhere", T.argwhere, "c")
none = T.empty(0, dtype=T.int64)
add("Unique", None, "same", py=lambda i: (T.unique(i.same), none, none))
add("Unique/options", None, "same", Inverse=True, Counts=True, py=lambda i: T.unique(i.same, return_inverse=True, return_counts=True))
add("UniqueDim", None, "tok", 1, Inverse=True, Counts=True, py=lambda i: T.unique(i.tok, dim=1, return_inverse=True, return_counts=True))
add("UniqueConsecutive", None, "same", Inverse=True, Counts=True, py=lambda i: T.unique_consecutive(i.same, return_inverse=True, return_counts=True))
add("UniqueConsecutive/dim", None, "ix", Dim=0, Inverse=True, Counts=True, py=lambda i: T.unique_consecutive(i.ix, dim=0, return_inverse=True, return_counts=True))
add("SearchSorted", T.searchsorted, "bins", "a")
add("SearchSorted/options", None, "pm", "a", Int32=True, Right=True, Sorter="offs1", py=lambda i: T.searchsorted(i.pm, i.a, out_int32=True, right=True, sorter=T.tensor([1, 0])))
INPUTS["offs1"] = T.tensor([1, 0])
add("Bucketize", T.bucketize, "a", "bins")
add("Bucketize/options", None, "a", "bins", Int32=True, Right=True, py=lambda i: T.bucketize(i.a, i.bins, out_int32=True, right=True))

# Signals.
add("STFT", None, "sig", 4, py=lambda i: T.stft(i.sig, 4, return_complex=True), tolerance=1e-4)
INPUTS["window"] = real(3, low=0.5, high=1.0)
add("STFT/options", None, "sig", 4, HopLength=2, WinLength=3, Window="window", NoCenter=True, Normalized=True, OneSided=False,
    py=lambda i: T.stft(i.sig, 4, 2, 3, i.window, False, "reflect", True, False, True), tolerance=1e-4)
add("STFT/pad", None, "sig", 4, PadMode="constant", py=lambda i: T.stft(i.sig, 4, pad_mode="constant", return_complex=True), tolerance=1e-4)
INPUTS["spectra"] = T.stft(INPUTS["sig"], 4, return_complex=True)
add("ISTFT", T.istft, "spectra", 4, tolerance=1e-4)
add("ISTFT/options", None, "spectra", 4, HopLength=1, Length=12, py=lambda i: T.istft(i.spectra, 4, 1, length=12), tolerance=1e-4)

# Linear algebra outside of package linalg.
add("MV", T.mv, "a", "v")
add("VDot", T.vdot, "zv", "zv")
add("Inner", T.inner, "a", "b")
add("TensorDot", None, "x3", "a", [0, 1], [0, 1], py=lambda i: T.tensordot(i.x3, i.a, dims=([0, 1], [0, 1])))
add("Kron", T.kron, "a", "b2")
add("AddMV", None, "b2", "a", "v", Beta=2, Alpha=0.5, py=lambda i: T.addmv(i.b2, i.a, i.v, beta=2, alpha=0.5))
add("AddR", T.addr, "a", "b2", "v")
add("AddBMM", T.addbmm, "b2", "x3", "y3")
add("BAddBMM", None, "b2", "x3", "y3", Beta=0.5, py=lambda i: T.baddbmm(i.b2, i.x3, i.y3, beta=0.5))
INPUTS["wb"] = real(4, 3, 2)
INPUTS["c2"] = real(2, 2)
add("Bilinear", F.bilinear, "a", "c2", "wb", "b4")
add("Trace", T.trace, "sq")
add("LogDet", T.logdet, "spd", tolerance=1e-4)
add("CholeskySolve", None, "rhs", "upper", Upper=True, py=lambda i: T.cholesky_solve(i.rhs, i.upper, upper=True), tolerance=1e-4)
add("CholeskyInverse", None, "upper", Upper=True, py=lambda i: T.cholesky_inverse(i.upper, upper=True), tolerance=1e-4)
INPUTS["lu"], INPUTS["pivots"] = L.lu_factor(square)
add("LUUnpack", T.lu_unpack, "lu", "pivots", tolerance=1e-4)
add("GEQRF", T.geqrf, "sq", tolerance=1e-4)
INPUTS["qr"], INPUTS["tau"] = T.geqrf(square)
add("ORMQR", T.ormqr, "qr", "tau", "rhs", tolerance=1e-4)
add("ORMQR/options", None, "qr", "tau", "a", Right=True, Transpose=True, py=lambda i: T.ormqr(i.qr, i.tau, i.a, left=False, transpose=True), tolerance=1e-4)
add("CDist", T.cdist, "a", "b", 2.0)
add("PDist", F.pdist, "g", 1.0)
add("PairwiseDistance", F.pairwise_distance, "a", "b")
add("PairwiseDistance/options", None, "a", "b", P=1.0, Eps=0.5, KeepDim=True, py=lambda i: F.pairwise_distance(i.a, i.b, 1.0, 0.5, True))
add("CosineSimilarity", F.cosine_similarity, "a", "b", 1)
add("Renorm", T.renorm, "a", 2, 0, 1.5)
add("Vander", T.vander, "v")
add("Vander/options", None, "v", Columns=2, Increasing=True, py=lambda i: T.vander(i.v, 2, True))

# Convolution, pooling, resizing.
INPUTS["wt1"], INPUTS["wt3"] = real(2, 2, 3), real(2, 2, 2, 2, 2)
add("ConvTranspose1d", F.conv_transpose1d, "seq", "wt1", "b2")
add("ConvTranspose1d/options", None, "seq", "wt1", None, Stride=[2], Padding=[1], OutputPadding=[1], Dilation=[2], py=lambda i: F.conv_transpose1d(i.seq, i.wt1, None, 2, 1, 1, 1, 2))
add("ConvTranspose3d", F.conv_transpose3d, "vol", "wt3", None)
add("Unfold", F.unfold, "img", [2, 3])
add("Unfold/options", None, "img", [2, 2], Stride=[2, 1], Padding=[1, 0], Dilation=[1, 2], py=lambda i: F.unfold(i.img, (2, 2), (1, 2), (1, 0), (2, 1)))
add("Fold", F.fold, "packed", [3, 3], [2, 2])
for n, image in (1, "seq2"), (3, "vol2"):
    size = [2] * n
    for kind in ("max", "avg"):
        fn = getattr(F, f"{kind}_pool{n}d")
        name = f"{kind.title()}Pool{n}d"
        add(name, fn, image, size)
        add(name + "/options", None, image, size, Stride=[1] * n, Padding=[1] * n, CeilMode=True, py=lambda i, fn=fn, image=image, size=size: fn(getattr(i, image), size, stride=1, padding=1, ceil_mode=True))
        add(f"Adaptive{name}", getattr(F, f"adaptive_{kind}_pool{n}d"), image, [3] * n,
            py=(lambda i, n=n, image=image: getattr(F, f"adaptive_max_pool{n}d")(getattr(i, image), [3] * n, return_indices=True)) if kind == "max" else None)
    add(f"MaxPool{n}dWithIndices", None, image, size, py=lambda i, n=n, image=image, size=size: getattr(F, f"max_pool{n}d")(getattr(i, image), size, return_indices=True))
    add(f"UpsampleNearest{n}d", None, image, [5] * n, py=lambda i, image=image, n=n: F.interpolate(getattr(i, image), [5] * n))
    add(f"UpsampleNearestExact{n}d", None, image, [5] * n, py=lambda i, image=image, n=n: F.interpolate(getattr(i, image), [5] * n, mode="nearest-exact"))
    mode = "linear" if n == 1 else "trilinear"
    add(f"Upsample{mode.title()}{n}d", None, image, [5] * n, True, py=lambda i, image=image, n=n, mode=mode: F.interpolate(getattr(i, image), [5] * n, mode=mode, align_corners=True))
add("AvgPool1d/exclude", None, "seq2", [3], Padding=[1], ExcludePadding=True, py=lambda i: F.avg_pool1d(i.seq2, 3, padding=1, count_include_pad=False))
add("AvgPool3d/divisor", None, "vol2", [2, 2, 2], Divisor=3, py=lambda i: F.avg_pool3d(i.vol2, 2, divisor_override=3))
INPUTS["pooled"], INPUTS["places"] = F.max_pool2d(INPUTS["img"], 2, return_indices=True)
INPUTS["pooled3"], INPUTS["places3"] = F.max_pool3d(INPUTS["vol2"], 2, return_indices=True)
add("MaxUnpool2d", None, "pooled", "places", [5, 6], py=lambda i: F.max_unpool2d(i.pooled, i.places, 2, output_size=(5, 6)))
add("MaxUnpool3d", None, "pooled3", "places3", [4, 4, 4], [2, 2, 2], [0, 0, 0], py=lambda i: F.max_unpool3d(i.pooled3, i.places3, 2))
add("FractionalMaxPool2d", None, "img", [2, 2], [3, 3], "rs2", py=lambda i: F.fractional_max_pool2d(i.img, 2, 3, _random_samples=i.rs2, return_indices=True))
add("FractionalMaxPool3d", None, "vol2", [2, 2, 2], [2, 2, 2], "rs3", py=lambda i: F.fractional_max_pool3d(i.vol2, 2, 2, _random_samples=i.rs3, return_indices=True))
add("UpsampleNearestExact2d", None, "img", [7, 4], py=lambda i: F.interpolate(i.img, (7, 4), mode="nearest-exact"))
add("UpsampleBicubic2d", None, "img", [7, 4], False, py=lambda i: F.interpolate(i.img, (7, 4), mode="bicubic"))
add("UpsampleBicubic2dAA", None, "img", [3, 4], False, py=lambda i: F.interpolate(i.img, (3, 4), mode="bicubic", antialias=True))
add("UpsampleBilinear2dAA", None, "img", [3, 4], False, py=lambda i: F.interpolate(i.img, (3, 4), mode="bilinear", antialias=True))
add("GridSample", None, "img", "grid", py=lambda i: F.grid_sample(i.img, i.grid, align_corners=False))
add("GridSample/options", None, "img", "grid", Interpolation=1, Outside=2, AlignCorners=True, py=lambda i: F.grid_sample(i.img, i.grid, "nearest", "reflection", True))
add("AffineGrid", F.affine_grid, "theta", [1, 4, 2, 3], True)
add("PixelShuffle", F.pixel_shuffle, "img", 2)
INPUTS["even"] = real(1, 2, 4, 6)
add("PixelUnshuffle", F.pixel_unshuffle, "even", 2)

# Activations, normalisation, embedding.
add("RMSNorm", F.rms_norm, "a", [3], "v")
add("RMSNorm/eps", None, "a", [3], None, Eps=0.5, py=lambda i: F.rms_norm(i.a, [3], eps=0.5))
add("ELUInPlace", F.elu_, "a", 0.5)
add("LeakyReLUInPlace", F.leaky_relu_, "a", 0.2)
add("HardTanhInPlace", F.hardtanh_, "a", -0.5, 0.75)
add("HardTanhInPlace/nil", None, "a", None, None, py=lambda i: F.hardtanh_(i.a))
add("Threshold", F.threshold, "a", 0.5, 7)
add("ThresholdInPlace", F.threshold_, "a", 0.5, 7)
add("SELU", F.selu, "a")
add("CELU", F.celu, "a", 0.5)
add("Mish", F.mish, "a")
add("PReLU", F.prelu, "a", "v")
add("RReLU", F.rrelu, "a")
add("RReLU/options", None, "a", Lower=0.1, Upper=0.3, Training=True, py=lambda i: F.rrelu(i.a, 0.1, 0.3, True))
add("RReLUInPlace", F.rrelu_, "a")
add("GLU", F.glu, "g", 1)
add("HardShrink", F.hardshrink, "a", 0.75)
add("SoftShrink", None, "a", None, py=lambda i: F.softshrink(i.a))
add("FeatureDropout", F.dropout2d, "img", 0.5, True)
add("AlphaDropout", F.alpha_dropout, "a", 0.5, True)
add("FeatureAlphaDropout", F.feature_alpha_dropout, "img", 0.5, True)
add("EmbeddingBag", None, "emb", "flat", "offs", 1, py=lambda i: T.embedding_bag(i.emb, i.flat, i.offs, mode=1))
add("EmbeddingBag/options", None, "emb", "flat", "offs", 0, PerSampleWeights="p5", IncludeLastOffset=False, py=lambda i: T.embedding_bag(i.emb, i.flat, i.offs, mode=0, per_sample_weights=i.p5))
add("GroupedMM", None, "bf", "bfs", "ends", py=lambda i: F.grouped_mm(i.bf, i.bfs, offs=i.ends), tolerance=1e-2)

# Losses.
add("BinaryCrossEntropy", F.binary_cross_entropy, "unit", "unit")
add("BinaryCrossEntropy/options", None, "unit", "unit", Weight="pos", Reduction=2, py=lambda i: F.binary_cross_entropy(i.unit, i.unit, i.pos, reduction="none"))
add("PoissonNLLLoss", F.poisson_nll_loss, "a", "p")
add("PoissonNLLLoss/options", None, "p", "o", NotLog=True, Full=True, Eps=1e-3, Reduction=1, py=lambda i: F.poisson_nll_loss(i.p, i.o, False, full=True, eps=1e-3, reduction="sum"))
add("CosineEmbeddingLoss", None, "a", "b", "pm", Margin=0.25, py=lambda i: F.cosine_embedding_loss(i.a, i.b, i.pm, 0.25))
add("MarginRankingLoss", None, "a", "b", "pm23", Margin=0.25, Reduction=1, py=lambda i: F.margin_ranking_loss(i.a, i.b, i.pm23, 0.25, reduction="sum"))
add("CTCLoss", None, "lp", "tg", [6, 5], [2, 1], py=lambda i: F.ctc_loss(i.lp, i.tg, (6, 5), (2, 1)), tolerance=1e-4)
add("CTCLoss/options", None, "lp", "tg", [6, 1], [2, 2], ZeroInfinity=True, Reduction=2, py=lambda i: F.ctc_loss(i.lp, i.tg, (6, 1), (2, 2), zero_infinity=True, reduction="none"), tolerance=1e-4)
add("HingeEmbeddingLoss", F.hinge_embedding_loss, "a", "pm23")
add("HingeEmbeddingLoss/margin", None, "a", "pm23", Margin=0.0, py=lambda i: F.hinge_embedding_loss(i.a, i.pm23, 0.0))
add("HuberLoss", F.huber_loss, "a", "b")
add("HuberLoss/options", None, "a", "b", Delta=0.5, Reduction=1, py=lambda i: F.huber_loss(i.a, i.b, "sum", 0.5))
add("MultiLabelMarginLoss", F.multilabel_margin_loss, "logits", "multi")
add("MultiMarginLoss", F.multi_margin_loss, "logits", "target")
add("MultiMarginLoss/options", None, "logits", "target", P=2, Margin=0.5, Weight="p5", Reduction=1, py=lambda i: F.multi_margin_loss(i.logits, i.target, 2, 0.5, i.p5, reduction="sum"))
add("SoftMarginLoss", F.soft_margin_loss, "a", "pm23")
add("TripletMarginLoss", F.triplet_margin_loss, "a", "b", "p")
add("TripletMarginLoss/options", None, "a", "b", "p", Margin=0.5, P=1.0, Eps=0.01, Swap=True, Reduction=1, py=lambda i: F.triplet_margin_loss(i.a, i.b, i.p, 0.5, 1.0, 0.01, True, reduction="sum"))

# Shapes.
add("T", T.t, "a")
add("Adjoint", T.adjoint, "z")
add("AsStrided", T.as_strided, "g", [2, 2], [4, 1], 1)
for n in (1, 2, 3):
    add(f"AtLeast{n}d", getattr(T, f"atleast_{n}d"), "v" if n > 1 else "one")
add("BroadcastTo", None, "v", 2, 3, py=lambda i: i.v.broadcast_to(2, 3))
add("BroadcastTensors", T.broadcast_tensors, "v", "row", "one")
add("Ravel", T.ravel, "a")
add("Unflatten", None, "g", 1, 2, 2, py=lambda i: i.g.unflatten(1, (2, 2)))
add("Tile", None, "a", 2, 1, py=lambda i: i.a.tile(2, 1))
for name in ("ColumnStack", "HStack", "VStack", "DStack"):
    fn = getattr(T, "column_stack" if name == "ColumnStack" else name.lower())
    add(name, None, "v", "w", py=lambda i, fn=fn: fn((i.v, i.w)))
add("BlockDiag", T.block_diag, "a", "c2")
add("TensorSplit", T.tensor_split, "g", 3, 1)
add("TensorSplitIndices", T.tensor_split, "g", [1, 3], 1)
for name in ("HSplit", "VSplit", "DSplit"):
    add(name, getattr(T, name.lower()), "even", 2 if name != "VSplit" else 1)
add("NarrowCopy", T.narrow_copy, "g", 1, 1, 2)
add("UnfoldDim", None, "sig", 0, 4, 3, py=lambda i: i.sig.unfold(0, 4, 3))
add("Diag", T.diag, "v", 1)
add("DiagEmbed", T.diag_embed, "a", 1, 0, 2)
add("DiagFlat", T.diagflat, "a", -1)
add("FlipLR", T.fliplr, "a")
add("FlipUD", T.flipud, "a")
add("Rot90", T.rot90, "a", 1, [0, 1])
add("Rot90/nil", None, "a", -1, None, py=lambda i: T.rot90(i.a, -1))
add("CartesianProd", T.cartesian_prod, "v", "b2")
add("Combinations", T.combinations, "v", 2)
add("Combinations/replacement", None, "v", 2, WithReplacement=True, py=lambda i: T.combinations(i.v, 2, True))
add("Diff", T.diff, "g", 2, 1)
add("Diff/options", None, "g", 1, 0, Prepend="b4row", Append="b4row", py=lambda i: T.diff(i.g, 1, 0, i.b4row, i.b4row))
INPUTS["b4row"] = real(1, 4)
add("Gradient", None, "g", 2.0, [0, 1], py=lambda i: T.gradient(i.g, spacing=2.0, dim=(0, 1)))
add("Gradient/edge", None, "g", 1, [1], EdgeOrder=2, py=lambda i: T.gradient(i.g, spacing=1, dim=[1], edge_order=2))

# Indexing.
add("Take", T.take, "a", "ix")
add("TakeAlongDim", T.take_along_dim, "a", "ix", 1)
add("IndexCopy", T.index_copy, "emb", 0, "rows", "a")
INPUTS["emb2"] = real(2, 3)
for reduce in ("prod", "mean", "amax", "amin"):
    add("IndexReduce/" + reduce, T.index_reduce, "emb", 0, "rows", "emb2", reduce)
    add("ScatterReduce/" + reduce, T.scatter_reduce, "a", 1, "ix", "b", reduce)
add("ScatterReduce/sum", None, "a", 1, "ix", "b", "sum", ExcludeInput=True, py=lambda i: T.scatter_reduce(i.a, 1, i.ix, i.b, "sum", include_self=False))
add("SelectScatter", T.select_scatter, "a", "v", 0, 1)
add("SliceScatter", None, "g", "rhs", 1, Start=0, End=4, Step=2, py=lambda i: T.slice_scatter(i.g, i.rhs, 1, 0, 4, 2))
add("DiagonalScatter", T.diagonal_scatter, "g", "v", 0, 0, 1)

# Package linalg.
add("linalg.Norm", None, "a", None, None, py=lambda i: L.norm(i.a))
add("linalg.Norm/options", None, "x3", 1, [1], KeepDim=True, DType="float64", py=lambda i: L.norm(i.x3, 1, 1, keepdim=True, dtype=T.float64))
add("linalg.VectorNorm", L.vector_norm, "a", 3, [1])
add("linalg.VectorNorm/nil", None, "a", None, None, py=lambda i: L.vector_norm(i.a))
add("linalg.MatrixNorm", None, "x3", "", None, py=lambda i: L.matrix_norm(i.x3))
add("linalg.MatrixNorm/options", None, "x3", "nuc", [0, 2], KeepDim=True, py=lambda i: L.matrix_norm(i.x3, "nuc", (0, 2), True), tolerance=1e-4)
add("linalg.MatrixNormScalar", None, "x3", 1, None, py=lambda i: L.matrix_norm(i.x3, 1))
add("linalg.Diagonal", None, "x3", 1, -2, -1, py=lambda i: L.diagonal(i.x3, offset=1))
add("linalg.Det", L.det, "sqs", tolerance=1e-4)
add("linalg.SlogDet", L.slogdet, "sqs", tolerance=1e-4)
add("linalg.Cond", None, "sqs", None, py=lambda i: L.cond(i.sqs), tolerance=1e-4)
add("linalg.Cond/order", L.cond, "sqs", 1, tolerance=1e-4)
add("linalg.MatrixRank", L.matrix_rank, "sqs")
add("linalg.MatrixRank/options", None, "sym", Absolute=100.0, Relative=0.5, Hermitian=True, py=lambda i: L.matrix_rank(i.sym, atol=100.0, rtol=0.5, hermitian=True))
add("linalg.Cholesky", L.cholesky, "spd", tolerance=1e-4)
add("linalg.Cholesky/upper", None, "spd", Upper=True, py=lambda i: L.cholesky(i.spd, upper=True), tolerance=1e-4)
add("linalg.CholeskyEx", L.cholesky_ex, "spd", tolerance=1e-4)
add("linalg.QR", L.qr, "rhs", "", py=lambda i: L.qr(i.rhs), tolerance=1e-4, absolute=True)
add("linalg.QR/complete", None, "rhs", "complete", py=lambda i: L.qr(i.rhs, "complete"), tolerance=1e-4, absolute=True)
add("linalg.LU", L.lu, "sqs", tolerance=1e-4)
add("linalg.LUFactor", L.lu_factor, "sqs", tolerance=1e-4)
add("linalg.LUFactorEx", L.lu_factor_ex, "sqs", tolerance=1e-4)
add("linalg.LDLFactor", L.ldl_factor, "sym", tolerance=1e-4)
add("linalg.LDLFactorEx", L.ldl_factor_ex, "sym", tolerance=1e-4)
INPUTS["ld"], INPUTS["ldp"] = L.ldl_factor(INPUTS["sym"])
add("linalg.LDLSolve", L.ldl_solve, "ld", "ldp", "rhs", tolerance=1e-4)
add("linalg.Eig", L.eig, "upper", tolerance=1e-4, absolute=True)
add("linalg.EigVals", L.eigvals, "upper", tolerance=1e-4)
add("linalg.EigH", L.eigh, "sym", tolerance=1e-4, absolute=True)
add("linalg.EigH/upper", None, "sq", UPLO="U", py=lambda i: L.eigh(i.sq, "U"), tolerance=1e-4, absolute=True)
add("linalg.EigValsH", L.eigvalsh, "sym", tolerance=1e-4)
add("linalg.SVD", L.svd, "sqs", tolerance=1e-4, absolute=True)
add("linalg.SVD/reduced", None, "rhs", Reduced=True, py=lambda i: L.svd(i.rhs, full_matrices=False), tolerance=1e-4, absolute=True)
add("linalg.SVDVals", L.svdvals, "rhs", tolerance=1e-4)
add("linalg.HouseholderProduct", L.householder_product, "qr", "tau", tolerance=1e-4)
add("linalg.Solve", L.solve, "sqs", "rhss", tolerance=1e-4)
add("linalg.Solve/right", None, "sq", "a", Right=True, py=lambda i: L.solve(i.sq, i.a, left=False), tolerance=1e-4)
add("linalg.SolveEx", L.solve_ex, "sqs", "rhss", tolerance=1e-4)
add("linalg.SolveTriangular", None, "upper", "rhs", True, py=lambda i: L.solve_triangular(i.upper, i.rhs, upper=True), tolerance=1e-4)
add("linalg.SolveTriangular/options", None, "upper", "a", True, Right=True, UnitDiagonal=True, py=lambda i: L.solve_triangular(i.upper, i.a, upper=True, left=False, unitriangular=True), tolerance=1e-4)
add("linalg.LUSolve", L.lu_solve, "lu", "pivots", "rhs", tolerance=1e-4)
add("linalg.LUSolve/options", None, "lu", "pivots", "rhs", Adjoint=True, py=lambda i: L.lu_solve(i.lu, i.pivots, i.rhs, adjoint=True), tolerance=1e-4)
add("linalg.LstSq", None, "rhs", "spd", Driver="gels", py=lambda i: tuple(L.lstsq(i.rhs, i.spd, driver="gels")), tolerance=1e-4)
add("linalg.Inv", L.inv, "sqs", tolerance=1e-4)
add("linalg.InvEx", L.inv_ex, "sqs", tolerance=1e-4)
add("linalg.Pinv", L.pinv, "rhs", tolerance=1e-4)
INPUTS["map"] = (real(6, 6) + 4 * T.eye(6)).reshape(2, 3, 6)
add("linalg.TensorInv", L.tensorinv, "map", 2, tolerance=1e-4)
add("linalg.TensorSolve", L.tensorsolve, "map", "a", None, tolerance=1e-4)
add("linalg.MatMul", L.matmul, "a", "rhs")
add("linalg.MultiDot", None, "a", "sq", "rhs", py=lambda i: L.multi_dot([i.a, i.sq, i.rhs]))
add("linalg.VecDot", None, "z", "z", 1, py=lambda i: L.vecdot(i.z, i.z, dim=1))
add("linalg.Cross", None, "a", "b", 1, py=lambda i: L.cross(i.a, i.b, dim=1))
add("linalg.MatrixExp", L.matrix_exp, "c2", tolerance=1e-4)
add("linalg.MatrixPower", L.matrix_power, "sq", 3, tolerance=1e-4)
add("linalg.MatrixPower/negative", L.matrix_power, "sq", -1, tolerance=1e-4)
add("linalg.Vander", L.vander, "v")
add("linalg.Vander/columns", None, "v", Columns=2, py=lambda i: L.vander(i.v, N=2))

# Package fft.
for name in ("FFT", "IFFT", "RFFT", "IRFFT", "HFFT", "IHFFT"):
    fn, image = getattr(T.fft, name.lower()), "a" if name in ("RFFT", "IHFFT") else "z"
    add("fft." + name, fn, image, tolerance=1e-4)
    add(f"fft.{name}/options", None, image, Length=4, Dim=0, Norm="ortho", py=lambda i, fn=fn, image=image: fn(getattr(i, image), 4, 0, "ortho"), tolerance=1e-4)
    for n in ("2", "N"):
        fn = getattr(T.fft, name.lower() + n.lower())
        add(f"fft.{name}{n}", fn, image, tolerance=1e-4)
        add(f"fft.{name}{n}/options", None, image, Size=[4, 2], Dim=[1, 0], Norm="forward", py=lambda i, fn=fn, image=image: fn(getattr(i, image), (4, 2), (1, 0), "forward"), tolerance=1e-4)
add("fft.FFTFreq", None, f32, 5, 0.5, py=lambda i: T.fft.fftfreq(5, 0.5))
add("fft.RFFTFreq", None, f32, 5, 0.5, py=lambda i: T.fft.rfftfreq(5, 0.5))
add("fft.FFTShift", T.fft.fftshift, "g", [1])
add("fft.FFTShift/nil", T.fft.fftshift, "g", None)
add("fft.IFFTShift", T.fft.ifftshift, "g", [1])

# Package special.
POSITIVE = ("GammaLn", "Digamma", "Psi", "BesselY0", "BesselY1", "ModifiedBesselK0", "ModifiedBesselK1", "ScaledModifiedBesselK0", "ScaledModifiedBesselK1", "Entr", "Log1p")
UNIT = ("Erfinv", "Ndtri", "Logit")
OTHER = ("Erf", "Erfc", "Erfcx", "Ndtr", "LogNdtr", "Expit", "Exp2", "Expm1", "Sinc", "AiryAi", "BesselJ0", "BesselJ1", "I0", "I0e", "I1", "I1e", "ModifiedBesselI0", "ModifiedBesselI1",
         "SphericalBesselJ0")
PYTHON = {"Log1p": "log1p", "LogNdtr": "log_ndtr", "Exp2": "exp2", "Expm1": "expm1"}


def snake(name):
    import re
    return PYTHON.get(name) or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


for names, image in (POSITIVE, "pos"), (UNIT, "unit"), (OTHER, "wide"):
    for name in names:
        fn = getattr(S, {"GammaLn": "gammaln"}.get(name, snake(name)))
        add("special." + name, fn, image, tolerance=1e-4)
for name, fn in {"GammaInc": S.gammainc, "GammaIncC": S.gammaincc, "XLogY": S.xlogy, "XLog1PY": S.xlog1py}.items():
    add("special." + name, fn, "pos", "pos", tolerance=1e-4)
INPUTS["above"] = real(8, low=1.5, high=4.0)
add("special.Zeta", S.zeta, "above", "pos", tolerance=1e-4)
add("special.Polygamma", None, 1, "pos", py=lambda i: S.polygamma(1, i.pos), tolerance=1e-4)
add("special.MultiGammaLn", S.multigammaln, "above", 3, tolerance=1e-4)
add("special.Logit/eps", None, "u", Eps=0.25, py=lambda i: S.logit(i.u, 0.25))
add("special.Softmax", S.softmax, "a", 1)
add("special.LogSoftmax", S.log_softmax, "a", 1)
add("special.LogSumExp", S.logsumexp, "a", [1])
add("special.LogSumExp/nil", None, "a", None, py=lambda i: S.logsumexp(i.a, (0, 1)))
add("special.LogSumExp/keep", None, "a", [0, 1], KeepDim=True, py=lambda i: S.logsumexp(i.a, (0, 1), True))
add("special.Round", None, "a", 1, py=lambda i: S.round(i.a, decimals=1))
for kind in [a + "ChebyshevPolynomial" + b for a in ("", "Shifted") for b in "TUVW"] + ["HermitePolynomialH", "HermitePolynomialHe", "LaguerrePolynomialL", "LegendrePolynomialP"]:
    fn = getattr(S, snake(kind).replace("_h_e", "_he"))
    add("special." + kind, fn, "unit", "deg", tolerance=1e-3)
    add(f"special.{kind}Scalar", fn, "unit", 3, tolerance=1e-3)

# Lists of tensors.
for name in ("abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "log", "log10", "log1p", "log2", "neg", "tan", "sin", "sinh", "round", "sqrt",
             "lgamma", "frac", "reciprocal", "sigmoid", "trunc"):
    if name != "sqrt":
        add("Foreach" + name.title().replace("Log1P", "Log1p").replace("Expm1", "Expm1"), getattr(T, "_foreach_" + name), ["u", "unit"], tolerance=1e-4)
    if name not in ("sqrt", "neg", "reciprocal"):
        def run(i, fn=getattr(T, f"_foreach_{name}_")):
            fn([i.u, i.unit])
            return [i.u, i.unit]
        add("Foreach" + name.title().replace("Log1P", "Log1p") + "InPlace", None, ["u", "unit"], py=run, tolerance=1e-4)


# The Go arguments of the cases of operators.py that need no more than that. The last of them may be options.
ARGUMENTS = {
    "Zeros": ["float32", 2, 3], "Zeros/scalar": ["bool"], "Ones": ["float64", 2], "Full": ["float32", 2.5, 2, 2], "Full/int": ["uint8", 7, 2],
    "Arange": ["float32", 1, 2, 0.25], "Arange/step": ["int64", 0, 5, None], "Linspace": ["float32", -1, 1, 5], "Eye": ["float32", 3],
    "Rand": ["float32", 2, 3], "Randn": ["float32", 2, 3], "RandInt": ["int64", 3, 9, 2, 4], "RandPerm": [7], "ZerosLike": ["n"], "OnesLike": ["a"],
    "FullLike": ["a", -1.5], "RandLike": ["a"], "RandnLike": ["a"], "FillInPlace": ["a", 3], "ZeroInPlace": ["a"], "UniformInPlace": ["a", 2, 4],
    "NormalInPlace": ["a", 5, 0.5], "BernoulliInPlace": ["a", 0.25], "Bernoulli": ["u"], "Clone": ["a"], "CloneAs": ["img", 2],
    "Contiguous/channels": ["img", 2], "Detach": ["a"], "To": ["a", "int64"], "To/half": ["a", "bfloat16"], "ToFormat": ["img", "float64", 2],
    "Add": ["a", "b"], "Add/broadcast": ["a", "v"], "Add/promote": ["n", "a"], "AddScalar": ["a", 1.5], "AddScalar/int": ["n", 2],
    "AddScalar/float": ["n", 0.5], "AddInPlace": ["a", "b"], "AddScalarInPlace": ["a", 2], "AddScaled": ["a", "b", -2.5], "AddScaledInPlace": ["a", "b", 0.5],
    "Sub": ["a", "b"], "SubScalar": ["a", 0.5], "SubInPlace": ["a", "b"], "ScalarSub": ["a", 1], "Mul": ["a", "b"], "MulScalar": ["a", 3],
    "MulInPlace": ["a", "b"], "MulScalarInPlace": ["a", -1], "Div": ["n", "o"], "DivScalar": ["a", 4], "DivInPlace": ["a", "p"], "DivScalarInPlace": ["a", 8.0],
    "DivFloor": ["n", "o"], "DivTrunc": ["n", "o"], "Remainder": ["n", "o"], "RemainderScalar": ["n", -3], "Pow": ["p", "a"], "PowScalar": ["a", 2],
    "ScalarPow": [2.0, "a"], "Maximum": ["a", "b"], "Minimum": ["a", "b"], "Lerp": ["a", "b", 0.25], "LerpTensor": ["a", "b", "u"],
    "LerpInPlace": ["a", "b", 0.75], "AddCMul": ["a", "b", "p", None], "AddCMul/value": ["a", "b", "p", -0.5], "AddCMulInPlace": ["a", "b", "p", 2],
    "AddCDiv": ["a", "b", "p", None], "AddCDivInPlace": ["a", "b", "p", -1], "Abs": ["a"], "Neg": ["a"], "NegInPlace": ["a"], "Sign": ["n"], "Sqrt": ["p"],
    "Rsqrt": ["q"], "Square": ["a"], "Reciprocal": ["p"], "Exp": ["a"], "Expm1": ["a"], "Log": ["u"], "Log1p": ["u"], "Log2": ["q"], "Sin": ["a"], "Cos": ["a"],
    "Erf": ["a"], "Floor": ["a"], "Ceil": ["a"], "Round": ["s"], "Trunc": ["a"], "Clamp": ["a", -0.5, 1], "Clamp/max": ["a", None, 0],
    "ClampInPlace": ["a", 0.25, None], "NaNToNum": ["s"], "NaNToNum/options": ["s", {"NaN": -1.0, "PositiveInfinity": 2.0, "NegativeInfinity": -3.0}],
    "Eq": ["n", "o"], "EqScalar": ["n", 3], "Ne": ["n", "o"], "NeScalar": ["n", 3], "Lt": ["a", "b"], "LtScalar": ["a", 0.5], "Le": ["n", "o"],
    "LeScalar": ["n", 2], "Gt": ["a", "b"], "GtScalar": ["a", 0.5], "Ge": ["n", "o"], "GeScalar": ["n", 2], "LogicalAnd": ["c", "d"], "LogicalOr": ["c", "d"],
    "LogicalXor": ["c", "d"], "LogicalNot": ["n"], "IsNaN": ["s"], "IsInf": ["s"], "IsFinite": ["s"], "IsClose": ["a", "b"], "AllClose/no": ["a", "b"],
    "Equal": ["a", "a"], "Equal/no": ["a", "b"], "Where": ["c", "a", "b"], "WhereScalar": ["c", "a", 9.0], "MaskedFill": ["a", "c", -1],
    "MaskedFillInPlace": ["a", "c", 4.5], "Sum": ["a"], "Sum/int": ["c"], "SumDim": ["x3", [0, 2]], "SumDim/all": ["a", None, {"DType": "float64"}],
    "SumDim/keep": ["a", [-1], {"KeepDim": True}], "Mean": ["a"], "MeanDim": ["x3", [1], {"KeepDim": True}], "MeanDim/all": ["n", None, {"DType": "float32"}],
    "Prod": ["a"], "ProdDim": ["o", 1], "Var": ["x3", [1, 2]], "Var/options": ["a", None, {"Correction": 0, "KeepDim": True}], "Std": ["x3", [2]],
    "VectorNorm": ["a", None, None], "VectorNorm/dim": ["a", 1, [0], {"KeepDim": True}], "Max": ["a"], "MaxDim": ["a", 1],
    "MaxDim/keep": ["a", 0, {"KeepDim": True}], "Min": ["a"], "MinDim": ["a", -1], "AMax": ["x3", [0, 1]], "AMax/all": ["a", None],
    "AMin": ["x3", [2], {"KeepDim": True}], "ArgMax": ["a", 1], "ArgMin": ["a", 0, {"KeepDim": True}], "Any": ["c"], "AnyDim": ["n", 1], "All": ["c"],
    "AllDim": ["n", 0, {"KeepDim": True}], "LogSumExp": ["x3", [1, 2]], "CumSum": ["a", 1], "Sort": ["a", 1],
    "Sort/options": ["ties", 1, {"Descending": True, "Stable": True}], "ArgSort": ["a", 0],
    "ArgSort/options": ["ties", 1, {"Descending": True, "Stable": True}], "TopK": ["a", 2, 1],
    "TopK/options": ["a", 1, 0, {"Smallest": True, "Unsorted": True}], "NonZero": ["c"], "MaskedSelect": ["a", "c"], "MatMul": ["a", "g"], "MM": ["a", "g"],
    "BMM": ["x3", "y3"], "AddMM": ["b4", "a", "g"], "AddMM/options": ["b4", "a", "g", {"Beta": 0.5, "Alpha": 2}], "Dot": ["v", "w"], "Outer": ["v", "b4"],
    "Einsum": ["bij,bjk->bik", "x3", "y3"], "Conv1d": ["seq", "w1", None],
    "Conv1d/options": ["seq", "w1", "b2", {"Stride": [2], "Padding": [1], "Dilation": [2]}], "Conv2d": ["img", "w2", "b4"],
    "Conv2d/options": ["img", "w2g", "b4", {"Stride": [2, 1], "Padding": [1, 0], "Dilation": [1, 2], "Groups": 2}], "Conv3d": ["vol", "w3", None],
    "Conv3d/options": ["vol", "w3", "b2", {"Padding": [1, 0, 0], "Stride": [2, 1, 1]}], "ConvTranspose2d": ["img", "wt", None],
    "ConvTranspose2d/options": ["img", "wt", "b4", {"Stride": [2, 2], "Padding": [1, 1], "OutputPadding": [1, 1], "Groups": 2, "Dilation": [1, 2]}],
    "MaxPool2d": ["img", [2, 2]], "MaxPool2d/options": ["img", [3, 2], {"Stride": [2, 2], "Padding": [1, 0], "Dilation": [1, 2], "CeilMode": True}],
    "MaxPool2dWithIndices": ["img", [2, 2]], "AvgPool2d": ["img", [2, 2]],
    "AvgPool2d/options": ["img", [3, 3], {"Stride": [2, 2], "Padding": [1, 1], "CeilMode": True, "ExcludePadding": True}],
    "AvgPool2d/divisor": ["img", [3, 3], {"Padding": [1, 1], "Divisor": 2}], "AdaptiveAvgPool2d": ["img", [2, 3]], "AdaptiveMaxPool2d": ["img", [2, 2]],
    "UpsampleNearest2d": ["img", [7, 3]], "UpsampleBilinear2d": ["img", [3, 8], False], "UpsampleBilinear2d/corners": ["img", [3, 8], True],
    "LayerNorm": ["a", [3], "v", "w"], "LayerNorm/options": ["x3", [3, 4], None, None, {"Eps": 0.5}], "GroupNorm": ["img", 2, "p4", "b4"],
    "GroupNorm/options": ["img", 4, None, None, {"Eps": 0.5}], "ReLU": ["a"], "ReLUInPlace": ["a"], "LeakyReLU": ["a", None], "LeakyReLU/slope": ["a", 0.2],
    "ELU": ["a", None], "ELU/alpha": ["a", 0.5], "GELU": ["a"], "GELUTanh": ["a"], "SiLU": ["a"], "HardSwish": ["a"], "SiLUInPlace": ["a"],
    "HardSwishInPlace": ["a"], "HardSigmoid": ["a"], "HardTanh": ["a", None, None], "HardTanh/bounds": ["a", -0.5, 0.25], "Sigmoid": ["a"], "LogSigmoid": ["a"],
    "Tanh": ["a"], "Softplus": ["a"], "Softplus/options": ["a", {"Beta": 2, "Threshold": 1}], "Softmax": ["a", 1], "LogSoftmax": ["a", 0],
    "Dropout": ["img", 0.5, True], "Dropout/eval": ["a", 0.5, False], "Embedding": ["emb", "tok"], "Embedding/padding": ["emb", "tok", {"PaddingIndex": 0}],
    "OneHot": ["target", 6], "OneHot/unknown": ["target", -1], "ScaledDotProductAttention": ["query", "key", "value"],
    "ScaledDotProductAttention/causal": ["query", "key", "value", {"Causal": True, "Scale": 0.25}],
    "ScaledDotProductAttention/grouped": ["query", "key1", "value1", {"GroupedQuery": True}], "CrossEntropy": ["logits", "target"],
    "CrossEntropyWith": ["logits", "target"],
    "CrossEntropyWith/options": ["logits", "target", {"Weight": "p5", "Reduction": 1, "IgnoreIndex": 0, "LabelSmoothing": 0.1}],
    "CrossEntropyWith/none": ["logits", "target", {"Reduction": 2}], "NLLLoss": ["logits", "target"],
    "NLLLoss/options": ["logits", "target", {"Weight": "p5", "Reduction": 2, "IgnoreIndex": 4}], "BinaryCrossEntropyWithLogits": ["a", "u"],
    "BinaryCrossEntropyWithLogits/options": ["a", "u", {"Weight": "p", "PositiveWeight": "q", "Reduction": 1}], "MSELoss": ["a", "b"],
    "MSELoss/none": ["a", "b", {"Reduction": 2}], "L1Loss": ["a", "b", {"Reduction": 1}], "SmoothL1Loss": ["a", "b"],
    "SmoothL1Loss/options": ["a", "b", {"Reduction": 2, "Beta": 0.25}], "KLDiv": ["a", "u"], "KLDiv/options": ["a", "b", {"Reduction": 1, "LogTarget": True}],
    "View": ["a", 3, 2], "View/infer": ["a", -1], "Flatten": ["img", 1, -1], "Permute": ["x3", 2, 0, 1], "Transpose": ["x3", 0, -1], "MoveDim": ["x3", 0, 2],
    "Squeeze": ["seq", 0, 1], "Unsqueeze": ["a", 1], "Expand": ["row", 2, -1], "Repeat": ["a", 2, 1, 2], "RepeatInterleave": ["a", 2, 1],
    "Cat": [["a", "b", "row"], 0], "Stack": [["a", "b"], -1], "Split": ["g", 3, 1], "SplitWithSizes": ["g", [1, 0, 3], 1], "Chunk": ["g", 2, 0],
    "Unbind": ["a", 1], "Narrow": ["g", 1, 1, 2], "Slice": ["g", 1, {"Start": 1, "End": 4, "Step": 2}], "Slice/end": ["g", 0, {"Start": -2}],
    "Slice/all": ["g", 0], "Select": ["g", 1, -1], "Diagonal": ["g", 1, 0, 1], "Diagonal/dims": ["x3", 0, 1, 2], "Triu": ["g", 1], "Tril": ["g", -1],
    "Flip": ["x3", 0, 2], "Roll": ["g", [1, -1], [0, 1]], "Pad": ["a", [1, 0, 0, 2]], "Pad/value": ["a", [1, -1], {"Value": 7}],
    "Pad/reflect": ["img", [1, 2, 2, 1], {"Mode": "reflect"}], "Meshgrid": [["v", "b2"], "ij"], "Meshgrid/xy": [["v", "b2"], "xy"],
    "IndexSelect": ["g", 0, "rows"], "IndexAdd": ["emb", 0, "rows", "a", None], "IndexAdd/alpha": ["emb", 0, "rows", "a", -2], "Gather": ["a", 1, "ix"],
    "ScatterAdd": ["a", 1, "ix", "b"], "Index/mask": ["a", ["c"]], "IndexPut": ["a", ["c"], "one"], "IndexPutInPlace": ["g", ["rows"], "b4"],
    "ForeachAdd": [["p", "va"], ["q", "wa"], None], "ForeachAdd/alpha": [["p", "va"], ["q", "wa"], -2], "ForeachAddScalar": [["p", "va"], 1.5],
    "ForeachAddInPlace": [["p", "va"], ["q", "wa"], 0.5], "ForeachAddScalarInPlace": [["p", "va"], 2], "ForeachSub": [["p", "va"], ["q", "wa"], None],
    "ForeachSubInPlace": [["p", "va"], ["q", "wa"], 3], "ForeachMul": [["p", "va"], ["q", "wa"]], "ForeachMulScalar": [["p", "va"], 3],
    "ForeachMulInPlace": [["p", "va"], ["q", "wa"]], "ForeachMulScalarInPlace": [["p", "va"], 0.5], "ForeachDiv": [["p", "va"], ["q", "wa"]],
    "ForeachDivInPlace": [["p", "va"], ["q", "wa"]], "ForeachDivScalarInPlace": [["p", "va"], 4], "ForeachNegInPlace": [["p", "va"]],
    "ForeachSqrt": [["p", "va"]], "ForeachSqrtInPlace": [["p", "va"]], "ForeachReciprocalInPlace": [["p", "va"]],
    "ForeachMaximumInPlace": [["p", "va"], ["q", "wa"]], "ForeachClampMinInPlace": [["p", "va"], 0.75], "ForeachClampMaxInPlace": [["p", "va"], 0.75],
    "ForeachLerpInPlace": [["p", "va"], ["q", "wa"], 0.25], "ForeachAddCMulInPlace": [["p", "va"], ["q", "wa"], ["a", "v"], None],
    "ForeachAddCDivInPlace": [["p", "va"], ["a", "v"], ["q", "wa"], -0.5], "ForeachCopyInPlace": [["p", "va"], ["q", "wa"]],
    "ForeachZeroInPlace": [["p", "va"]], "ForeachNorm": [["a", "v"], None], "ForeachNorm/order": [["a", "v"], 1],
}
for name, args in ARGUMENTS.items():
    options = args.pop() if isinstance(args[-1:] and args[-1], dict) else {}

    def run(i, case=CASES[name], changes=name.split("/")[0].endswith("InPlace") and "Foreach" not in name):
        return case(i)[0] if changes else case(i)
    add(name, None, *args, py=run, **options)


def result(v):
    """A result as a list of tensors; a number becomes a tensor, and the name of a dtype stays."""
    if isinstance(v, torch.Tensor):
        return [describe(v)]
    if isinstance(v, (bool, int, float)):
        return [describe(torch.tensor(v))]
    if isinstance(v, str):
        return [{"dtype": v}]
    return list(itertools.chain.from_iterable(result(e) for e in v))


def main():
    calls = {}
    for name, (fn, args, options, py, tolerance, absolute) in CALLS.items():
        i = SimpleNamespace(**{k: t.clone() for k, t in INPUTS.items()})
        torch.manual_seed(42)
        got = result(py(i) if py else fn(*of(i, args)))
        calls[name] = {"args": args} | ({"options": options} if options else {}) | ({"tolerance": tolerance} if tolerance else {})
        calls[name] |= ({"absolute": True} if absolute else {}) | {"results": got}
    used = {a for c in CALLS.values() for v in (c[1], c[2].values()) for a in itertools.chain.from_iterable([e] if isinstance(e, str) else e if isinstance(e, list) else [] for e in v)
            if isinstance(a, str)}
    lines = ['{"torch": ' + json.dumps(torch.__version__.split("+")[0]) + ",", '"inputs": {']
    lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(describe(t))}" for k, t in INPUTS.items() if k in used))
    lines.append('},\n"calls": {')
    lines.append(",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in calls.items()))
    lines.append("}}\n")
    pathlib.Path(__file__).with_name("calls.json").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
