"""Compares documented.txt with the sources of PyTorch's documentation.

python documented.py FOLDER, where FOLDER is docs/source of PyTorch's repository at the tag of the LibTorch in use. It
prints the names that PyTorch documents and the table lacks, and the other way round. With a Python that has torch, a
name that this torch lacks is passed over. torch.special also counts what torch.special.__all__ names.
"""

import pathlib
import re
import sys

MODULES = {"torch": "torch", "torch.linalg": "linalg", "torch.fft": "fft", "torch.special": "special",
           "torch.nn.functional": "nn.functional"}


def documented(folder):
    """The names in the lists of the five pages."""
    names = set()
    for module, page in MODULES.items():
        text = next(p for p in (folder / f"{page}.md", folder / f"{page}.rst") if p.exists()).read_text()
        names |= {f"{module}.{name}" for name in re.findall(r"autofunction:: (?:torch\.\w+\.)?([\w.]+)", text)}
        names |= {f"torch.{name}" for name in re.findall(r"func}`torch\.(Tensor\.\w+_)`", text)}
        for block in re.findall(r"autosummary::\n((?:\s*\n|[ \t]+.*\n)+)", text):
            names |= {f"{module}.{name}" for name in re.findall(r"(?m)^\s+([A-Za-z_][\w.]*)$", block)
                      if not name.startswith("torch.nn.parallel")}
    return names


def table():
    text = pathlib.Path(__file__).with_name("documented.txt").read_text()
    return {line.split()[0] for line in text.splitlines() if line.startswith("torch.")}


def known(name):
    try:
        import torch
    except ImportError:
        return True
    found = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found is not None and not (isinstance(found, type) and issubclass(found, __import__("enum").Enum))


def main():
    pages, rows = documented(pathlib.Path(sys.argv[1])), table()
    try:
        import torch
        pages |= {f"torch.special.{name}" for name in torch.special.__all__}
    except ImportError:
        pass
    for name in sorted(n for n in pages - rows if known(n)):
        print("not in the table:", name)
    for name in sorted(rows - pages):
        print("not documented:", name)


main()
