"""Writes format.json: arrays, and how NumPy prints them. Needs NumPy; run it in this folder."""

import base64
import json

import numpy as np

rng = np.random.default_rng(5)
cases = []


def case(a):
    cases.append({"dtype": str(a.dtype), "shape": a.shape, "data": base64.b64encode(a.tobytes()).decode(), "text": str(a)})


nan, inf = np.nan, np.inf
for dtype in (np.float16, np.float32, np.float64):
    for values in (
        [1, 2, 3], [1.5, 2.25, -3], [0.1, 0.2, 0.3], [1e-5, 1.5], [1e8, 1], [123456.789, 0.5], [0.001, 1], [0.001, 1.1],
        [nan, 1, -2.5], [inf, -inf, 0], [nan, nan], [inf], [-inf, 2], [nan, 1e-7, 3], [0, -0.0], [1 / 3, 2 / 3], [65504, 1], [1000, 0.5],
        [9999.5, 0.25], [1e-7, 1e-6], [1e30, 1], [-1e-5, 1e5],
    ):
        with np.errstate(over="ignore"):
            case(np.array(values, dtype))
    for shape in ((), (1,), (0,), (2, 3), (2, 3, 4), (3, 0, 2), (1, 1, 1, 1), (30,), (7, 30), (1001,), (3, 4, 100), (600, 2), (11, 11, 11)):
        if np.prod(shape) > 1000 and dtype != np.float32:
            continue
        case(rng.standard_normal(shape).astype(dtype) if shape else np.array(rng.standard_normal(), dtype))
        case(np.asarray(rng.integers(-9, 9, shape)).astype(dtype))
        case((np.asarray(rng.standard_normal(shape)) * 10.0 ** np.asarray(rng.integers(-3, 4, shape))).astype(dtype))
for dtype in (np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint16, np.uint32, np.uint64):
    info = np.iinfo(dtype)
    case(np.array([info.min, info.max, 0, 7], dtype))
    for shape in ((), (0,), (5,), (50,), (3, 5), (1001,), (2, 2, 2)):
        case(np.asarray(rng.integers(0, 100, shape)).astype(dtype))
for shape in ((), (3,), (2, 3), (40, 40)):
    case(np.asarray(rng.integers(0, 2, shape)).astype(bool))
for dtype in (np.complex64, np.complex128):
    for values in ([1 + 2j], [1.5 - 2j, -3 + 0.25j], [complex(nan, 1), complex(1, inf)], [1e-6 + 1j, 1e6j], [complex(-inf, nan), 2]):
        case(np.array(values, dtype))
    case((rng.standard_normal((3, 4)) + 1j * rng.standard_normal((3, 4))).astype(dtype))
    case(np.array(1 - 2.5j, dtype))
with open("format.json", "w") as f:
    json.dump(cases, f, separators=(",", ":"))
print(len(cases), "cases, NumPy", np.__version__)
