"""Writes small batches of CIFAR for Python beside this file. Pixel p of image i is (7*p + 31*i) % 256.

    python make.py        # needs numpy
"""
import pathlib
import pickle

import numpy

FOLDER = pathlib.Path(__file__).parent
IMAGES = numpy.array([[(7 * p + 31 * i) % 256 for p in range(3072)] for i in range(2)], dtype=numpy.uint8)


def write(name, protocol, **batch):
    (FOLDER / name).write_bytes(pickle.dumps({"batch_label": name, "data": IMAGES, "filenames": ["a.png", "b.png"], **batch}, protocol))


write("batch10-protocol2", 2, labels=[3, 9])
write("batch10-protocol4", 4, labels=[3, 9])
write("batch100-protocol2", 2, fine_labels=[99, 0], coarse_labels=[19, 4])
