"""Prints how many megabytes of text a second Hugging Face's library encodes and decodes on one thread.

    python rate.py TOKENIZER TEXTS

TEXTS is a file of texts with a 0 byte between them.
"""
import os
import pathlib
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"], os.environ["RAYON_NUM_THREADS"] = "false", "1"

from tokenizers import Tokenizer


def rate(size, fn):
    """The best of several runs, in at least a second."""
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < 1:
        start = time.perf_counter()
        fn()
        best = min(best, time.perf_counter() - start)
    return size / 1e6 / best


def main():
    t = Tokenizer.from_file(sys.argv[1])
    t.no_truncation()
    t.no_padding()
    texts = pathlib.Path(sys.argv[2]).read_text().split("\0")
    size = sum(len(s.encode()) for s in texts)
    ids = [e.ids for e in t.encode_batch_fast(texts)]
    encode = max(rate(size, lambda: t.encode_batch_fast(texts)), rate(size, lambda: [t.encode(s) for s in texts]))
    print(encode, rate(size, lambda: [t.decode(i) for i in ids]))


if __name__ == "__main__":
    main()
