"""Writes kinds.json: small files of torch.save, and what is in each. Needs torch 2.11 and numpy; run it in this folder.

Each line of kinds.json is one file: its pickle, the bytes of its storages, and of each tensor the dtype, the shape and the bytes, or
the words with which it is refused. A file without zip is there whole. A new kind is one call of save.
"""

import argparse
import base64
import collections
import datetime
import enum
import functools
import io
import json
import pathlib
import pickle
import struct
import sys
import types
import uuid
import warnings
import zipfile

import numpy as np
import torch

warnings.filterwarnings("ignore")
torch.manual_seed(5)
torch.backends.quantized.engine = "fbgemm"
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex32: "C32", torch.complex64: "C64",
    torch.complex128: "C128", torch.uint16: "U16", torch.uint32: "U32", torch.uint64: "U64", torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2", torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.float8_e8m0fnu: "F8_E8M0",
}
lines = []


def text(b):
    return base64.b64encode(b).decode()


def want(t):
    if isinstance(t, str):
        return {"error": t}
    t = t.detach().resolve_conj().resolve_neg()
    plain = torch.empty(t.shape, dtype=t.dtype).copy_(t) if t.dtype not in (torch.float8_e8m0fnu,) else t.clone()
    return {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "data": text(plain.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())}


def write(name, data, wants):
    line = {"name": name}
    if zipfile.is_zipfile(io.BytesIO(data)):
        z = zipfile.ZipFile(io.BytesIO(data))
        for entry in z.namelist():
            below = entry.split("/", 1)[1]
            if below == "data.pkl" or below == "byteorder" or below.startswith("data/"):
                line.setdefault("entries", {})[below] = text(z.read(entry))
    else:
        line["whole"] = text(data)
    line["wants"] = {k: want(v) for k, v in wants.items()}
    lines.append(json.dumps(line, separators=(",", ":")))


def save(name, value, wants, **options):
    b = io.BytesIO()
    torch.save(value, b, **options)
    write(name, b.getvalue(), wants)


f = torch.arange(6.0).view(2, 3)
c = torch.complex(torch.arange(1.0, 7), -torch.arange(1.0, 7)).view(2, 3)
ok = {"w": f}

# Views that are resolved when they are read.
for dtype in (torch.complex64, torch.complex128):
    z = c.to(dtype)
    save(f"conj {dtype}", {"w": f, "z": z.conj(), "t": z.conj().t(), "r": z.conj()[1]}, {"w": f, "z": z.conj(), "t": z.conj().t(), "r": z.conj()[1]})
    save(f"neg {dtype}", {"w": f, "z": z.clone().conj().imag, "s": torch._neg_view(z), "b": torch._neg_view(z.conj())},
         {"w": f, "z": z.clone().conj().imag, "s": -z, "b": torch._neg_view(z.conj())})
save("neg of halves", {"z": torch._neg_view(f.half()), "b": torch._neg_view(f.bfloat16())}, {"z": -f.half(), "b": -f.bfloat16()})
save("neg of integers", {"w": f, "z": torch._neg_view(torch.arange(3))}, {"w": f, "z": "resolve_neg"})
save("conj parameter", {"p": torch.nn.Parameter(c.conj())}, {"p": c.conj()})
save("conj without zip", {"z": c.conj()}, {"z": c.conj()}, _use_new_zipfile_serialization=False)

# Quantized, sparse, nested, meta.
for dtype in (torch.qint8, torch.quint8, torch.qint32):
    save(f"quantized {dtype}", {"w": f, "q": torch.quantize_per_tensor(f, 0.1, 0 if dtype != torch.quint8 else 3, dtype)}, {"w": f, "q": "it is quantized: save it in Python with .dequantize()"})
save("quantized per channel", {"q": torch.quantize_per_channel(f, torch.ones(2), torch.zeros(2, dtype=torch.int64), 0, torch.qint8), "w": f}, {"q": "is quantized", "w": f})
save("quantized floats", {"q": torch.quantize_per_channel(f, torch.ones(2), torch.zeros(2), 0, torch.quint4x2), "w": f}, {"q": "is quantized", "w": f})
save("quantized without zip", {"w": f, "q": torch.quantize_per_tensor(f, 0.1, 0, torch.qint32), "b": f + 1}, {"w": f, "q": "is quantized", "b": f + 1}, _use_new_zipfile_serialization=False)
packed = torch.ao.nn.quantized.Linear(3, 2).state_dict()
save("quantized module", {"state": packed, "w": f}, {
    "w": f, "state._packed_params._packed_params.1": packed["_packed_params._packed_params"][1], "state.scale": torch.tensor(1.0), "state.zero_point": torch.tensor(0), "state._packed_params._packed_params.0": "is quantized"})
d = torch.eye(3)
save("sparse coo", {"w": f, "s": d.to_sparse()}, {"w": f, "s": "it is sparse: save it in Python with .to_dense()"})
save("sparse csr", {"w": f, "s": d.to_sparse_csr()}, {"w": f, "s": "is sparse"})
save("sparse csc, bsr, bsc", {"c": d.to_sparse_csc(), "r": torch.eye(4).to_sparse_bsr((2, 2)), "b": torch.eye(4).to_sparse_bsc((2, 2)), "w": f},
     {"c": "is sparse", "r": "is sparse", "b": "is sparse", "w": f})
save("nested", {"w": f, "n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])}, {"w": f, "n": "nested tensor"})
save("nested jagged", {"w": f, "n": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)}, {"w": f, "n": "nested"})
save("meta", {"w": f, "m": torch.empty(2, 3, device="meta")}, {"w": f, "m": "on the device meta"})
save("uninitialized", {"w": f, "u": torch.nn.LazyLinear(3).state_dict()["weight"]}, {"w": f, "u": "its module is lazy"})

# Dtypes.
for dtype, name in DTYPES.items():
    if dtype.is_complex:
        t = c.to(dtype)
    elif dtype == torch.float8_e8m0fnu:
        t = torch.tensor([1.0, 2, 0.5]).to(dtype)
    else:
        t = f.to(dtype)
    save(f"{dtype}", {"t": t, "s": t.flatten()[2], "e": t[:0]}, {"t": t, "s": t.flatten()[2], "e": t[:0]})
save("bits", {"w": f, "b": torch.arange(4, dtype=torch.uint8).view(torch.bits8)}, {"w": f, "b": "of the dtype torch.bits8"})
save("float4", {"w": f, "b": torch.arange(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)}, {"w": f, "b": "of the dtype torch.float4_e2m1fn_x2"})

new = {"u": f.to(torch.uint16), "e": f.to(torch.float8_e5m2), "z": c.to(torch.complex128), "h": c.to(torch.complex32), "b": f.bool(), "w": f}
save("dtypes without zip", new, new, _use_new_zipfile_serialization=False)

# Storages that are shared.
base = torch.arange(24.0)
views = {"a": base, "b": base[4:10], "c": base.view(4, 6).t(), "d": base[1::3], "e": base[23], "f": base[24:], "g": base[5].expand(2, 3), "h": base.as_strided((2, 2), (1, 1), 3)}
save("views", views, views)
save("views without zip", views, views, _use_new_zipfile_serialization=False)
save("tied", {"a": f, "b": f, "c": {"d": f}}, {"a": f, "b": f, "c.d": f})
save("empty", {"a": torch.zeros(0), "b": torch.zeros(3, 0, 2), "c": torch.zeros(()), "d": torch.zeros(2, 3).t()[:0]},
     {"a": torch.zeros(0), "b": torch.zeros(3, 0, 2), "c": torch.zeros(()), "d": torch.zeros(0, 2)})
save("strided permute", {"a": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), "b": f.to(memory_format=torch.contiguous_format)},
     {"a": torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1), "b": f})
save("typed storages", {"w": f, "s": f.storage(), "u": f.clone().untyped_storage()}, ok)
save("untyped storages without zip", {"u": f.clone().untyped_storage(), "w": f}, ok, _use_new_zipfile_serialization=False)
save("typed storages without zip", {"w": f, "s": f.storage()}, ok, _use_new_zipfile_serialization=False)


# Subclasses and attributes.
class Sub(torch.Tensor):
    pass


sub = f.clone().as_subclass(Sub)
tagged = f.clone()
tagged.note = "x"
parameter = torch.nn.Parameter(f.clone())
parameter.owner = "me"
hooked = torch.nn.Parameter(f.clone())
save("subclass", {"w": f, "s": sub}, {"w": f, "s": f})
save("attributes", {"t": tagged, "p": parameter, "h": hooked, "b": torch.nn.Buffer(f.clone())}, {"t": f, "p": f, "h": f, "b": f})
save("parameter list", torch.nn.ParameterList([f, f + 1]).state_dict(), {"0": f, "1": f + 1})


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return function(*[a.inner if isinstance(a, Wrapped) else a for a in args], **(kwargs or {}))


save("wrapper subclass", {"w": f, "s": Wrapped(f)}, {"w": f, "s": "Wrapped, which keeps its values elsewhere"})


# What stands beside tensors.
class Dict(collections.OrderedDict):
    pass


class List(list):
    pass


class Color(enum.Enum):
    RED = 1


class Old:
    def __init__(self):
        self.tensor, self.x = f, 3

    def __reduce__(self):
        return (Old, (), self.__dict__)


Point = collections.namedtuple("Point", "x y")
save("dict subclass", Dict(w=f, v=f + 1), {"w": f, "v": f + 1})
save("dicts of collections", {"a": collections.defaultdict(list, {"w": f}), "b": collections.OrderedDict(w=f), "c": types.SimpleNamespace(w=f)}, {"a.w": f, "b.w": f})
save("list subclass", {"a": List([f, f + 1]), "b": collections.deque([f])}, {"a.0": f, "a.1": f + 1, "b.0": f})
save("numpy", {"w": f, "s": np.float32(3), "i": np.int64(2), "a": np.arange(3), "o": np.array(["x", None], dtype=object), "d": np.dtype("float32"), "t": np.datetime64("2020-01-01")}, ok)
save("python", {"w": f, "n": argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("/x"), at=datetime.datetime(2020, 1, 1), d=datetime.timedelta(1)), "set": {1, 2}, "frozen": frozenset([1]),
                "bytes": b"\x00\xff", "array": bytearray(b"ab"), "complex": 1j, "big": 1 << 80, "none": None, "u": uuid.UUID(int=5), "slice": slice(1, 2), "range": range(3), "e": Color.RED, "p": Point(1, 2)}, ok)
save("torch", {"w": f, "dtype": torch.float32, "device": torch.device("cuda:1"), "layout": torch.sparse_coo, "size": torch.Size([1, 2]), "i": torch.Generator, "v": torch.__version__}, ok)
save("functions", {"w": f, "f": torch.nn.functional.relu, "p": functools.partial(torch.nn.functional.softmax, dim=1), "c": torch.nn.Linear, "b": len, "o": Old()}, ok)
save("keys", {"w": f, 3: f + 1, (1, 2): f + 2, None: f + 3, True: f + 4, 2.5: f + 5}, {"w": f, "3": f + 1, "#2": f + 2, "#3": f + 3, "true": f + 4, "2.5": f + 5})
save("one name twice", {"w": f, "a.b": f, "a": {"b": f + 1}, 1: f, "1": f}, {"w": f, "a.b": "two tensors of the file get this name", "1": "two tensors of the file get this name"})
save("a tensor alone", f, {"": f})
save("a list alone", [f, [f + 1]], {"0": f, "1.0": f + 1})
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.Adam(model.parameters())
model(f).sum().backward()
optimizer.step()
state = optimizer.state_dict()["state"]
save("optimizer", {"optimizer": optimizer.state_dict(), "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1).state_dict(), "w": f},
     {"w": f} | {f"optimizer.state.{i}.{k}": state[i][k] for i in (0, 1) for k in ("step", "exp_avg", "exp_avg_sq")})
for protocol in (2, 3, 4, 5):
    save(f"protocol {protocol}", {"w": f, "q": torch.quantize_per_tensor(f, 0.1, 0, torch.qint8), "d": Dict(v=f), "é": f}, {"w": f, "q": "is quantized", "d.v": f, "é": f}, pickle_protocol=protocol)

# Files of other machines and times.
b = io.BytesIO()
values = {"f": f, "h": f.half(), "i": torch.arange(4), "z": c.conj(), "u": f.to(torch.uint16), "b": f.to(torch.uint8)}
torch.save(values, b)
z = zipfile.ZipFile(b)
swapped = io.BytesIO()
with zipfile.ZipFile(swapped, "w") as to:
    widths = iter([4, 2, 8, 4, 1, 1])
    for name in z.namelist():
        data = z.read(name)
        if "/data/" in name:
            width = {"0": 4, "1": 2, "2": 8, "3": 4}.get(name.rsplit("/")[-1], 1)
            data = np.frombuffer(data, f"V{width}").tobytes() if width == 1 else np.frombuffer(data, f"u{width}").byteswap().tobytes()
        to.writestr(name, b"big" if name.endswith("byteorder") else data)
swapped.seek(0)
for name, t in torch.load(swapped, weights_only=False).items():
    assert name == "u" or t.equal(values[name]), name
write("big-endian", swapped.getvalue(), values | {"u": "big-endian"})

# PyTorch before 0.4 wrote parts of storages.
old = io.BytesIO()
for part in (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}):
    pickle.dump(part, old, protocol=2)


class Reference:
    def __init__(self, *id):
        self.id = ("storage",) + id


class Storages(pickle.Pickler):
    def persistent_id(self, value):
        return value.id if isinstance(value, Reference) else None


def tensor(storage, offset, size, stride):
    class Rebuilt:
        def __reduce__(self):
            return torch._utils._rebuild_tensor, (storage, offset, size, stride)

    return Rebuilt()


part = Reference(torch.FloatStorage, "1", "cpu", 6, ("7", 2, 3))
Storages(old, protocol=2).dump({
    "whole": tensor(Reference(torch.FloatStorage, "1", "cpu", 6, None), 0, (6,), (1,)), "part": tensor(part, 0, (3,), (1,)), "end": tensor(part, 1, (2,), (1,))})
pickle.dump(["1"], old, protocol=2)
old.write(struct.pack("<q6f", 6, *range(6)))
loaded = torch.load(io.BytesIO(old.getvalue()), weights_only=False)
write("parts of storages", old.getvalue(), {k: loaded[k] for k in ("whole", "part", "end")})

pathlib.Path(__file__).with_name("kinds.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
print(len(lines), "files,", sum(map(len, lines)), "bytes")
sys.exit(0)
