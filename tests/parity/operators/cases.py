"""Writes random calls of the typed operators, with what PyTorch's operator returns for the same arguments.

python cases.py TYPED COUNT SEED [hostile] [NAME], where TYPED is the output of opgen -describe. COUNT cases of each operator go to
standard output, one JSON object a line. A case says that PyTorch returns tensors, that it raises an error, or that it
dies of a signal. "unsound" is a case that LibTorch takes by mistake, and that the Go function must refuse. NAME is an expression for the names of the operators. Half of the cases of an operator are its calls in cgotorch/testdata/calls.py with changed tensors and
numbers; the others have random arguments that fit the schema. Run it by run.sh.
"""

import json
import os
import pathlib
import random
import re
import resource
import signal
import sys
import traceback
import warnings

import torch

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "cgotorch/testdata"))
import calls  # noqa: E402

warnings.filterwarnings("ignore")
DTYPES = ["float32"] * 6 + ["float64", "float64", "float16", "bfloat16", "int64", "int64", "uint8", "bool", "complex64"]
SHAPES = [(), (1,), (3,), (0,), (2, 3), (3, 2), (3, 3), (1, 3), (0, 3), (2, 0), (2, 3, 4), (2, 1, 4), (1, 2, 5), (2, 0, 4), (1, 2, 4, 4), (2, 4, 3, 5), (1, 2, 3, 4, 4)]
# Fused steps die of gradients of other shapes than their parameters: see cgotorch/guard.go.
LEFT_OUT = re.compile("Fused")
HOSTILE = "hostile" in sys.argv  # many zeros as sizes, steps and counts
LARGE = 12  # no size or count is above it, except where a test is for large ones


class Tensor:
    """A tensor of a case: elements in row-major order, seen through strides of some layout."""

    def __init__(self, t):
        self.t = t

    def json(self):
        t = self.t
        d = {"dtype": str(t.dtype).removeprefix("torch."), "shape": list(t.shape), "data": elements(t)}
        if t.stride() == torch.empty(t.shape).stride():
            return d
        if t.numel():
            base = torch.as_strided(t, (room(t),), (1,), t.storage_offset()).clone()
            d |= {"strides": list(t.stride()), "base": elements(base)}
            d["data"] = []
        else:
            d["strides"] = list(t.stride())
        return d


def room(t):
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride()))


def elements(t):
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    return [v if isinstance(v, int) and not isinstance(v, bool) or v == v and abs(v) != float("inf") else str(v)
            for v in (int(e) if isinstance(e, bool) else e for e in t.flatten().tolist())]


def values(rng, shape, dtype, kind):
    """A random tensor. kind is "index" for small integers that are not negative."""
    g = torch.Generator().manual_seed(rng.randrange(1 << 30))
    kinds = getattr(torch, dtype)
    if kind == "index":
        return torch.randint(0, 3, shape, generator=g).to(kinds)
    if dtype == "bool":
        return torch.randint(0, 2, shape, generator=g).bool()
    if not kinds.is_floating_point and not kinds.is_complex:
        return torch.randint(0 if dtype == "uint8" else -4, 6, shape, generator=g).to(kinds)
    t = torch.randint(-200, 201, shape, generator=g).double() / 100
    if rng.random() < 0.3:
        t = t.abs()
    if rng.random() < 0.1 and t.numel():
        t.view(-1)[rng.randrange(t.numel())] = rng.choice([float("nan"), float("inf"), float("-inf"), 0.0])
    if kinds.is_complex:
        t = torch.complex(t, torch.randint(-200, 201, shape, generator=g).double() / 100)
    return t.to(kinds)


def layout(rng, t):
    """The same elements with other strides."""
    if t.dim() == 0 or rng.random() < 0.6:
        return t
    how = rng.choice(["transposed", "gaps", "expanded"])
    if how == "transposed" and t.dim() > 1:
        return t.transpose(0, -1).contiguous().transpose(0, -1)
    if how == "gaps":
        wide = torch.zeros(*t.shape[:-1], 2 * t.shape[-1], dtype=t.dtype)
        wide[..., ::2] = t
        return wide[..., ::2]
    if how == "expanded" and t.shape[0] > 1:
        return t[:1].expand(t.shape)
    return t


def is_index(name):
    return re.search(r"ind(ex|ices)|target|offsets|lengths|bins|pivots", name) is not None


# Calls in Go's arguments, for operators whose arguments fit each other seldom by chance.
CALLS = {
    "Conv1d": ["seq", "w1", "b2"], "Conv2d": ["img", "w2", "b4"], "Conv3d": ["vol", "w3", "b2"], "ConvTranspose2d": ["img", "wt", None],
    "ConvTranspose3d": ["vol", "wt3", "b2"], "MaxPool1d": ["seq2", [2]], "MaxPool2d": ["img", [2, 2]], "MaxPool2dWithIndices": ["img", [2, 2]], "AvgPool2d": ["img", [2, 3]],
    "MaxPool3d": ["vol2", [2, 2, 2]], "AdaptiveAvgPool2d": ["img", [2, 3]], "AdaptiveMaxPool2d": ["img", [2, 3]],
    "UpsampleNearest2d": ["img", [7, 3]], "UpsampleBilinear2d": ["img", [7, 3], True],
    "BatchNorm": ["img", "b4", "p4", "mean4", "var4"], "InstanceNorm": ["img", "b4", None, None, None], "GroupNorm": ["img", 2, "b4", "p4"],
    "LayerNorm": ["a", [3], "v", "w"], "RMSNorm": ["a", [3], "v"], "Linear": ["a", "sq", "v"], "AddMM": ["v", "a", "sq"], "MM": ["a", "sq"], "BMM": ["x3", "y3"],
    "MatMul": ["x3", "y3"], "Dot": ["v", "w"], "Outer": ["v", "w"], "CrossEntropy": ["logits", "target"], "CrossEntropyWith": ["logits", "target"],
    "NLLLoss": ["logits", "target"], "KLDiv": ["a", "p"], "BinaryCrossEntropyWithLogits": ["a", "u"], "Embedding": ["emb", "tok"], "OneHot": ["tok", 6],
    "ScaledDotProductAttention": ["query", "key", "value"], "Bernoulli": ["u"], "Permute": ["x3", [2, 0, 1]], "Einsum": ["ij,kj->ik", ["a", "b"]],
    "Gather": ["a", 1, "ix"], "Scatter": ["p", 1, "ix", "b"], "ScatterScalar": ["p", 1, "ix", 2], "ScatterAdd": ["a", 1, "ix", "b"], "IndexSelect": ["g", 0, "rows"],
    "IndexAdd": ["emb", 0, "rows", "a", None], "Index": ["g", ["rows"]], "IndexPut": ["g", ["rows"], "b4"], "MaskedSelect": ["a", "c"], "Gradient": ["g", 1, [0, 1]],
    "Narrow": ["g", 1, 1, 2], "Unfold": ["img", [2, 2]], "Pad": ["img", [1, 2, 2, 1]], "Roll": ["g", [1, -1], [0, 1]], "SplitWithSizes": ["g", [1, 2], 0],
    "Split": ["g", 2, 1], "Chunk": ["g", 2, 1], "RepeatInterleave": ["g", 2, 1], "PixelShuffle": ["img", 2],
}


class Maker:
    def __init__(self, rng, op):
        self.rng, self.op = rng, op
        self.shape, self.dtype = rng.choice(SHAPES), rng.choice(DTYPES)
        self.dims = len(self.shape)

    def tensor(self, p):
        rng, shape, dtype = self.rng, self.shape, self.dtype
        name, kind = p["argument"], ""
        if is_index(name):
            dtype, kind = "int64", "index"
        elif name in ("mask", "condition"):
            dtype = "bool"
        elif rng.random() < 0.12:
            dtype = rng.choice(DTYPES)
        roll = rng.random()
        if roll < 0.12 and shape:
            shape = tuple(1 if rng.random() < 0.5 else n for n in shape)[rng.randrange(len(shape)):]
        elif roll < 0.2:
            shape = rng.choice(SHAPES)
        if name in ("mat2", "batch2", "vec2", "B", "b"):
            shape = tuple(reversed(shape)) if len(shape) < 3 else shape[:-2] + shape[-1:] + shape[-2:-1]
        return Tensor(layout(rng, values(rng, shape, dtype, kind)))

    def integer(self, p):
        rng, name = self.rng, p["argument"]
        if "dim" in name or name in ("axis", "destination"):
            return rng.randint(-max(self.dims, 1) - (rng.random() < 0.1), max(self.dims, 1) - 1 + (rng.random() < 0.1))
        if rng.random() < (0.5 if HOSTILE else 0.06):
            return rng.choice([0, -1, -3, LARGE] + [0] * 6 * HOSTILE)
        return rng.randint(1, 4)

    def integers(self, p):
        rng, name = self.rng, p["argument"]
        if "dim" in name:
            count = rng.randint(0, max(self.dims, 1))
            dims = rng.sample(range(-self.dims, self.dims), min(count, 2 * self.dims)) if self.dims else []
            return sorted({d % max(self.dims, 1): d for d in dims}.values(), key=abs)
        if name in ("size", "shape", "sizes"):
            shape = rng.choice(SHAPES)
            return list(self.shape if rng.random() < 0.5 else shape)
        return [0 if rng.random() < (0.4 if HOSTILE else 0.05) else rng.randint(1, 3) for _ in range(rng.choice([1, 2, 2, 3]))]

    def number(self):
        return self.rng.choice([0, 1, 2, 3, -1, 0.5, -1.5, 2.0, True, 0.25] + [0, float("nan"), float("inf")] * 2 * HOSTILE)

    def value(self, p):
        rng, kind, of = self.rng, p["kind"].rstrip("?"), p["type"]
        optional = p["kind"].endswith("?")
        if kind == "Tensor":
            return None if optional and rng.random() < 0.4 else self.tensor(p)
        if kind in ("Tensor[]", "Tensor?[]"):
            return [self.tensor(p) for _ in range(rng.randint(1, 3))]
        if "Reduction" in of:
            return rng.choice([0, 1, 2])
        if kind in ("int", "SymInt"):
            return self.integer(p)
        if kind == "float":
            return float(rng.choice([0.0, 0.5, 1.0, 2.0, 0.1, 3.0, -1.0 if rng.random() < 0.3 else 0.25]))
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "Scalar":
            return self.number() if not optional or rng.random() < 0.7 else None
        if kind in ("int[]", "SymInt[]"):
            return self.integers(p) if not (optional and rng.random() < 0.3) else None
        if kind == "float[]":
            return sorted([rng.uniform(-2, 0), rng.uniform(0.1, 2)])
        if kind == "ScalarType":
            return rng.choice(DTYPES)
        if kind == "MemoryFormat":
            return rng.choice([0, 0, 0, 2])
        if kind == "str":
            return rng.choice({"interpolation": ["linear", "lower", "higher", "midpoint", "nearest"], "norm": ["", "ortho", "forward", "backward"],
                               "reduce": ["sum", "prod", "mean", "amax", "amin"], "indexing": ["ij", "xy"], "mode": ["", "constant", "reflect", "replicate", "circular", "complete", "r"],
                               "UPLO": ["L", "U"], "ord": ["fro", "nuc", ""], "driver": [""], "pad_mode": ["reflect", "constant"],
                               "equation": ["ij,jk", "i,i", "...ij->...ji", "ij->i"]}.get(p["argument"], [""]))
        raise ValueError(p)

    def random(self):
        return [self.value(p) for p in self.op["params"]], {p["go"]: self.value(p) for p in self.op["options"] if self.rng.random() < 0.35}


class Changer(Maker):
    """Changes a call of calls.py: its tensors' dtypes, layouts and sizes, and its numbers."""

    def __init__(self, rng, op, call):
        super().__init__(rng, op)
        self.args, self.fields = call
        self.cast = rng.choice(DTYPES) if rng.random() < 0.5 else None
        self.empty = rng.random() < 0.08

    def change(self, p, v):
        rng = self.rng
        if isinstance(v, str) and "Tensor" in p["type"]:
            t = calls.INPUTS[v].clone()
            if self.cast and (t.is_floating_point() or t.is_complex()):
                t = t.to(getattr(torch, self.cast)) if not (t.is_complex() and self.cast != "complex64") else t
            if t.dim() and rng.random() < 0.1:
                t = torch.cat([t, t]) if rng.random() < 0.5 else t[:rng.randrange(t.shape[0] + 1)]
            if self.empty and t.dim():
                t = t[:0]
            if HOSTILE and t.dim() and rng.random() < 0.4:
                t = t.narrow(rng.randrange(t.dim()), 0, 0)
            return Tensor(layout(rng, t))
        if isinstance(v, (list, tuple)):
            if v and isinstance(v[0], str):
                return [self.change(p, e) for e in v]
            if HOSTILE:
                return [0 if isinstance(e, int) and rng.random() < 0.3 else e for e in v]
            return [e + rng.choice([-1, 1]) if isinstance(e, int) and rng.random() < 0.1 else e for e in v]
        if isinstance(v, bool):
            return not v if rng.random() < 0.3 else v
        if isinstance(v, int) and HOSTILE and rng.random() < 0.4 and "Reduction" not in p["type"]:
            return 0
        if isinstance(v, int) and "Reduction" not in p["type"] and rng.random() < 0.2:
            return v + rng.choice([-1, 1, -2, 2])
        if isinstance(v, float) and rng.random() < 0.2:
            return v * rng.choice([0.5, 2.0, -1.0])
        return v

    def random(self):
        params, args = self.op["params"], list(self.args)
        if params and params[-1]["type"].startswith("..."):
            last = args[len(params) - 1:]
            args = args[:len(params) - 1] + [last]
        by = {p["go"]: p for p in self.op["options"]}
        options = {name: self.change(by[name], v) for name, v in self.fields.items()}
        for p in self.op["options"]:
            if p["go"] not in options and self.rng.random() < 0.15:
                options[p["go"]] = self.value(p)
        return [self.change(p, v) for p, v in zip(params, args)], options


DTYPE_NAMES = {0: "uint8", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 9: "complex64", 11: "bool", 15: "bfloat16"}
FORMATS = {0: torch.contiguous_format, 1: torch.preserve_format, 2: torch.channels_last, 3: torch.channels_last_3d}
DEFAULT = object()


def converted(op, p, v, positional):
    """The value that the Go function passes to the operator for v, or DEFAULT."""
    kind, optional = p["kind"].rstrip("?"), p["kind"].endswith("?")
    fallback = re.search(rf"\b{p['argument']}=", op["schema"]) is not None
    if "Reduction" in p["type"]:
        return [1, 2, 0][v]
    if p.get("inverted"):
        v = not v
    if p.get("zero") and v == 0:
        return DEFAULT
    if p.get("all") and not v:
        return DEFAULT if v is None and not positional else "all"
    if v is None:
        if fallback and (not p.get("fallback")):
            return DEFAULT
        if kind.endswith("[]") and not optional:
            return []
        return None
    if kind == "str" and v == "" and (fallback or optional):
        return DEFAULT
    if kind == "ScalarType":
        return getattr(torch, v)
    if kind == "MemoryFormat":
        return FORMATS[v]
    return v


def literal(text):
    """The value of a literal of operators.txt."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"'):
        return text.strip('"')
    return float(text) if re.search(r"[.e]", text) else int(text)


def plain(v):
    if isinstance(v, Tensor):
        return fresh(v.t)
    if isinstance(v, list):
        return [plain(e) for e in v]
    return v


def fresh(t):
    """A copy with equal strides."""
    if not t.numel():
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype)
    return torch.as_strided(torch.as_strided(t, (room(t),), (1,), t.storage_offset()).clone(), t.shape, t.stride())


def run(op, args, options):
    name, _, overload = op["operator"].removeprefix("aten::").partition(".")
    fn = getattr(getattr(torch.ops.aten, name), overload or "default")
    kwargs = {}
    for p, v in zip(op["params"], args):
        kwargs[p["argument"]] = converted(op, p, v, True)
    for p in op["options"]:
        if p["go"] in options:
            kwargs[p["argument"]] = converted(op, p, options[p["go"]], False)
        elif p.get("fallback"):
            kwargs[p["argument"]] = literal(p["fallback"])
    for name, text in op["fixed"].items():
        kwargs[name] = literal(text)
    for p in op["params"]:
        if isinstance(kwargs.get(p["argument"]), str) and kwargs[p["argument"]] == "all" and p.get("all"):
            kwargs[p["argument"]] = list(range(args[0].t.dim()))
    kwargs = {k: plain(v) for k, v in kwargs.items() if v is not DEFAULT}
    torch.manual_seed(42)
    result = fn(**kwargs)
    if "ScalarType" == op["schema"].rpartition("-> ")[2]:
        return [DTYPE_NAMES[result]]
    if result is None:
        first = next(v for v in kwargs.values() if isinstance(v, list))
        return list(first)
    return flat(result)


def flat(v):
    if isinstance(v, torch.Tensor):
        return [v]
    if isinstance(v, torch.dtype):
        return [str(v).removeprefix("torch.")]
    if isinstance(v, (bool, int, float)):
        return [torch.tensor(v)]
    if isinstance(v, (list, tuple)):
        return [t for e in v for t in flat(e)]
    return [v]


def encoded(v, tensors):
    if isinstance(v, Tensor):
        tensors.append(v.json())
        return f"t{len(tensors) - 1}"
    if isinstance(v, list):
        return [encoded(e, tensors) for e in v]
    if isinstance(v, float) and (v != v or abs(v) == float("inf")):
        return str(v)
    return v


def make(op, templates, seed, number):
    rng = random.Random(f"{seed} {op['go']} {number}")
    maker = Changer(rng, op, rng.choice(templates)) if templates and number % 2 else Maker(rng, op)
    args, options = maker.random()
    tensors = []
    shown = [encoded(v, tensors) for v in args]
    if op["params"] and op["params"][-1]["type"].startswith("..."):
        shown = shown[:-1] + (shown[-1] or [])
    case = {"go": op["go"], "args": shown, "options": {k: encoded(v, tensors) for k, v in options.items()}}
    case["inputs"] = {f"t{i}": t for i, t in enumerate(tensors)}
    return case, args, options


def describe(v):
    if isinstance(v, str):
        return {"dtype": v}
    d = {"dtype": str(v.dtype).removeprefix("torch."), "shape": list(v.shape), "data": elements(v)}
    if v.stride() != torch.empty(v.shape).stride():
        d["strides"] = list(v.stride())
    return d


def alike(a, b):
    return len(a.get("data", [])) == len(b.get("data", [])) and all(
        x == y or not isinstance(x, str) and not isinstance(y, str) and abs(x - y) <= 1e-2 * (abs(x) + abs(y)) for x, y in zip(a.get("data", []), b.get("data", [])))


def unsound(op, args, options):
    """LibTorch reads or returns memory that it must not, and does not die of it every time."""
    if op["go"] == "LUUnpack":
        lu, pivots = args[0].t, args[1].t
        return lu.dim() > 1 and pivots.shape != lu.shape[:-2] + (min(lu.shape[-2:]),)
    if op["go"] == "EmbeddingBag":
        indices, offsets = args[1].t, args[2].t
        return indices.dim() != 1 or offsets.dim() != 1 or not offsets.numel() and indices.numel() > 0 or not 0 <= args[3] <= 2
    return op["go"] == "GridSample" and not all(0 <= options.get(name, 0) <= 2 for name in ("Interpolation", "Outside"))


def work(op, templates, seed, numbers, out):
    """Runs in a child: one line for each case, after a line that says which one begins."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))
    for number in numbers:
        case, args, options = make(op, templates, seed, number)
        out.write(json.dumps(case | {"outcome": "dies"}) + "\n")
        out.flush()
        signal.alarm(20)
        try:
            results = [describe(t) for t in run(op, args, options)]
            # Where the second run differs, PyTorch returns memory that it has not written.
            torch._C._set_deterministic_algorithms(True, warn_only=True)
            poisoned = [describe(t) for t in run(op, args, options)]
            torch._C._set_deterministic_algorithms(False)
            if unsound(op, args, options):
                case["outcome"] = "unsound"
            elif sum(len(r.get("data", [])) for r in results) < 4000:
                case |= {"outcome": "returns", "results": results}
                # LibTorch's medians of expanded integers vary from run to run, and are wrong.
                median = "Median" in op["go"] and 0 in args[0].t.stride()
                # Rows of GroupedMM that belong to no group are not written.
                rest = op["go"] == "GroupedMM" and len(args[2].t) and args[2].t[-1] != results[0]["shape"][0]
                if median or rest or not all(map(alike, results, poisoned)):
                    case["undefined"] = True
            else:
                case["outcome"] = "large"
        except Exception as e:
            torch._C._set_deterministic_algorithms(False)
            case |= {"outcome": "raises", "error": str(e)[:200]}
        signal.alarm(0)
        out.write(json.dumps(case) + "\n")
        out.flush()


def cases_of(op, templates, seed, count):
    """Yields the cases of an operator. A child that dies is followed by another one, behind the case that killed it."""
    number = 0
    while number < count:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            try:
                with os.fdopen(write, "w") as out:
                    work(op, templates, seed, range(number, count), out)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(write)
        last = None
        with os.fdopen(read) as lines:
            for line in lines:
                if not line.endswith("\n"):
                    break
                case = json.loads(line)
                if case["outcome"] == "dies":
                    last = case
                    continue
                last, number = None, number + 1
                yield case
        _, status = os.waitpid(child, 0)
        if last is None and status:
            sys.exit(f"{op['go']}: the child failed before case {number}")
        if last is not None:
            number += 1
            by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
            yield last | {"signal": by, "outcome": "slow" if by == signal.SIGALRM else "dies"}


def main():
    typed, count, seed = json.loads(pathlib.Path(sys.argv[1]).read_text()), int(sys.argv[2]), int(sys.argv[3])
    only = next((arg for arg in sys.argv[4:] if arg != "hostile"), "")
    templates = {}
    for name, call in calls.CALLS.items():
        templates.setdefault(name.partition("/")[0], []).append(call[1:3])
    for name, args in CALLS.items():
        if args[-1:] and isinstance(args[-1], list) and name in ("Permute", "Einsum"):
            args = args[:-1] + args[-1]
        templates.setdefault(name, []).append((args, {}))
    totals = {}
    lines = os.fdopen(os.dup(1), "w")  # MKL prints to standard output
    os.dup2(2, 1)
    for op in typed:
        if LEFT_OUT.match(op["go"]) or only and not re.search(only, op["go"]):
            continue
        for case in cases_of(op, templates.get(op["go"]), seed, count):
            totals[case["outcome"]] = totals.get(case["outcome"], 0) + 1
            print(json.dumps(case), file=lines, flush=True)
    print("cases:", totals, file=sys.stderr)


if __name__ == "__main__":
    main()
