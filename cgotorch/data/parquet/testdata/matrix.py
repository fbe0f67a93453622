"""Writes Parquet files of every type, encoding, codec and page version, and what they hold.

python matrix.py FOLDER writes FOLDER/*.parquet and FOLDER/want.jsonl. A line of want.jsonl is one
file: its name, and the values that pyarrow reads from the column "x". A null is null. A number is a
text in Python's form, a boolean a boolean, and a text or bytes are hexadecimal. Each file also has
the column "row", whose values are 0, 1 and so on.
"""

import base64
import datetime
import decimal
import itertools
import json
import os
import random
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe

folder = sys.argv[1]
rows = 300
rng = random.Random(7)


def integers(bits, signed):
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    border = [low, high, 0, 1, high - 1, low + 1]
    return [border[i] if i < len(border) else rng.choice([rng.randint(low, high), rng.randint(0, 5), i % 100]) for i in range(rows)]


def words(kind):
    some = ["", "a", "ab", "abc", "prefix-one", "prefix-two", "ä€😀", "x" * 70, "n\n\"", "\x00\x01"]
    return [kind(rng.choice(some) + (str(i) if i % 3 else "")) for i in range(rows)]


floats = [0.0, -0.0, 1.5, float("inf"), -float("inf"), float("nan"), 65504.0, 2.0**-14] + [rng.choice([rng.gauss(0, 1), 0.5, 3.0]) for _ in range(rows - 8)]
flags = [i < 90 or (i > 200 and i % 3 == 0) or rng.random() < 0.4 for i in range(rows)]
day = datetime.date(1970, 1, 1)

# Types, and values without nulls. A new member is one line.
columns = {
    "bool": (pa.bool_(), flags),
    "bool-true": (pa.bool_(), [True] * rows),
    **{f"int{b}": (getattr(pa, f"int{b}")(), integers(b, True)) for b in (8, 16, 32, 64)},
    **{f"uint{b}": (getattr(pa, f"uint{b}")(), integers(b, False)) for b in (8, 16, 32, 64)},
    "float16": (pa.float16(), [np.float16(v) for v in floats]),
    "float32": (pa.float32(), [float(np.float32(v)) for v in floats]),
    "float64": (pa.float64(), floats),
    "string": (pa.string(), words(str)),
    "large-string": (pa.large_string(), words(str)),
    "binary": (pa.binary(), words(lambda s: s.encode()[::-1])),
    "fixed": (pa.binary(5), [bytes([i % 7, i % 3, 0, 255, i % 251]) for i in range(rows)]),
    "decimal": (pa.decimal128(9, 2), [decimal.Decimal(v % 10**9) / 100 for v in integers(32, False)]),
    "decimal38": (pa.decimal128(38, 4), [decimal.Decimal(v) / 10000 for v in integers(64, True)]),
    "date": (pa.date32(), [day + datetime.timedelta(v) for v in integers(16, True)]),
    "time32": (pa.time32("ms"), integers(16, False)),
    "time64": (pa.time64("us"), integers(16, False)),
    "timestamp-s": (pa.timestamp("s"), integers(32, True)),
    "timestamp-ms": (pa.timestamp("ms"), integers(32, True)),
    "timestamp-us": (pa.timestamp("us", tz="UTC"), integers(32, True)),
    "timestamp-ns": (pa.timestamp("ns"), integers(32, True)),
    "duration": (pa.duration("us"), integers(32, True)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["abc"[i * i % 3] * (i % 3) for i in range(rows)]),
    "list": (pa.list_(pa.int64()), [[1, 2], [], [4] * 3] * 100),
    "struct": (pa.struct([("a", pa.int64())]), [{"a": 1}] * rows),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)]] * rows),
}
encodings = ["PLAIN", "DICTIONARY", "RLE", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"]
codecs = ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]


def null_at(i):
    return 8 <= i < 17 or 100 <= i < 165 or i in (31, 32, 64, 299) or (i > 200 and i % 5 == 0)


def texts(array):
    """Returns the values in the form of want.jsonl. Dates and times are the integers of the file."""
    t = array.type
    if pa.types.is_dictionary(t):
        array, t = array.cast(t.value_type), t.value_type
    if pa.types.is_date32(t) or pa.types.is_time32(t):
        array = array.cast(pa.int32())
    elif pa.types.is_date64(t) or pa.types.is_time64(t) or pa.types.is_timestamp(t) or pa.types.is_duration(t):
        array = array.cast(pa.int64())
    out = []
    for v in array.to_pylist():
        if isinstance(v, str):
            v = v.encode()
        if isinstance(v, bytes):
            v = v.hex()
        elif v is not None and not isinstance(v, bool):
            v = repr(float(v)) if isinstance(v, (float, np.floating)) else str(v)
        out.append(v)
    return out


index = open(os.path.join(folder, "want.jsonl"), "w")


def keep(name, source):
    """Notes a file that was written from the table source."""
    try:
        table = pq.read_table(os.path.join(folder, name + ".parquet"))
    except OSError:  # pyarrow cannot read some files of its own, and of duckdb
        table = source
    want = texts(table.column("x").combine_chunks())
    assert table.column("row").to_pylist() == list(range(len(want))), name
    index.write(json.dumps({"file": name, "want": want}) + "\n")


def write(name, table, **options):
    path = os.path.join(folder, name + ".parquet")
    options = {"row_group_size": 170, "data_page_size": 100, "write_batch_size": 32, **options}
    pq.write_table(table, path, **options)
    keep(name, table)


def table_of(kind, nulls, n=rows):
    arrow, values = columns[kind]
    if nulls == "nulls":
        values = [None if null_at(i) else v for i, v in enumerate(values)]
    elif nulls == "all-null":
        values = [None] * len(values)
    x = pa.array(values[:n], arrow)
    field = pa.field("x", arrow, nullable=nulls != "required")
    return pa.table([x, pa.array(range(len(x)), pa.int64())], schema=pa.schema([field, pa.field("row", pa.int64())]))


def encoding_of(encoding):
    if encoding == "DICTIONARY":
        return {"use_dictionary": ["x"]}
    return {"use_dictionary": False, "column_encoding": {"x": encoding}}


# Of each type and encoding, eight files take turns with the six codecs.
turns = itertools.cycle(codecs)
for kind in columns:
    for encoding in encodings:
        try:
            pq.write_table(table_of(kind, "nulls"), os.path.join(folder, "probe"), **encoding_of(encoding))
        except (OSError, NotImplementedError, pa.ArrowException):
            continue  # no writer makes this pair
        for page in ("1.0", "2.0"):
            for nulls in ("required", "optional", "nulls", "all-null"):
                codec = next(turns)
                write(f"{kind}-{encoding}-{codec}-v{page[0]}-{nulls}", table_of(kind, nulls), compression=codec, data_page_version=page, **encoding_of(encoding))

# What writers vary beside types, encodings and codecs.
variants = {
    "format1": {"version": "1.0", "use_dictionary": ["x"]},  # PLAIN_DICTIONARY
    "page-index": {"write_page_index": True},
    "checksum": {"write_page_checksum": True},
    "no-statistics": {"write_statistics": False},
    "fallback": {"dictionary_pagesize_limit": 64, "use_dictionary": ["x"]},
    "one-page": {"data_page_size": 1 << 20, "write_batch_size": 1024, "row_group_size": 1000},
    "groups": {"row_group_size": 7},
    "decimal-integer": {"store_decimal_as_integer": True},
    "int96": {"use_deprecated_int96_timestamps": True},
    "no-schema": {"store_schema": False},
    "bloom": {"bloom_filter_options": {"x": True}},
}
for kind in columns:
    for variant, options in variants.items():
        for nulls, page in (("optional", "1.0"), ("nulls", "2.0")):
            try:
                write(f"{kind}-{variant}-v{page[0]}-{nulls}", table_of(kind, nulls), data_page_version=page, **options)
            except (OSError, NotImplementedError, TypeError, pa.ArrowException):
                pass
    for page in ("1.0", "2.0"):
        write(f"{kind}-no-rows-v{page[0]}", table_of(kind, "optional", 0), data_page_version=page)
        name = f"{kind}-empty-groups-v{page[0]}"
        table = table_of(kind, "optional")
        with pq.ParquetWriter(os.path.join(folder, name + ".parquet"), table.schema, data_page_version=page) as w:
            for piece in (table.slice(0, 0), table.slice(0, 100), table.slice(0, 0), table.slice(100), table.slice(0, 0)):
                w.write_table(piece)
        keep(name, table)


# Encryption needs a service of keys. This one does not hide them.


class Keys(pe.KmsClient):
    def __init__(self, config):
        super().__init__()

    def wrap_key(self, key, master):
        return base64.b64encode(key)

    def unwrap_key(self, wrapped, master):
        return base64.b64decode(wrapped)


for footer in (False, True):
    name = f"int64-encrypted-{'plain' if footer else 'hidden'}-footer"
    config = pe.EncryptionConfiguration("f", column_keys={"c": ["x"]}, plaintext_footer=footer)
    properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), config)
    with pq.ParquetWriter(os.path.join(folder, name + ".parquet"), table_of("int64", "optional").schema, encryption_properties=properties) as w:
        w.write_table(table_of("int64", "optional"))
    index.write(json.dumps({"file": name, "want": ["encrypted"]}) + "\n")

# Other writers.
flat = [k for k in columns if k not in ("list", "struct", "map")]
frames = {k: table_of(k, "optional") for k in flat} | {k + "-nulls": table_of(k, "nulls") for k in flat}


def polars_files():
    import polars as pl

    for kind, table in frames.items():
        for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"):
            name = f"{kind}-polars-{codec}"
            try:
                pl.from_arrow(table).write_parquet(os.path.join(folder, name + ".parquet"), compression=codec, row_group_size=170, data_page_size=200)
                keep(name, table)
            except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as e:
                print(name, e, file=sys.stderr)


def duckdb_files():
    import duckdb

    for kind, frame in frames.items():
        for codec in ("uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4", "lz4_raw"):
            for version in ("v1", "v2"):
                name = f"{kind}-duckdb-{codec}-{version}"
                path = os.path.join(folder, name + ".parquet")
                try:
                    duckdb.sql(f"copy (from frame) to '{path}' (format parquet, compression '{codec}', parquet_version '{version}', row_group_size 170)")
                    keep(name, frame)
                except duckdb.Error as e:
                    print(name, e, file=sys.stderr)


def fastparquet_files():
    import fastparquet

    for kind, table in frames.items():
        for codec in ("UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4", "LZ4_RAW"):
            for times in ("int64", "int96"):
                if times == "int96" and "timestamp" not in kind:
                    continue
                name = f"{kind}-fastparquet-{codec}-{times}"
                try:
                    fastparquet.write(os.path.join(folder, name + ".parquet"), table.to_pandas(), compression=codec, row_group_offsets=170, times=times)
                    keep(name, table)
                except Exception as e:
                    if isinstance(e, AssertionError):
                        raise
                    print(name, type(e), str(e)[:100], file=sys.stderr)


for files in (polars_files, duckdb_files, fastparquet_files):
    try:
        files()
    except ImportError as e:
        print(e, file=sys.stderr)
