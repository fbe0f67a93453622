"""Writes where Hugging Face's library cuts texts at random regular expressions.

    python patterns.py FOLDER COUNT SEED

FOLDER gets a tokenizer for each expression, 0.json and so on. The standard output has for each of them records as
peer.py writes them. The tokens are the bytes of the text, with a mark where a piece begins.
"""
import pathlib
import random
import sys

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from peer import record

LETTERS = "aabbccAB1 _\nésſkK\u0301今"


def one_class(r, depth):
    parts = "".join(r.choice(["a", "b-d", "A", "1-3", r"\s", r"\d", r"\w", r"\W", r"\p{Lu}", r"\p{^L}", r"\P{N}", "é", "今", "_", r"\n", " ", "-" if i == 0 else "c"]) for i in range(r.randrange(1, 4)))
    if depth < 2 and r.random() < 0.2:
        parts += r.choice(["", "&&"]) + one_class(r, depth + 1)
    return "[" + r.choice(["", "", "^"]) + parts + "]"


def atom(r, depth):
    kind = r.random()
    if kind < 0.35 or depth > 4:
        return r.choice(["a", "b", "c", "A", "1", " ", "é", "k", "今", ".", r"\s", r"\S", r"\d", r"\w", r"\W", r"\p{L}", r"\p{Ll}", r"\P{L}", r"\h", r"\x61", r"\n", r"\."])
    if kind < 0.5:
        return one_class(r, 0)
    if kind < 0.57:
        return r.choice([r"\b", r"\B", "^", "$", r"\A", r"\z", r"\Z"])
    inside = either(r, depth + 1)
    if kind < 0.62:
        return r.choice(["(?=", "(?!"]) + inside + ")"
    if kind < 0.66:
        return r.choice(["(?<=", "(?<!"]) + r.choice(["a", r"\s", "[ab]", "é1"]) + ")"
    return r.choice(["(", "(?:", "(?>", "(?i:", "(?m:", "(?-i:"]) + inside + ")"


def repeat(r):
    return r.choice(["", "", "", "", "*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{2,}", "{,2}", "{1,2}?", "{2}?", "{1,3}+"])


def either(r, depth=0):
    return "|".join("".join(atom(r, depth) + repeat(r) for _ in range(r.randrange(1, 4))) for _ in range(r.choice([1, 1, 2, 3])))


def main():
    folder, count, seed, out = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.stdout.buffer
    vocab = {"<unk>": 0} | {f"<0x{b:02X}>": b + 1 for b in range(256)}
    r, made = random.Random(seed), 0
    while made < count:
        pattern = either(r)
        try:
            split = pre_tokenizers.Split(Regex(pattern), r.choice(["isolated", "removed"]))
        except Exception: # Oniguruma does not take it
            continue
        t = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
        t.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.Metaspace(prepend_scheme="always", split=False)])
        texts = ["".join(r.choice(LETTERS) for _ in range(r.randrange(0, 25))) for _ in range(12)]
        try:
            ids = [t.encode(text).ids for text in texts]
        except BaseException: # it has tried too often
            continue
        t.save(str(folder / f"{made}.json"))
        for text, these in zip(texts, ids):
            record(out, text.encode(), these, (), b"", b"", (), ())
        made += 1


if __name__ == "__main__":
    main()
