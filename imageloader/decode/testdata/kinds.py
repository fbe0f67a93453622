"""Writes the checksums of Pillow's pixels of the files of a folder: one line for each file that Pillow reads.

The orientation is applied. 16-bit grey keeps its upper 8 bits. The pixels are RGB.
"""

import pathlib
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    try:
        image = ImageOps.exif_transpose(Image.open(path))
        if image.mode.startswith("I;16"):
            image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
        image = image.convert("RGB")
    except Exception:  # Pillow does not read this kind
        continue
    head = f"{image.width}x{image.height} ".encode()
    print(f"{zlib.crc32(head + np.asarray(image).tobytes()):08x} {path.name[5:]}")
