"""Writes what each class and each normalizer of Hugging Face's library makes of all characters.

    python characters.py FOLDER STEP

FOLDER gets a tokenizer for each of them, 0.json and so on. The standard output has for each of them records as peer.py
writes them, of the characters in runs of 256, every STEP-th run. The tokens are the bytes of what is left.
"""
import pathlib
import sys

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from peer import record

CATEGORIES = "L Lu Ll Lt Lm Lo M Mn Mc Me N Nd Nl No P Pc Pd Ps Pe Pi Pf Po S Sm Sc Sk So Z Zs Zl Zp C Cc Cf Co".split()
SCRIPTS = "Latin Greek Cyrillic Han Hiragana Katakana Hangul Arabic Hebrew Thai Devanagari Common".split()
POSIX = "alpha digit alnum space upper lower punct word".split()


def stages():
    p, n = pre_tokenizers, normalizers
    patterns = [rf"\p{{{c}}}" for c in CATEGORIES + SCRIPTS] + [rf"[[:{c}:]]" for c in POSIX] + [r"\s", r"\w", r"\d", r"\h", r"\b.", r"(?i)[a-z]", r"(?i)[^k]", r"[^\p{L}\p{N}\s]", r".", r"\W", r"[\w]", r"[\W]", r"\p{Punct}", r"\p{Alphabetic}", r"\p{Cn}"]
    marks = lambda pre: p.Sequence([pre, p.Metaspace(prepend_scheme="always", split=False)]) # a mark shows where pieces begin
    for pattern in patterns:
        yield None, p.Split(Regex(pattern), "removed")
    for pre in (p.Punctuation("removed"), p.WhitespaceSplit(), p.Whitespace(), p.Digits(True), p.UnicodeScripts(), p.BertPreTokenizer()):
        yield None, marks(pre)
    for normalizer in (n.NFC(), n.NFD(), n.NFKC(), n.NFKD(), n.Lowercase(), n.StripAccents(), n.Nmt(), n.BertNormalizer(), n.BertNormalizer(lowercase=False), n.Strip()):
        yield normalizer, None


def texts(step):
    characters = [c for c in list(range(0x32400)) + list(range(0xE0000, 0xE0200)) if not 0xD800 <= c < 0xE000]
    runs = ["".join(map(chr, characters[i:i + 256])) for i in range(0, len(characters), 256)]
    marked = ["".join("a" + c for c in run) for run in runs] # so that marks have a letter
    return runs[::step] + marked[step // 2::step]


def main():
    folder, step, out = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.stdout.buffer
    vocab = {"<unk>": 0} | {f"<0x{b:02X}>": b + 1 for b in range(256)}
    for i, (normalizer, pre) in enumerate(stages()):
        t = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True))
        if normalizer:
            t.normalizer = normalizer
        if pre:
            t.pre_tokenizer = pre
        t.save(str(folder / f"{i}.json"))
        for text in texts(step):
            ids = t.encode(text).ids
            record(out, text.encode(), ids, (), b"", b"", (), ())


if __name__ == "__main__":
    main()
