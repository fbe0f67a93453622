"""Exports programs whose Python code asks for sizes, and writes what PyTorch does with each.

    make.py >programs.jsonl

Each line has the JSON of one exported program, and calls of it with several sizes. A call has the
leaves of its result, or is refused by PyTorch. The elements of a tensor argument are 0, 1, 2, 3, 4,
0, 1, ... minus 1. A new program is one entry of PROGRAMS: its name, its function, the arguments for
given sizes, the sizes of the export, and the sizes of the calls. Keys of a dict are sorted. Dimensions are Dim.AUTO unless the
entry gives dynamic shapes. A last value tells how it is exported: True is strict, "deferred" has
assertions in the place of guards.
"""

import io
import json
import logging
import math
import sys
import types
import typing
import warnings
import zipfile

import torch
import torch.nn.functional as F
from torch.export import Dim

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)

PAIRS = [(4, 2), (5, 2), (0, 2), (1, 2), (6, 3), (3, 1), (8, 4), (2, 0), (9, 9)]
RISING = [(4, 5), (5, 7), (0, 1), (1, 2), (4, 4), (5, 3), (9, 12), (0, 0)]
ONES = [(n, n) for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16)]
NUMBERS = [(2, n) for n in (-7, -6, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 100)]
WIDE = [(2, n) for n in (2, 3, -5, 0, 2642246, 2**31, 2**32, 2**61, 2**62, 2**63 - 4)]
PICTURES = [(6, 6), (4, 4), (3, 3), (2, 2), (7, 5), (8, 8), (5, 7), (1, 1), (9, 8), (12, 12)]


def T(*shape):
    n = math.prod(shape)
    return (torch.arange(n, dtype=torch.float32) % 5 - 1).reshape(shape)


class Point(typing.NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


def one(n, m):
    return (T(n, 2),), {}


def both(n, m):
    return (T(n, m),), {}


def two(n, m):
    return (T(n, 2), T(m, 2)), {}


def number(n, m):
    return (T(n, 2), m), {}


def picture(n, m):
    return (T(1, 1, n, m),), {}


def pick(condition):
    return lambda x: x + 1 if condition(x) else x - 1


def unequal(condition):
    return lambda x, y: x.sum() if condition(x.shape[0], y.shape[0]) else y.sum()


def with_int(condition):
    return lambda x, n: x + n if condition(n, x.shape[0]) else x - n


def keyword(x, *, mask):
    return x.sum() + mask.sum() if mask.shape[0] > x.shape[0] else x.sum()


def in_dict(d):
    return d["k"].sum() if d["k"].shape[0] % 2 == 0 and d["l"][0].shape[0] > 2 else d["l"][0].sum()


def padded(x):
    rows = (4 - x.shape[2] % 4) % 4
    return F.pad(x, (0, 0, 0, rows)) if rows else x


def starred(*args):
    return args[0].sum() if args[0].shape[0] > args[1].shape[0] else args[1].sum()


def windows(x):
    n, c, h, w = x.shape
    return x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, c).sum(1)


def bounded(n):
    return ({0: n},)


def doubled(n):
    return ({0: n}, {0: 2 * n})


PROGRAMS = [
    ("mod", pick(lambda x: x.shape[0] % 2 == 0), both, (4, 2), PAIRS),
    ("branches", lambda x: x.sum(0) if x.shape[0] % 2 == 0 else x.prod(0), both, (4, 2), PAIRS),
    ("floordiv", pick(lambda x: x.shape[0] // 2 > 1), both, (4, 2), PAIRS),
    ("product", pick(lambda x: x.shape[0] * x.shape[1] > 20), both, (4, 6), PAIRS),
    ("unequal", pick(lambda x: x.shape[0] != 3), both, (4, 2), PAIRS),
    ("two_inputs", unequal(lambda n, m: n > m), two, (4, 3), PAIRS),
    ("int_of_quotient", pick(lambda x: int(x.shape[0] / 2) == 3), one, (6, 0), ONES),
    ("int_of_float", pick(lambda x: int(x.shape[0] * 1.5) > 6), one, (6, 0), ONES),
    ("int_argument", with_int(lambda n, s: n > 5), number, (6, 7), NUMBERS),
    ("int_mod_size", with_int(lambda n, s: n % s == 0), number, (3, 6), [(3, 6), (3, 7), (2, 4), (6, 6), (1, 1), (0, 3), (4, 0), (3, -3)]),
    ("negative_int", with_int(lambda n, s: n - 5 < 0), number, (2, 3), NUMBERS),
    ("bits", with_int(lambda n, s: n & 1 == 0), number, (2, 6), NUMBERS),
    ("xor", with_int(lambda n, s: n ^ 3 > 2), number, (2, 6), NUMBERS),
    ("shift", with_int(lambda n, s: n >> 1 > 2), number, (2, 6), NUMBERS),
    ("absolute", with_int(lambda n, s: abs(n) > 3), number, (2, -6), NUMBERS),
    ("int_mod_three", with_int(lambda n, s: n % 3 == 1), number, (2, 7), NUMBERS),
    ("int_floordiv", with_int(lambda n, s: n // 4 == 1), number, (2, 5), NUMBERS),
    ("list", lambda xs: xs[0].sum() + xs[1].sum() if xs[0].shape[0] > xs[1].shape[0] else xs[0].sum(), lambda n, m: (([T(n, 2), T(m, 2)],), {}), (4, 3), PAIRS),
    ("dict", in_dict, lambda n, m: (({"k": T(n, 2), "l": [T(m, 2)]},), {}), (4, 3), PAIRS),
    ("named_tuple", lambda p: p.left.sum() if p.left.shape[0] > p.right.shape[0] else p.right.sum(), lambda n, m: ((Point(T(n, 2), T(m, 2)),), {}), (4, 3), PAIRS),
    ("tuple", lambda p: p[0].sum() if p[0].shape[0] > p[1][0].shape[0] else p[1][0].sum(), lambda n, m: (((T(n, 2), (T(m, 2),)),), {}), (4, 3), PAIRS),
    ("keyword", keyword, lambda n, m: ((T(n, 2),), {"mask": T(m)}), (4, 5), RISING),
    ("starred", starred, two, (4, 3), PAIRS),
    ("view", lambda x: x.view(-1, 4).sum(1), both, (4, 6), PAIRS + [(4, 6), (8, 6), (6, 6), (5, 8), (12, 10)]),
    ("windows", windows, picture, (6, 6), PICTURES),
    ("maximum", unequal(lambda n, m: max(n, m) > 3), two, (4, 3), PAIRS),
    ("minimum", unequal(lambda n, m: torch.sym_min(n, m) > 4), two, (5, 7), RISING),
    ("power", pick(lambda x: x.shape[0] ** 2 > 30), one, (6, 0), ONES),
    ("root", pick(lambda x: int(math.sqrt(x.shape[0])) == 2), one, (5, 0), ONES),
    ("log", pick(lambda x: math.log2(x.shape[0]) >= 3), one, (8, 0), ONES),
    ("ceiling", pick(lambda x: math.ceil(x.shape[0] / 2) == 3), one, (5, 0), ONES),
    ("round", pick(lambda x: round(x.shape[0] / 2) == 2), one, (5, 0), ONES),
    ("round_digits", pick(lambda x: round(x.shape[0] / 3, 1) > 1.6), one, (5, 0), ONES),
    ("quotient", unequal(lambda n, m: n / m > 1.25), two, (4, 3), PAIRS),
    ("alternatives", pick(lambda x: x.shape[0] > 6 or x.shape[0] % 5 == 0), one, (5, 0), ONES),
    ("chain", pick(lambda x: 2 < x.shape[0] < 8), one, (5, 0), ONES),
    ("sum_of_two", unequal(lambda n, m: n + m == 7), two, (4, 3), PAIRS),
    ("difference", unequal(lambda n, m: not n - m >= 0), two, (5, 7), RISING),
    ("mod_of_two", unequal(lambda n, m: n % m == 0), two, (6, 3), PAIRS),
    ("numel", pick(lambda x: x.numel() > 10), both, (4, 4), PAIRS),
    ("zero", lambda x: x.sum(0) if x.shape[0] == 0 else x.mean(0), both, (4, 2), PAIRS),
    ("one", lambda x: x.sum(0) if x.shape[0] == 1 else x.prod(0), both, (4, 2), PAIRS),
    ("plain", lambda x: x * 2, both, (4, 2), PAIRS),
    ("from_one", lambda x: x + 1, both, (1, 2), PAIRS),
    ("from_zero", lambda x: x + 1, both, (0, 2), PAIRS),
    ("equal_shapes", lambda x, y: x * y, lambda n, m: ((T(n, m), T(n, m if n < 9 else 1)), {}), (4, 2), PAIRS),
    ("broadcast", lambda x, y: x * y, lambda n, m: ((T(n, 4), T(m, 4)), {}), (4, 1), PAIRS + [(4, 1), (1, 1)]),
    ("expand", lambda x, y: x.expand(-1, y.shape[1]) * y, lambda n, m: ((T(n, 1), T(n, m)), {}), (3, 4), PAIRS),
    ("squeeze", lambda x: x.squeeze(0) + 1, both, (3, 2), PAIRS),
    ("chunk", lambda x: x.chunk(2), one, (5, 0), ONES),
    ("split", lambda x: x.split(2), one, (5, 0), ONES),
    ("unflatten", lambda x: x.unflatten(0, (-1, 3)).sum(1), one, (6, 0), ONES),
    ("concatenation", lambda x, y, z: torch.cat([x, y]) + z, lambda n, m: ((T(n, 2), T(m, 2), T(n + m if n < 9 else n, 2)), {}), (5, 3), PAIRS),
    ("repeat", lambda x, y: x.repeat(2, 1) + y, two, (5, 10), [(5, 10), (1, 2), (0, 0), (2, 4), (3, 5), (4, 8)]),
    ("padded", padded, picture, (6, 6), PICTURES),
    ("convolution", lambda x: F.conv2d(x, torch.ones(1, 1, 3, 3)), picture, (6, 6), PICTURES),
    ("strided", lambda x: F.conv2d(x, torch.ones(1, 1, 3, 3), stride=2), picture, (7, 7), PICTURES),
    ("adaptive", lambda x: F.adaptive_avg_pool2d(x, (2, 2)), picture, (6, 6), PICTURES),
    ("max_pool", lambda x: F.max_pool2d(x, 3, 2, 1), picture, (6, 6), PICTURES),
    ("interpolate", lambda x: F.interpolate(x, scale_factor=0.5), picture, (6, 6), PICTURES),
    ("shuffle", lambda x: F.pixel_unshuffle(x, 2), picture, (6, 6), PICTURES),
    ("attention", lambda q, k: F.scaled_dot_product_attention(q, k, k), lambda n, m: ((T(1, 2, n, 8), T(1, 2, m, 8)), {}), (5, 7), PAIRS),
    ("ternary", lambda x: x.sum() * (x.shape[0] if x.shape[0] > 3 else 3), one, (5, 0), ONES),
    ("transposed", pick(lambda x: x.is_contiguous()), lambda n, m: ((T(n, m).t(),), {}), (4, 6), PAIRS),
    ("range", pick(lambda x: True), one, (5, 0), ONES, bounded(Dim("n", min=3, max=9))),
    ("range_and_mod", pick(lambda x: x.shape[0] % 2 == 1), one, (5, 0), ONES, bounded(Dim.DYNAMIC)),
    ("derived", lambda x, y: x.sum() + y.sum(), two, (3, 6), [(3, 6), (1, 2), (0, 0), (2, 4), (3, 5), (4, 8)], doubled(Dim("n"))),
    ("derived_range", lambda x, y: x.sum() + y.sum(), two, (3, 6), [(3, 6), (1, 2), (0, 0), (2, 4), (3, 5), (4, 8), (7, 14)], doubled(Dim("n", min=2, max=6))),
    ("length", lambda x: x * 2 if x.shape[1] % 2 == 0 else x * 3, both, (2, 4), PAIRS + [(2, 4), (1, 6), (3, 5)]),
    ("batch", lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3, both, (2, 4), PAIRS + [(2, 4), (1, 6), (3, 5)]),
    ("length_and_batch", lambda x: x * 2 if x.shape[0] * x.shape[1] < 20 else x * 3, both, (2, 4), PAIRS + [(2, 4), (1, 6), (3, 5)]),
    ("fixed", pick(lambda x: True), both, (4, 2), PAIRS, ({0: Dim.AUTO},)),
    ("strict_mod", pick(lambda x: x.shape[0] % 2 == 0), both, (4, 2), PAIRS, None, True),
    ("strict_dict", in_dict, lambda n, m: (({"k": T(n, 2), "l": [T(m, 2)]},), {}), (4, 3), PAIRS, None, True),
    ("strict_keyword", keyword, lambda n, m: ((T(n, 2),), {"mask": T(m)}), (4, 5), RISING, None, True),
    ("wide_power", pick(lambda x: x.shape[0] ** 10 < 10**15), both, (5, 1), [(5, 1), (31, 2), (32, 1), (100, 1), (8192, 0)]),
    ("wide_multiple", with_int(lambda n, rows: 4 * n < 10), number, (2, 2), WIDE),
    ("wide_cube", with_int(lambda n, rows: n * n * n - n * n + 7 * n < 50), number, (2, 3), WIDE),
    ("wide_sum", with_int(lambda n, rows: n + rows + 5 < 20), number, (2, 3), WIDE),
    ("deferred_mod", pick(lambda x: x.shape[0] % 2 == 0), both, (4, 2), PAIRS, None, "deferred"),
    ("deferred_view", lambda x: x.reshape(-1, 4), both, (8, 6), [*PAIRS, (0, 4), (2, 2), (4, 4), (12, 7), (7, 4)], None, "deferred"),
    ("deferred_int", with_int(lambda n, rows: n % 5 == rows), number, (3, 3), [(3, n) for n in (3, 4, 8, -2)], None, "deferred"),
]


def automatic(value):
    """The dynamic shapes of an argument: all dimensions, and integers too."""
    if isinstance(value, torch.Tensor):
        return {d: Dim.AUTO for d in range(value.dim())}
    if isinstance(value, dict):
        return {k: automatic(v) for k, v in value.items()}
    if isinstance(value, Point):
        return Point(*(automatic(v) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(automatic(v) for v in value)
    return Dim.AUTO if type(value) is int else None


def described(value):
    if isinstance(value, torch.Tensor):
        return {"tensor": list(value.shape), "transposed": value.dim() == 2 and value.stride(0) == 1 and value.shape[1] > 1 and not value.is_contiguous()}
    if isinstance(value, Point):
        return {"dict": {k: described(v) for k, v in value._asdict().items()}}
    if isinstance(value, dict):
        return {"dict": {k: described(v) for k, v in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"list": [described(v) for v in value]}
    return {"int": value}


def leaf(value):
    if isinstance(value, torch.Tensor):
        return {"shape": list(value.shape), "values": [str(v) for v in value.flatten().tolist()]}
    return {"int": value}


def called(program, args, kwargs):
    call = {"args": [described(a) for a in args], "kwargs": {k: described(v) for k, v in kwargs.items()}}
    try:
        result = program(*args, **kwargs)
    except Exception:
        return call | {"refused": True}
    return call | {"result": [leaf(v) for v in torch.utils._pytree.tree_leaves(result)]}


def slim(graph):
    graph.pop("is_single_tensor_return", None)
    for key in ("sym_float_values", "sym_bool_values", "script_object_values", "custom_obj_values"):
        graph.pop(key, None)
    for node in graph["nodes"]:
        node.pop("metadata", None)
        node.pop("is_hop_single_tensor_return", None)
    for values in graph["tensor_values"].values():
        values.pop("device", None)
        values.pop("strides", None)
        values.pop("storage_offset", None)


def main():
    torch.set_num_threads(1)
    for name, function, make, sizes, tries, *options in PROGRAMS:
        args, kwargs = make(*sizes)
        shapes = options[0] if options else None
        m = torch.nn.Module()
        m.forward = function
        if shapes is None:
            shapes = tuple(automatic(a) for a in args)
            if kwargs or name == "starred":
                names = function.__code__.co_varnames
                shapes = {names[0]: shapes} if name == "starred" else dict(zip(names, shapes)) | {k: automatic(v) for k, v in kwargs.items()}
        how = options[1] if len(options) > 1 else False
        deferred = how == "deferred"
        exported = torch.export.export(
            m, args, kwargs, dynamic_shapes=shapes, strict=how is True, prefer_deferred_runtime_asserts_over_guards=deferred
        )
        file = io.BytesIO()
        torch.export.save(exported, file)
        try:
            program = torch.export.load(io.BytesIO(file.getvalue())).module()
        except AssertionError:  # PyTorch does not load its own file after an export with a negative integer
            program = exported.module()
        with zipfile.ZipFile(file) as archive:
            text = {n.partition("/")[2]: archive.read(n) for n in archive.namelist()}
        model = json.loads(text["models/model.json"])
        slim(model["graph_module"]["graph"])
        calls = [called(program, *make(*t)) for t in tries]
        held = sum("result" in c for c in calls)
        print(f"{name}: {held} of {len(calls)} run; {exported._guards_code}", file=sys.stderr)
        print(json.dumps({"name": name, "model": model, "calls": calls}))


if __name__ == "__main__":
    torch.utils._pytree._register_namedtuple(Point, serialized_type_name="Point")
    main()
