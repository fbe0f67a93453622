"""Trains tokenizers, and writes what Hugging Face's library makes of random texts.

Needs tokenizers 0.23. Equal arguments give equal output.

    python peer.py FOLDER FILES TEXTS SEED [tokenizer.json ...]

FOLDER gets FILES tokenizers, 0.json and so on, and the names of the others follow them. The standard output has for
each tokenizer TEXTS records, see record.
"""
import os
import pathlib
import random
import struct
import sys

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).parents[3]

CL100K = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = CL100K.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
THREES = r"\d{1,3}(?=(?:\d{3})*\b)|(?<=[a-z])(?=[A-Z])|\p{Han}+|[[:alpha:]&&[^\p{Han}]]+"
PATTERNS = [CL100K, QWEN2, O200K, TEKKEN, DEEPSEEK[2], BLOOM, CLIP, THREES, r"\s+", r"[0-9][0-9]?", r"(?<!\S)\S", r"\b", r"(?>a+)b|\w+?e", r"(?i)the|of",
            r"(\w+\s?){2}", r"^.|$", r"[\h\H&&[^x]]{2,3}?", r"\W+", r"\n|\r", r"(?:ab|a)++", r"\p{Lu}\p{Ll}*|\P{L}", r"[^\p{L}]*"]


def corpus():
    """The repository's own texts, and some in other scripts."""
    paths = sorted(p for folder in ("docs", "cgotorch/nn", "examples") for ext in ("*.md", "*.go", "*.py") for p in (ROOT / folder).rglob(ext))
    lines = [line for p in paths[:80] for line in p.read_text(errors="replace").splitlines() if line.strip()][:6000]
    return lines + OTHER * 20


OTHER = """Der Strom wartet auf die Kopie; über die Brücke fließt täglich Wasser, außer am Sonntag.
Größere Bücher müssen früher gedruckt werden, denn die Züge fahren pünktlich.
Le café est déjà fermé, et l'élève a oublié sa clé près de la fenêtre. Où étais-tu l'été passé ?
El niño comió una piña en España, y mañana irá a la montaña.
今日は天気がいいから、海へ行きましょう。 昨日は雨でした。カタカナー
流在设备上按顺序工作，主机不等待。 专家住在主机的内存里。
Поток ждёт копию, а хост работает дальше. Ещё один день.
한국어 문장은 이렇게 생겼습니다. हिन्दी में एक वाक्य है। العربية تُكتب من اليمين. ไทย เก้า
I'm sure they'll say WE'VE been here; it's 12345 or 1,000.50 % of it...  don't   stop!
func (t *T) Run(x int) (err error) {\tif x > 0 { return nil }\r\n\treturn errors.New("bad")\r\n}
🙂 👩‍👩‍👧 🇫🇷 ✨ ＦＵＬＬ ｗｉｄｔｈ ①②③ ½ ﬁne ﬂow ™ Ⅳ ㌔""".split("\n")

ALPHABETS = ["abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", " \t\n\r\u00a0\u3000\u2028\u0085\u200b\ufeff\u1680", "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
             "äöüßéèñçåøœÆİıſŁđ", "\u0301\u0308\u0323\u0327\u0345\u0591\u064b\u3099\u1ab0\u08d4\U0001e944", "今日流专家的是一丁丂龥㐀𠀀", "あいうえおアイウエオー々", "한국어각\u1100\u1161\u11a8",
             "абвгдёЖЩЪ", "αβγδΣς", "אבגשׁ", "ابتثلا\u064b", "हिन्दीक्षि", "ไทยเก้า", "🙂👩👧🇫🇷✨\u200d\ufe0f👍🏽", "\x00\x01\x07\x1b\x7f\x80\x9f\u200e\u202e\ufffd", "▁ĠĊ</w>##Ã©",
             "ﬁﬂ½²™Ⅳ㌔①ｆ１", "\ua7cb\U00010d50\U0001e5d0\U00011380\u1c89\u0897\U00016ea0\U0001ccf0\u2ffc"]


def text(r, lines, names):
    """A random text as bytes; a few are not UTF-8."""
    kind = r.random()
    if kind < 0.35:
        line = r.choice(lines)
        at = r.randrange(len(line))
        s = line[at:at + r.randrange(1, 80)]
    elif kind < 0.45:
        s = "\n".join(r.choice(lines) for _ in range(r.randrange(1, 4)))
    elif kind < 0.8:
        s = "".join(r.choice(r.choice(ALPHABETS)) * (1 if r.random() < 0.8 else r.randrange(1, 5)) for _ in range(r.randrange(0, 40)))
    elif kind < 0.85:
        s = r.choice(r.choice(ALPHABETS)) * r.randrange(1, 300)
    elif kind < 0.9:
        s = "".join(r.choice(ALPHABETS[0]) for _ in range(r.randrange(1, 400)))
    else:
        s = "".join(chr(r.choice([r.randrange(0x80), r.randrange(0x800), r.randrange(0xd800), r.randrange(0xe000, 0x110000)])) for _ in range(r.randrange(1, 20)))
    for _ in range(r.choice([0, 0, 0, 1, 2, 3])):
        at = r.randrange(len(s) + 1)
        s = s[:at] + r.choice(["", " ", "  ", "\n"]) + r.choice(names) + r.choice(["", "", " ", "  ", "x"]) + s[at:]
    data = s.encode("utf-8", "strict")
    if r.random() < 0.05:
        data = bytearray(data)
        for _ in range(r.randrange(1, 4)):
            at = r.randrange(len(data) + 1)
            data[at:at] = r.choice([b"\xff", b"\xc3", b"\xe4\xbb", b"\xf0\x9f\x99", b"\xed\xa0\x80", b"\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf"])
        data = bytes(data)
    return data


def normalizer(r):
    n = normalizers
    return r.choice([lambda: None, n.NFC, n.NFD, n.NFKC, n.NFKD, n.Lowercase, n.StripAccents, n.Nmt, n.BertNormalizer,
                     lambda: n.BertNormalizer(clean_text=r.random() < 0.5, handle_chinese_chars=r.random() < 0.5, strip_accents=r.choice([None, True, False]), lowercase=r.random() < 0.5),
                     lambda: n.Strip(left=r.random() < 0.5, right=r.random() < 0.5), lambda: n.Prepend(r.choice(["▁", "ab "])), lambda: n.Replace(r.choice([" ", "the", "é"]), r.choice(["▁", "", "xy"])),
                     lambda: n.Replace(Regex(r.choice([" {2,}", r"\s", r"[a-c]+", r"(?<=a)b", r"\p{P}"])), r.choice(["▁", "", "_ _"]))])()


def pre_tokenizer(r):
    p = pre_tokenizers
    how = lambda: r.choice(["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"])
    return r.choice([lambda: p.ByteLevel(add_prefix_space=r.random() < 0.5, use_regex=r.random() < 0.5),
                     lambda: p.Metaspace(prepend_scheme=r.choice(["always", "first", "never"]), split=r.random() < 0.5), p.Whitespace, p.WhitespaceSplit, p.BertPreTokenizer,
                     lambda: p.Punctuation(how()), lambda: p.Digits(r.random() < 0.5), lambda: p.CharDelimiterSplit(r.choice(" e,")), p.UnicodeScripts, lambda: p.FixedLength(r.randrange(1, 9)),
                     lambda: p.Split(r.choice([" ", "the", "e", ""]), how(), invert=r.random() < 0.3), lambda: p.Split(Regex(r.choice(PATTERNS)), how(), invert=r.random() < 0.3),
                     lambda: p.Split(Regex(r.choice(PATTERNS)), how(), invert=r.random() < 0.3)])()


def decoder(r):
    d = decoders
    return r.choice([d.ByteLevel, lambda: d.WordPiece(prefix="##", cleanup=r.random() < 0.5), lambda: d.Metaspace(prepend_scheme=r.choice(["always", "never"])), lambda: d.BPEDecoder(suffix=r.choice(["</w>", "e"])),
                     d.ByteFallback, d.Fuse, lambda: d.Strip(r.choice(" ▁e"), r.randrange(3), 0), lambda: d.Replace("▁", " "), lambda: d.Replace(Regex(r"[aeiou]"), "_"),
                     lambda: d.CTC(pad_token="e", word_delimiter_token="▁", cleanup=r.random() < 0.5)])()


def sequence(r, module, one, most):
    parts = [x for x in (one(r) for _ in range(r.randrange(0, most + 1))) if x is not None]
    return None if not parts else parts[0] if len(parts) == 1 else module.Sequence(parts)


def dress(t, r, names):
    """Gives a tokenizer added tokens of all kinds, and tokens around texts."""
    flag = lambda: r.random() < 0.3
    t.add_special_tokens([AddedToken(n, single_word=flag(), lstrip=flag(), rstrip=flag(), normalized=False) for n in names[:4]])
    t.add_tokens([AddedToken(n, single_word=flag(), lstrip=flag(), rstrip=flag(), normalized=flag()) for n in names[4:]])
    a, b = ((n, t.token_to_id(n)) for n in names[:2])
    t.post_processor = r.choice([
        None, processors.ByteLevel(trim_offsets=flag()), processors.BertProcessing(b, a), processors.RobertaProcessing(b, a),
        processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(single=f"{a[0]} $A", pair=f"{a[0]} $A {a[0]} $B:1", special_tokens=[a])]),
        processors.TemplateProcessing(single=f"{a[0]} $A {b[0]}", pair=f"{a[0]} $A {b[0]} $B:1 {b[0]}:1", special_tokens=[a, b])])
    if r.random() < 0.25:
        t.enable_truncation(r.randrange(8, 40), strategy=r.choice(["longest_first", "only_first"]), direction=r.choice(["left", "right"]))
    if r.random() < 0.25:
        t.enable_padding(direction=r.choice(["left", "right"]), pad_id=a[1], pad_type_id=r.randrange(3), pad_token=a[0], length=r.choice([None, 24]), pad_to_multiple_of=r.choice([None, 8]))


NAMES = ["<s>", "</s>", "<|im_start|>", "[MASK]", "<extra>", "the", "<Extra_2>", "Über", " x", "<|im_start|>user"]


def trained(number, seed, lines):
    """The tokenizer with a number. The first ones are the published kinds, the others mix all parts."""
    r = random.Random(seed * 1000 + number)
    lines = r.sample(lines, min(len(lines), 1500))
    size = r.choice([600, 1500, 4000])
    makes = [gpt2, llama3, qwen2, llama2, mistral, gemma, o200k, tekken, deepseek, bloom, clip, roberta, bert, cased, t5, xlmr, words]
    t, trainer = makes[number](size) if number < len(makes) else mixed(r, size, number)
    t.train_from_iterator(lines, trainer)
    dress(t, r, NAMES)
    return t


def byte_level(size, pre, normalizer=None, **options):
    t = Tokenizer(models.BPE(**options))
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoders.ByteLevel()
    return t, trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


def split(*patterns):
    parts = [pre_tokenizers.Split(Regex(p), "isolated") for p in patterns]
    return pre_tokenizers.Sequence(parts + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2(size):
    return byte_level(size, pre_tokenizers.ByteLevel(add_prefix_space=False))


def roberta(size):
    return byte_level(size, pre_tokenizers.ByteLevel(add_prefix_space=True))


def llama3(size):
    return byte_level(size, split(CL100K), ignore_merges=True)


def qwen2(size):
    return byte_level(size, split(QWEN2), normalizers.NFC())


def o200k(size):
    return byte_level(size, split(O200K))


def tekken(size):
    return byte_level(size, split(TEKKEN), ignore_merges=True)


def deepseek(size):
    return byte_level(size, split(*DEEPSEEK))


def bloom(size):
    return byte_level(size, split(BLOOM))


def byte_fallback(size):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    bytes_ = [f"<0x{b:02X}>" for b in range(256)]
    return t, trainers.BpeTrainer(vocab_size=size + 300, show_progress=False, special_tokens=["<unk>"] + bytes_, limit_alphabet=80, max_token_length=8)


def llama2(size):
    t, trainer = byte_fallback(size)
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return t, trainer


def mistral(size):
    t, trainer = byte_fallback(size)
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    return t, trainer


def gemma(size):
    t, trainer = byte_fallback(size)
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return t, trainer


def clip(size):
    t, trainer = byte_level(size, None, end_of_word_suffix="</w>", unk_token="<unk>")
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    trainer = trainers.BpeTrainer(vocab_size=size + 300, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), end_of_word_suffix="</w>", special_tokens=["<unk>"])
    return t, trainer


def word_piece(size, lower):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=lower), pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    return t, trainers.WordPieceTrainer(vocab_size=size, show_progress=False, special_tokens=["[UNK]"])


def bert(size):
    return word_piece(size, True)


def cased(size):
    return word_piece(size, False)


def t5(size):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    t.pre_tokenizer, t.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return t, trainers.UnigramTrainer(vocab_size=size, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>")


def xlmr(size):
    t, trainer = t5(size)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return t, trainer


def words(size):
    t = Tokenizer(models.WordLevel(unk_token="<unk>"))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    return t, trainers.WordLevelTrainer(vocab_size=size, show_progress=False, special_tokens=["<unk>"])


def mixed(r, size, number):
    kind = number % 4
    options = dict(vocab_size=size + 300, show_progress=False, special_tokens=["<unk>"] + ([f"<0x{b:02X}>" for b in range(256)] if r.random() < 0.5 else []))
    if kind == 0:
        extra = r.choice([{}, dict(continuing_subword_prefix="##"), dict(end_of_word_suffix="</w>"), dict(continuing_subword_prefix="##", end_of_word_suffix="</w>")])
        t = Tokenizer(models.BPE(unk_token=r.choice([None, "<unk>"]), fuse_unk=r.random() < 0.5, byte_fallback=r.random() < 0.5, ignore_merges=r.random() < 0.3, dropout=r.choice([None, 0.0]), **extra))
        trainer = trainers.BpeTrainer(limit_alphabet=r.choice([30, 100, 1000]), initial_alphabet=r.choice([[], pre_tokenizers.ByteLevel.alphabet()]), **extra, **options)
    elif kind == 1:
        t = Tokenizer(models.WordPiece(unk_token="<unk>", max_input_chars_per_word=r.choice([5, 100])))
        trainer = trainers.WordPieceTrainer(limit_alphabet=r.choice([30, 1000]), **options)
    elif kind == 2:
        t = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **options)
    else:
        t = Tokenizer(models.WordLevel(unk_token="<unk>"))
        trainer = trainers.WordLevelTrainer(**options)
    t.normalizer = sequence(r, normalizers, normalizer, 3)
    t.pre_tokenizer = sequence(r, pre_tokenizers, pre_tokenizer, 3) or pre_tokenizers.Whitespace()
    t.decoder = sequence(r, decoders, decoder, 3)
    return t, trainer


def record(out, *parts):
    """Writes texts and lists of ids, each after its length."""
    for part in parts:
        data = part if isinstance(part, bytes) else struct.pack(f"<{len(part)}i", *part)
        out.write(struct.pack("<i", len(data)) + data)


def run(out, t, r, count, lines):
    names = [x.content for x in t.get_added_tokens_decoder().values()][:40] or NAMES
    for i in range(count):
        data = text(r, lines, names)
        s = data.decode("utf-8", "replace")
        e = t.encode(s)
        some = e.ids if i % 3 else [r.randrange(t.get_vocab_size() + 5) for _ in range(r.randrange(12))]
        pair = [(), ()]
        second = text(r, lines, names) if i % 8 == 0 else b""
        try:
            if i % 8 == 0:
                both = t.encode(s, second.decode("utf-8", "replace"))
                pair = [both.ids, both.type_ids]
        except BaseException: # the library panics too
            pair = [(-1,), (-1,)]
        record(out, data, e.ids, some, t.decode(some).encode(), second, *pair)


def main():
    folder, files, count, seed = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:5])
    out, lines, number, made = sys.stdout.buffer, corpus(), 0, 0
    while made < files:
        try:
            t = trained(number, seed, lines)
            t.save(str(folder / f"{made}.json"))
            t = Tokenizer.from_file(str(folder / f"{made}.json"))
            run(open(os.devnull, "wb"), t, random.Random(seed), 20, lines)
        except BaseException: # parts that the library itself does not take together
            if number < 17:
                raise
            number += 1
            continue
        out.flush()
        run(out, t, random.Random(seed + made), count, lines)
        number, made = number + 1, made + 1
    for path in sys.argv[5:]:
        run(out, Tokenizer.from_file(path), random.Random(seed), count, lines)


if __name__ == "__main__":
    main()
