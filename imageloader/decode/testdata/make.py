"""Makes the images beside this file. Needs Pillow and numpy; run it in this folder.

good/NAME        an image that must decode
want/NAME.png    its pixels as Pillow shows them, EXIF orientation applied, as RGB
want/NAME.L.png  and as grey, for some
bad/NAME         an image that must be refused; the reasons are in images_test.go
"""

import io
import pathlib
import shutil
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

here = pathlib.Path(__file__).parent
for folder in ("good", "want", "bad"):
    shutil.rmtree(here / folder, ignore_errors=True)
    (here / folder).mkdir()

WIDTH, HEIGHT = 25, 18


def scene(width=WIDTH, height=HEIGHT):
    """Smooth colours, a dark corner and a bright bar: no two orientations of it are alike."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    rgb = np.stack([255 * x / max(width - 1, 1), 255 * y / max(height - 1, 1), 127 + 120 * np.sin(x / 3 + y / 5)], -1)
    rgb[: height // 3, : width // 4] = (20, 30, 60)
    rgb[height // 2 : height // 2 + 2, width // 2 :] = (250, 240, 90)
    return rgb.round().astype(np.uint8)


RGB = Image.fromarray(scene())
GREY = RGB.convert("L")


def saved(image, format, **options):
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


def good(name, data, want=None, grey=False):
    (here / "good" / name).write_bytes(data)
    if want is None:
        want = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
        want = Image.fromarray(np.asarray(want))  # without the transparent colour that convert() keeps
    want.save(here / "want" / f"{name}.png", optimize=True)
    if grey:
        Image.open(io.BytesIO(data)).convert("L").save(here / "want" / f"{name}.L.png", optimize=True)


def bad(name, data):
    (here / "bad" / name).write_bytes(data)


# JPEG


def jpeg(image=RGB, **options):
    return saved(image, "JPEG", **{"quality": 80, **options})


def segments(data):
    """Yields (marker, offset, end) of the segments before the first scan."""
    at = 2
    while data[at + 1] != 0xDA:
        length = struct.unpack(">H", data[at + 2 : at + 4])[0]
        yield data[at + 1], at, at + 2 + length
        at += 2 + length


def patched(data, at, new):
    return data[:at] + new + data[at + len(new) :]


def segment(data, marker):
    return next((at, end) for found, at, end in segments(data) if found == marker)


def sized_jpeg(data, width, height):
    marker, at, _ = next(s for s in segments(data) if s[0] in (0xC0, 0xC2))
    return patched(data, at + 5, struct.pack(">HH", height, width))


def scans(data):
    """The scans of a progressive JPEG: from the tables before each to the end of its data."""
    out, at, begin = [], 2, None
    first = None
    while data[at + 1] != 0xD9:
        marker, length = data[at + 1], struct.unpack(">H", data[at + 2 : at + 4])[0]
        if begin is None and marker in (0xC4, 0xDA):
            begin = at
            first = begin if first is None else first
        at += 2 + length
        if marker == 0xDA:
            while data[at] != 0xFF or data[at + 1] == 0 or 0xD0 <= data[at + 1] <= 0xD7:
                at += 1
            out.append(data[begin:at])
            begin = None
    return data[:first], out


def exif(orientation, order="<", kind=3):
    value = struct.pack(order + ("HH" if kind == 3 else "I"), *((orientation, 0) if kind == 3 else (orientation,)))
    entry = struct.pack(order + "HHI", 0x0112, kind, 1) + value
    return (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", 8, 1) + entry + struct.pack(order + "I", 0)


def with_app1(data, block):
    body = b"Exif\0\0" + block
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + data[2:]


cmyk = RGB.convert("CMYK")
cmyk_jpeg = jpeg(cmyk)
adobe, adobe_end = segment(cmyk_jpeg, 0xEE)
plain = jpeg(subsampling=2)
progressive = jpeg(progressive=True)

good("420.jpg", plain, grey=True)
good("422.jpg", jpeg(subsampling=1))
good("444.jpg", jpeg(subsampling=0))
good("grey.jpg", jpeg(GREY), grey=True)
good("progressive.jpg", progressive)
good("keep-rgb.jpg", jpeg(keep_rgb=True))
good("restart.jpg", jpeg(restart_marker_blocks=1))
good("cmyk.jpg", cmyk_jpeg, grey=True)
good("ycck.jpg", patched(cmyk_jpeg, adobe + 15, b"\x02"))
good("cmyk-no-adobe.jpg", cmyk_jpeg[:adobe] + cmyk_jpeg[adobe_end:])
good("one-pixel.jpg", jpeg(RGB.crop((3, 3, 4, 4))))
good("extraneous-bytes.jpg", plain[:-2] + b"\x12\x34\x56" + plain[-2:])
good("bytes-after.jpg", plain + b"some more")
for orientation in range(1, 9):
    good(f"exif{orientation}.jpg", with_app1(plain, exif(orientation)))
good("exif6-big-endian.jpg", with_app1(plain, exif(6, ">")))
good("exif8-long.jpg", with_app1(plain, exif(8, "<", 4)))
good("exif9.jpg", with_app1(plain, exif(9)))
good("exif-cut.jpg", with_app1(plain, exif(6)[:12]))

sof, _ = segment(plain, 0xC0)
bad("zero-bytes.jpg", b"")
bad("two-bytes.jpg", plain[:2])
bad("header-only.jpg", plain[: segment(plain, 0xC4)[0] + 9])
bad("half.jpg", plain[: len(plain) - 150])
bad("no-end.jpg", plain[:-2])
bad("half-with-end.jpg", plain[: len(plain) - 150] + b"\xff\xd9")
bad("half-progressive.jpg", progressive[: len(progressive) * 2 // 3])
bad("tables-only.jpg", b"\xff\xd8\xff\xd9")
bad("40000x40000.jpg", sized_jpeg(plain, 40000, 40000))
bad("lossless.jpg", patched(plain, sof + 1, b"\xc3"))
bad("12-bit.jpg", patched(plain, sof + 4, b"\x0c"))
bad("zeros.jpg", bytes(1000))
bad("text.jpg", b"This is no image.\n")
bad("page.jpg", b"<!DOCTYPE html>\n<html><body>404</body></html>\n")
before, parts = scans(progressive)
bad("130-scans.jpg", before + parts[0] + parts[1] * 129 + b"\xff\xd9")
flipped = bytearray(plain)
flipped[len(plain) - 151] ^= 0x08  # one of the few bits whose change makes the data invalid
bad("flipped-bit.jpg", bytes(flipped))

# PNG

PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(name, body):
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def packed(rows, bits):
    """rows: [height, values]. Each row with filter 0, values of `bits` bits."""
    out = b""
    for row in rows:
        if bits == 16:
            line = row.astype(">u2").tobytes()
        elif bits == 8:
            line = row.astype(np.uint8).tobytes()
        else:
            line = np.packbits(np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, 8 - bits :].ravel()).tobytes()
        out += b"\0" + line
    return out


def png(values, kind, bits, interlaced=False, before=(), after=(), end=True, size=None):
    """values: [height, width, channels] of integers below 2^bits."""
    height, width, channels = values.shape
    if interlaced:
        raw = b""
        for x, y, dx, dy in PASSES:
            part = values[y::dy, x::dx]
            if part.size:
                raw += packed(part.reshape(part.shape[0], -1), bits)
    else:
        raw = packed(values.reshape(height, -1), bits)
    shown_width, shown_height = size or (width, height)
    out = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", shown_width, shown_height, bits, kind, 0, 0, interlaced))
    out += b"".join(chunk(*c) for c in before) + chunk(b"IDAT", zlib.compress(raw, 9)) + b"".join(chunk(*c) for c in after)
    return out + (chunk(b"IEND", b"") if end else b"")


rgb = np.asarray(RGB).astype(int)
grey = np.asarray(GREY).astype(int)[..., None]
alpha = (np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH, 1) * 7) % 256
deep = rgb * 257 - (rgb > 0) * 100
deep_grey = grey * 257 - (grey > 0) * 100
high = lambda v: Image.fromarray((np.repeat(v, 3, -1) if v.shape[-1] == 1 else v).__rshift__(8).astype(np.uint8))

good("rgb.png", png(rgb, 2, 8), grey=True)
good("rgba.png", png(np.concatenate([rgb, alpha], -1), 6, 8))
good("grey.png", png(grey, 0, 8), grey=True)
good("grey-alpha.png", png(np.concatenate([grey, alpha], -1), 4, 8))
good("rgb-transparent-colour.png", png(rgb, 2, 8, before=[(b"tRNS", struct.pack(">HHH", *rgb[9, 9]))]))
good("grey-transparent-colour.png", png(grey, 0, 8, before=[(b"tRNS", struct.pack(">H", grey[9, 9, 0]))]))
for bits in (1, 2, 4):
    good(f"grey{bits}.png", png(grey >> (8 - bits), 0, bits), want=Image.fromarray(((grey >> (8 - bits)) * (255 // (2**bits - 1))).astype(np.uint8).repeat(3, -1)))
good("rgb16.png", png(deep, 2, 16))
good("rgba16.png", png(np.concatenate([deep, alpha * 257], -1), 6, 16))
good("grey16.png", png(deep_grey, 0, 16), want=high(deep_grey))
good("grey-alpha16.png", png(np.concatenate([deep_grey, alpha * 257], -1), 4, 16), want=high(deep_grey))
for bits in (1, 2, 4, 8):
    count = 2**bits
    index = (np.arange(WIDTH * HEIGHT).reshape(HEIGHT, WIDTH, 1) * 5) % count
    colours = bytes((37 * i + 60 * c) % 256 for i in range(count) for c in range(3))
    palette = [(b"PLTE", colours)]
    good(f"palette{bits}.png", png(index, 3, bits, before=palette), grey=bits == 8)
    good(f"palette{bits}-alpha.png", png(index, 3, bits, before=palette + [(b"tRNS", bytes(range(count))[:100])]))
for name, values, kind, bits in (("rgb", rgb, 2, 8), ("grey16", deep_grey, 0, 16), ("grey1", grey >> 7, 0, 1)):
    want = {"rgb": RGB, "grey16": high(deep_grey), "grey1": Image.fromarray(((grey >> 7) * 255).astype(np.uint8).repeat(3, -1))}[name]
    good(f"interlaced-{name}.png", png(values, kind, bits, interlaced=True), want=want)
good("one-pixel.png", png(rgb[:1, :1], 2, 8))
good("exif6.png", png(rgb, 2, 8, before=[(b"eXIf", exif(6))]))
good("exif3-at-end.png", png(rgb, 2, 8, after=[(b"eXIf", exif(3))]), want=RGB.rotate(180))
good("no-iend.png", png(rgb, 2, 8, end=False))
good("text-bomb.png", png(rgb[:2, :2], 2, 8, before=[(b"zTXt", b"Comment\0\0" + zlib.compress(bytes(4 << 20), 9))]), want=RGB.crop((0, 0, 2, 2)))
good("data-after-last-row.png", png(np.concatenate([rgb, rgb]), 2, 8, size=(WIDTH, HEIGHT)))

whole = png(rgb, 2, 8)
bad("half.png", whole[: len(whole) // 2])
bad("signature-only.png", whole[:8])
bad("five-bytes.png", whole[:5])
bad("flipped-bit.png", patched(whole, len(whole) // 2, bytes([whole[len(whole) // 2] ^ 4])))
bad("wrong-checksum.png", patched(whole, len(whole) - 16, b"\0\0\0\0"))
bad("too-few-rows.png", png(rgb[:9], 2, 8, size=(WIDTH, HEIGHT)))
bad("40000x40000.png", png(rgb[:1], 2, 8, size=(40000, 40000)))
bad("2000000x1.png", png(grey[:1], 0, 8, size=(2_000_000, 1)))
bad("no-palette.png", png(grey, 3, 8))

# What Go decodes

P = RGB.quantize(16)
good("palette.gif", saved(P, "GIF"))
good("interlaced.gif", saved(P, "GIF", interlace=True))
good("transparent.gif", saved(P, "GIF", transparency=3))
good("two-frames.gif", saved(P, "GIF", save_all=True, append_images=[P.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]))
gif = saved(P.crop((0, 0, 11, 9)), "GIF")
good("frame-in-screen.gif", patched(patched(gif, 6, struct.pack("<HH", 20, 15)), gif.index(b",\0\0\0\0") + 1, struct.pack("<HH", 6, 4)))
good("24.bmp", saved(RGB, "BMP"))
good("8.bmp", saved(RGB.quantize(256), "BMP"))
good("1.bmp", saved(GREY.convert("1"), "BMP"))
good("32.bmp", saved(RGB.convert("RGBA"), "BMP"))
for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
    good(f"{compression.split('_')[-1]}.tif", saved(RGB, "TIFF", compression=compression))
good("grey.tif", saved(GREY, "TIFF"), grey=True)
good("grey16.tif", saved(Image.fromarray(deep_grey[..., 0].astype(np.uint16)), "TIFF"), want=high(deep_grey))
good("alpha.tif", saved(Image.fromarray(np.concatenate([rgb, alpha], -1).astype(np.uint8)), "TIFF"))
good("palette.tif", saved(P, "TIFF"))
good("exif6.tif", saved(RGB, "TIFF", tiffinfo={274: 6}))
for compression in ("group3", "group4"):
    for zero, photometric in (("white", 0), ("black", 1)):
        good(f"{compression}-zero-is-{zero}.tif", saved(GREY.convert("1"), "TIFF", compression=compression, tiffinfo={262: photometric}))
big = Image.fromarray(scene(33, 27))
good("lossy.webp", saved(big, "WEBP", quality=90))
good("lossless.webp", saved(RGB, "WEBP", lossless=True))
good("lossy-alpha.webp", saved(Image.fromarray(np.concatenate([rgb, alpha // 2 + 128], -1).astype(np.uint8)), "WEBP", quality=95))
good("exif6.webp", saved(RGB, "WEBP", lossless=True, exif=b"Exif\0\0" + exif(6)))

gif, bmp, tif, webp = saved(P, "GIF"), saved(RGB, "BMP"), saved(RGB, "TIFF", compression="tiff_adobe_deflate"), saved(RGB, "WEBP", lossless=True)
lossy = saved(big, "WEBP", quality=90)
bad("half.gif", gif[: len(gif) // 2 + 40])
bad("header-only.gif", gif[:8])
bad("half.bmp", bmp[: len(bmp) // 2])
bad("half.tif", saved(RGB, "TIFF")[: WIDTH * HEIGHT])
bad("half.webp", lossy[: len(lossy) // 2])
bad("40000x40000.gif", patched(gif, 6, struct.pack("<HH", 40000, 40000)))
bad("40000x40000.bmp", patched(bmp, 18, struct.pack("<II", 40000, 40000)))

def tagged(data, tag, value):
    """The TIFF with a tag's value replaced; its type becomes LONG."""
    at = next(data.index(struct.pack("<HHI", tag, kind, 1)) for kind in (3, 4) if struct.pack("<HHI", tag, kind, 1) in data)
    return patched(data, at + 2, struct.pack("<HII", 4, 1, value))


bad("40000x40000.tif", tagged(tagged(tif, 256, 40000), 257, 40000))
bad("no-width.tif", tagged(tif, 256, 0))
good("all-rows-strip.tif", tagged(tif, 278, 0xFFFFFFFF))
bad("rle.bmp", patched(saved(RGB.quantize(256), "BMP"), 30, struct.pack("<I", 1)))
bad("jpeg.tif", saved(RGB, "TIFF", compression="jpeg"))
bad("big.tif", saved(RGB, "TIFF", big_tiff=True))
bad("zstd.tif", saved(RGB, "TIFF", compression="zstd"))
bad("grey-alpha.tif", saved(Image.merge("LA", (GREY, GREY)), "TIFF"))
bad("ycbcr.tif", saved(RGB.convert("YCbCr"), "TIFF"))
bad("float.tif", saved(GREY.convert("F"), "TIFF"))
bad("animated.webp", saved(P.convert("RGB"), "WEBP", save_all=True, append_images=[RGB.rotate(180)]))
at = lossy.index(b"VP8 ") + 14
bad("frame-above-canvas.webp", lossy[:12] + b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + struct.pack("<I", 32)[:3] + struct.pack("<I", 26)[:3] + patched(lossy, at, struct.pack("<HH", 16383, 16383))[12:])
bad("frame-without-width.webp", lossy[:12] + b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + struct.pack("<I", 32)[:3] + struct.pack("<I", 26)[:3] + patched(lossy, at, struct.pack("<HH", 0, 27))[12:])

sizes = sum(f.stat().st_size for folder in ("good", "want", "bad") for f in (here / folder).iterdir())
print(len(list((here / "good").iterdir())), "good,", len(list((here / "bad").iterdir())), "bad,", sizes, "bytes")
