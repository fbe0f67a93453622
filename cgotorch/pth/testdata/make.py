"""Makes the files beside this file, and wants.json with what is in them. Needs torch; run it in this folder."""

import base64
import io
import json
import pathlib
import zipfile
from collections import OrderedDict

import torch

here = pathlib.Path(__file__).parent
torch.manual_seed(3)
wants = {}
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64", torch.int32: "I32",
    torch.int16: "I16", torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64", torch.uint16: "U16",
    torch.float8_e4m3fn: "F8_E4M3",
}


def raw(t):
    t = t.detach().contiguous()
    return base64.b64encode(bytes(t.view(torch.uint8).flatten().tolist()) if t.dim() else bytes(t.reshape(1).view(torch.uint8).tolist())).decode()


def save(name, value, tensors, **options):
    torch.save(value, here / name, **options)
    wants[name] = [{"name": n, "dtype": DTYPES[t.dtype], "shape": list(t.shape), "data": raw(t)} for n, t in tensors]


def random(dtype, *shape):
    if dtype == torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape).to(dtype)
    return torch.randint(0, 100, shape).to(dtype)


every = OrderedDict((str(d).removeprefix("torch."), random(d, 2, 3)) for d in DTYPES)
every["scalar"], every["empty"] = torch.tensor(2.5), torch.zeros(0, 4)
save("dtypes.pth", every, every.items())
old = OrderedDict((k, v) for k, v in every.items() if k not in ("uint16", "float8_e4m3fn"))
save("old.pth", old, old.items(), _use_new_zipfile_serialization=False)
for protocol in (3, 4, 5):
    save(f"protocol{protocol}.pth", {"a": every["float32"], "b": {"c": [every["int64"], 5]}}, [("a", every["float32"]), ("b.c.0", every["int64"])],
         pickle_protocol=protocol)

base = torch.arange(24.0)
views = {"whole": base, "part": base[4:10], "transposed": base.view(4, 6).t(), "step": base[1::3], "row": base.view(2, 3, 4)[1, :, 2]}
save("views.pth", views, views.items())
save("old-views.pth", views, views.items(), _use_new_zipfile_serialization=False)

model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Linear(2, 2, bias=False))
state = list(model.state_dict().items())
save("state.pth", model.state_dict(), state)
save("module.pth", model, state)
optimizer = torch.optim.Adam(model.parameters())
checkpoint = {"model": model.state_dict(), "epoch": 7, "lr": 0.25, "name": "r\u00e9seau", "done": True, "none": None, "shape": torch.Size([1, 2]),
              "parameter": torch.nn.Parameter(torch.ones(2)), "dtype": torch.float32, 3: torch.ones(1)}
save("checkpoint.pth", checkpoint, [("model." + n, t) for n, t in state] + [("parameter", torch.ones(2)), ("3", torch.ones(1))])
torch.serialization.set_crc32_options(False)
unchecked = {"a": torch.arange(6.0)}
save("no-checksums.pth", unchecked, unchecked.items())
torch.serialization.set_crc32_options(True)
script = io.BytesIO()
torch.jit.save(torch.jit.script(model), script)
with zipfile.ZipFile(here / "script.pt", "w") as to, zipfile.ZipFile(script) as of:
    for name in of.namelist():
        if not name.endswith(".debug_pkl"):  # those have paths of the machine
            to.writestr(name, of.read(name))
(here / "wants.json").write_text(json.dumps(wants, separators=(",", ":")))
print(sum(f.stat().st_size for f in here.iterdir()), "bytes")
