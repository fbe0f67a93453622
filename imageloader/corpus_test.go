package imageloader

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	kgzip "github.com/klauspost/compress/gzip"

	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
)

// This file has damaged and hostile archives. Each archive is read by every kind of loader, see
// the function `run` in hostile_test.go.

// rawHeader returns a tar header with the given fields and a right checksum.
func rawHeader(name string, kind byte, size []byte, link string) []byte {
	h := make([]byte, 512)
	copy(h, name)
	copy(h[100:], "0000644\x00")
	copy(h[108:], "0000000\x00")
	copy(h[116:], "0000000\x00")
	copy(h[124:136], size)
	copy(h[136:], "00000000000\x00")
	copy(h[148:], "        ")
	h[156] = kind
	copy(h[157:], link)
	copy(h[257:], "ustar\x0000")
	sum := 0
	for _, b := range h {
		sum += int(b)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

func octal(n int) []byte { return []byte(fmt.Sprintf("%011o\x00", n)) }

// padded fills the last tar block of p with zeros.
func padded(p []byte) []byte { return append(bytes.Clone(p), make([]byte, (512-len(p)%512)%512)...) }

// raw returns a whole member: a header and a padded body.
func raw(name string, kind byte, body []byte, link string) []byte {
	return append(rawHeader(name, kind, octal(len(body)), link), padded(body)...)
}

// pax returns an extended header for `member`, and then `member` itself.
func pax(record string, member []byte) []byte {
	n := len(record) + 3
	for len(fmt.Sprint(n))+1+len(record)+1 != n {
		n++
	}
	return append(raw("PaxHeader", 'x', []byte(fmt.Sprintf("%d %s\n", n, record)), ""), member...)
}

// unended returns a .tar without its end marker.
func unended(members []member) []byte { data := tarOf(members); return data[:len(data)-1024] }

// among returns a .tar of nine good images, with raw members between them.
func among(parts ...[]byte) []byte {
	out := unended(numbered(9)[:4])
	for _, part := range parts {
		out = append(out, part...)
	}
	return append(out, tarOf(numbered(9)[4:])...)
}

// withImage returns a .tar of nine images. The third image is body, and its name says class a.
func withImage(body []byte) []byte {
	members := numbered(9)
	members[2].body = body
	return tarOf(members)
}

func flipped(data []byte, bit int) []byte {
	out := bytes.Clone(data)
	out[bit/8] ^= 1 << (bit % 8)
	return out
}

// flushed returns a gzip file with an empty block after every `each` bytes, as pigz writes it.
// `ends` has the offsets in the file at which these blocks end.
func flushed(data []byte, each int) (out []byte, ends []int) {
	var z bytes.Buffer
	w := kgzip.NewWriter(&z)
	for len(data) > 0 {
		n := min(each, len(data))
		w.Write(data[:n])
		w.Flush()
		ends = append(ends, z.Len())
		data = data[n:]
	}
	w.Close()
	return z.Bytes(), ends
}

func multiMember(data []byte, each int) (out []byte, ends []int) {
	for len(data) > 0 {
		n := min(each, len(data))
		out = append(out, gzipOf(data[:n])...)
		ends = append(ends, len(out))
		data = data[n:]
	}
	return out, ends
}

// withDeflate returns a gzip file of `data`, with the deflate data `before` at its beginning. No
// block of `before` is marked as the last block.
func withDeflate(before, data []byte) []byte {
	packed := gzipOf(data)
	return append(append(bytes.Clone(packed[:10]), before...), packed[10:]...)
}

// zeros returns a gzip file. Its content is `begin`, then `count` zeros, then `end`. The file is
// about 1000 times smaller than its content.
func zeros(begin []byte, count int64, end []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	w.Write(begin)
	some := make([]byte, 1<<20)
	for ; count > 0; count -= int64(len(some)) {
		w.Write(some[:min(count, int64(len(some)))])
	}
	w.Write(end)
	w.Close()
	return out.Bytes()
}

// repeated returns a gzip file. Its content is `begin`, then `count` copies of `each`, then
// `end`.
func repeated(begin, each []byte, count int, end []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	w.Write(begin)
	for range count {
		w.Write(each)
	}
	w.Write(end)
	w.Close()
	return out.Bytes()
}

// archives returns the cases. A fault of a whole archive gives an error for every MaxSkipRate.
func archives() []hostile {
	images := numbered(9)
	whole := tarOf(images)
	packed := gzipOf(whole)
	pigz, flushes := flushed(whole, 900)
	multi, ends := multiMember(whole, 1500)
	header := bytes.Clone(whole)
	header[148] ^= 7
	size := func(name string, size string) []byte { return rawHeader(name, '0', []byte(size), "") }
	png := solid(7, 5, 5)
	return []hostile{
		// These files are not archives of images.
		{name: "empty file", data: nil, fails: "empty file"},
		{name: "one byte", data: []byte{0x1f}, fails: "neither gzip nor tar"},
		{name: "zip", data: []byte("PK\x03\x04" + strings.Repeat("x", 600)), fails: "a zip file"},
		{name: "xz", data: []byte("\xfd7zXZ\x00" + strings.Repeat("x", 600)), fails: "decompress it first"},
		{name: "zstd", data: []byte("\x28\xb5\x2f\xfd" + strings.Repeat("x", 600)), fails: "decompress it first"},
		{name: "bzip2", data: []byte("BZh91AY" + strings.Repeat("x", 600)), fails: "decompress it first"},
		{name: "web page", data: []byte("<html>404" + strings.Repeat(" ", 600)), fails: "a web page"},
		{name: "LFS pointer", data: []byte("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), fails: "git lfs pull"},
		{name: "noise", data: bytes.Repeat([]byte{0x5a, 0x13, 0xfe}, 400), fails: "neither gzip nor tar"},
		{name: "gzip of text", data: gzipOf(bytes.Repeat([]byte("hello "), 300)), fails: "no tar archive inside"},
		{name: "gzip in gzip", data: gzipOf(packed), fails: "no tar archive inside"},
		{name: "gzip of nothing", data: gzipOf(nil), fails: "no images"},
		{name: "tar of nothing", data: tarOf(nil), fails: "no images"},

		// These files are shards of a WebDataset.
		{name: "one key for all", data: tarOf(manyOf("0.cls", 3000, []byte("1"), member{name: "0.png", body: png})), images: 1},
		{name: "a label of 1 MiB", data: tarOf([]member{{name: "0.cls", body: []byte("1")}, {name: "0.png", body: png}, {name: "1.cls", body: bytes.Repeat([]byte("x"), 1<<20)}, {name: "1.png", body: png}}), images: 1, skips: 1},
		{name: "deep JSON", data: tarOf([]member{{name: "0.cls", body: []byte("1")}, {name: "0.png", body: png}, {name: "1.json", body: bytes.Repeat([]byte("["), 1<<20)}, {name: "1.png", body: png}}), images: 1, skips: 1},
		{name: "label of bytes", data: tarOf([]member{{name: "0.cls", body: []byte("1")}, {name: "0.png", body: png}, {name: "1.cls", body: []byte("\xff\xfe\x00")}, {name: "1.png", body: png}}), images: 1, skips: 1},
		{name: "labels without images", data: tarOf(manyOf("0.cls", 50, []byte("1"))), fails: "no images"},
		{name: "cut in a label", data: unended(manyOf("0.cls", 1, []byte("1"), member{name: "0.png", body: png}, member{name: "1.cls", body: bytes.Repeat([]byte("2"), 600)}))[:4*512+512+100], fails: "cut short"},

		// These archives are cut off.
		{name: "tar cut in a header", data: whole[:512*3+100], fails: "cut short"},
		{name: "tar cut in a content", data: whole[:512+30], fails: "cut short"},
		{name: "tar cut in a padding", data: whole[:1024-3], fails: "cut short"},
		{name: "tar cut between members", data: whole[:2048], fails: "cut short"},
		{name: "gzip cut in its header", data: packed[:9], fails: "cut short"},
		{name: "gzip cut in a block", data: packed[:len(packed)/2], fails: "cut short"},
		{name: "gzip cut before its checksum", data: packed[:len(packed)-8], fails: "cut short"},
		{name: "gzip cut in its checksum", data: packed[:len(packed)-3], fails: "cut short"},
		{name: "cut at a flush", data: pigz[:flushes[2]], fails: "cut short"},
		{name: "cut between gzip members", data: multi[:ends[1]], fails: "cut short"},
		{name: "cut in the second gzip member", data: multi[:ends[0]+15], fails: "cut short"},
		{name: "tar cut, gzip whole", data: gzipOf(whole[:2000]), fails: "cut short"},

		// These archives are damaged.
		{name: "header with a wrong checksum", data: header, fails: "neither gzip nor tar"},
		{name: "second header with a wrong checksum", data: flipped(whole, (1024+20)*8), fails: "invalid tar header after member 1"},
		{name: "gzip with a wrong checksum", data: flipped(packed, 8*(len(packed)-7)), fails: "does not match the gzip checksum"},
		{name: "gzip with a wrong length", data: flipped(packed, 8*(len(packed)-2)), fails: "does not match the gzip checksum"},
		{name: "second gzip member with a wrong checksum", data: flipped(multi, 8*(ends[1]-6)), fails: "does not match the gzip checksum"},
		{name: "reserved flags in a gzip header", data: flipped(packed, 8*3+6), fails: "damaged"},
		{name: "gzip header without end", data: append([]byte{0x1f, 0x8b, 8, 8, 0, 0, 0, 0, 0, 0}, bytes.Repeat([]byte("n"), 2<<20)...), fails: "damaged"},
		{name: "invalid block", data: append(bytes.Clone(packed[:10]), 0xff, 0xff, 0xff), fails: "damaged"},
		{name: "text behind gzip", data: append(bytes.Clone(packed), "more"...), fails: "other data follow"},
		{name: "text behind tar", data: append(bytes.Clone(whole), "more"...), fails: "more behind the end marker"},
		{name: "joined tar", data: append(bytes.Clone(whole), whole...), fails: "more behind the end marker"},
		{name: "joined gzip", data: append(bytes.Clone(packed), packed...), fails: "more behind the end marker"},
		{name: "half a gzip file behind", data: append(bytes.Clone(packed), packed[:40]...), fails: "cut short"},
		{name: "one block of zeros between members", data: among(make([]byte, 512)), fails: "invalid tar header"},
		{name: "zeros behind gzip", data: append(bytes.Clone(packed), make([]byte, 300000)...), images: 9},

		// These archives have headers with false or invalid values.
		{name: "size of 8 GiB", data: among(size("train/a/big.txt", "77777777777\x00")), fails: "cut short"},
		{name: "size above the file", data: among(rawHeader("train/a/big.txt", '0', octal(1<<20), "")), fails: "cut short"},
		{name: "size of 2^62", data: among(size("train/a/big.txt", "\x80\x00\x00\x00\x40\x00\x00\x00\x00\x00\x00\x00")), fails: "again"},
		{name: "size of 2^63-1", data: among(size("train/a/big.txt", "\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff")), fails: "again"},
		{name: "size below 0", data: among(size("train/a/big.txt", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00")), fails: "invalid tar header"},
		{name: "size with a sign", data: among(size("train/a/big.txt", "-0000000100\x00")), fails: "invalid tar header"},
		{name: "size of no digits", data: among(size("train/a/big.txt", "zzzzzzzzzzz\x00")), fails: "invalid tar header"},
		{name: "PAX size above the file", data: among(pax("size=1000000000000", raw("train/a/big.txt", '0', png, ""))), fails: "cut short"},
		{name: "PAX size below 0", data: among(pax("size=-5", raw("train/a/big.txt", '0', png, ""))), fails: "invalid tar header"},
		{name: "PAX size of letters", data: among(pax("size=many", raw("train/a/big.txt", '0', png, ""))), fails: "invalid tar header"},
		{name: "PAX name with NUL", data: among(pax("path=train/a/\x00.png", raw("x", '0', png, ""))), fails: "invalid tar header"},
		{name: "PAX record without length", data: among(raw("PaxHeader", 'x', []byte("path=x\n"), ""), raw("x", '0', png, "")), fails: "invalid tar header"},
		{name: "PAX header of 2 MiB", data: among(pax("path="+strings.Repeat("x", 2<<20), raw("x", '0', png, ""))), fails: "invalid tar header"},
		{name: "PAX header before the end", data: append(unended(images), append(raw("PaxHeader", 'x', []byte("10 path=x\n"), ""), make([]byte, 1024)...)...), fails: ""},
		{name: "GNU name of 2 MiB", data: among(raw("././@LongLink", 'L', bytes.Repeat([]byte("x"), 2<<20), ""), raw("x", '0', png, "")), fails: "invalid tar header"},
		{name: "GNU name above the file", data: among(rawHeader("././@LongLink", 'L', octal(800000), "")), fails: "cut short"},
		{name: "sparse file of no map", data: among(raw("train/a/s.png", 'S', png, "")), fails: "again"},
		{name: "PAX sparse map that lies", data: among(pax("GNU.sparse.size=9000000000000", pax("GNU.sparse.numblocks=900000000", raw("train/a/s.png", '0', png, "")))), skips: 1, images: 9, says: "sparse"},
		{name: "PAX sparse map of version 1", data: among(pax("GNU.sparse.major=1", raw("train/a/s.png", '0', []byte("99999999999\n"), ""))), skips: 1, images: 9, says: "sparse"},

		// These archives have unusual names and kinds of members.
		{name: "links to outside", data: among(raw("train/a/l.png", '2', nil, "/etc/passwd"), raw("train/a/h.png", '1', nil, "../../etc/passwd")), images: 9},
		{name: "devices and pipes", data: among(raw("train/a/c.png", '3', nil, ""), raw("train/a/b.png", '4', nil, ""), raw("train/a/p.png", '6', nil, "")), images: 9},
		{name: "a kind that nobody knows", data: among(raw("train/a/k.png", 'Q', png, "")), images: 9},
		{name: "a directory with content", data: among(raw("train/a/d.png/", '5', png, "")), images: 9, loose: true},
		{name: "name from the root", data: among(raw("/train/a/1.png", '0', png, "")), skips: 1, images: 9, says: "unsafe name"},
		{name: "name with ..", data: among(raw("train/../../a/1.png", '0', png, "")), skips: 1, images: 9, says: "unsafe name"},
		{name: "name of no class", data: among(raw("./1.png", '0', png, "")), skips: 1, images: 9, says: "no class"},
		{name: "class named .", data: among(raw("a/./1.png", '0', png, "")), images: 10},
		{name: "class that is not UTF-8", data: among(raw("train/caf\xe9/1.png", '0', png, "")), skips: 1, images: 9, says: "not UTF-8"},
		{name: "name that is not UTF-8", data: among(raw("train/a/caf\xe9.png", '0', png, "")), images: 10},
		{name: "control characters in a bad image's name", data: among(raw("train/a/\x1b[2J\n.png", '0', []byte("x"), "")), skips: 1, images: 9, says: `\x1b[2J\n`},
		{name: "empty name", data: among(raw("", '0', png, "")), images: 9},
		{name: "name of 900 KB", data: among(raw("././@LongLink", 'L', []byte("train/a/"+strings.Repeat("x", 900<<10)+".png"), ""), raw("x", '0', []byte("bad"), "")), skips: 1, images: 9, says: "(921612 bytes)"},
		{name: "the same name twice", data: among(raw("train/a/000.png", '0', png, "")), images: 10},
		{name: "2000 global headers", data: among(bytes.Repeat(raw("g", 'g', []byte("12 comment=x\n"), ""), 1)), fails: "invalid tar header"},
		{name: "2000 right global headers", data: among(bytes.Repeat(raw("g", 'g', []byte("13 comment=x\n"), ""), 2000)), images: 9},

		// These gzip files are unusual, but they are legal.
		{name: "5000 empty gzip members", data: append(bytes.Repeat(gzipOf(nil), 5000), packed...), images: 9},
		{name: "100 000 empty stored blocks", data: withDeflate(bytes.Repeat([]byte{0, 0, 0, 0xff, 0xff}, 100_000), whole), images: 9},
		{name: "an empty fixed block for every ten bits", data: withDeflate(bytes.Repeat([]byte{0x02, 0x08, 0x20, 0x80, 0x00}, 100_000), whole), images: 9},
		{name: "many flushes", data: pigz, images: 9},
		{name: "a gzip member for every 1500 bytes", data: multi, images: 9},
	}
}

// bombs returns small files that inflate to very large contents.
func bombs() []hostile {
	images := numbered(9)
	whole := tarOf(images)
	const much = 200 << 20
	return []hostile{
		{name: "200 MiB of zeros", data: zeros(nil, much, nil), fails: "no images", slow: true},
		{name: "200 MiB of zeros behind the end", data: zeros(whole, much, nil), images: 9, slow: true},
		{name: "an image of 300 MiB of zeros", data: zeros(append(unended(images[:4]), rawHeader("train/a/z.png", '0', octal(300<<20), "")...), 300<<20, tarOf(images[4:])), skips: 1, images: 9, says: "too large", slow: true},
		{name: "a text of 200 MiB of zeros", data: zeros(append(unended(images[:4]), rawHeader("train/a/z.txt", '0', octal(much), "")...), much, tarOf(images[4:])), images: 9, slow: true},
		{name: "headers alone", data: repeated(nil, raw("train/a/1.png", '0', nil, ""), 400_000, nil), fails: "a decompression bomb", slow: true},
		{name: "names of 1 MB", data: repeated(nil, append(raw("././@LongLink", 'L', []byte("train/a/"+strings.Repeat("x", 1<<20-100)+".png"), ""), raw("x", '0', nil, "")...), 100, nil), fails: "a decompression bomb", slow: true},
	}
}

func TestCorpus_Archives(t *testing.T) {
	cases := append(archives(), bombs()...)
	t.Logf("%d archives", len(cases))
	for _, c := range cases {
		t.Run(c.name, c.run)
	}
}

// Twelve members inflate to 60 MiB each, and are small in the file. Memory holds at most one of
// these members, or the members in the shuffle buffer.
func TestCorpus_ImagesOfZeros(t *testing.T) {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	w.Write(unended(numbered(9)[:8]))
	const each, count = 60 << 20, 12
	for i := range count {
		w.Write(rawHeader(fmt.Sprintf("train/a/zero%d.png", i), '0', octal(each), ""))
		w.Write(make([]byte, each))
	}
	w.Write(tarOf(numbered(9)[8:]))
	w.Close()
	hostile{data: out.Bytes(), skips: count, images: 9, says: "all 0", slow: true, memory: 600 << 20}.run(t)
}

// A directory has files that are no images, or that stop being images after Open. The loader
// reads the other images. If there are none, Open fails.
func TestCorpus_Directory(t *testing.T) {
	png := solid(7, 5, 5)
	for _, c := range []hostile{
		{name: "a pipe in an image's place", after: func(t *testing.T, root string) {
			substitute(t, root, func(p string) error { filetest.Pipe(t, p); return nil })
		}, skips: 1, images: 8, says: "no longer a file"},
		{name: "a directory in an image's place", after: func(t *testing.T, root string) {
			substitute(t, root, func(p string) error { return os.Mkdir(p, 0o755) })
		}, skips: 1, images: 8, says: "no longer a file"},
		{name: "a link in an image's place", after: func(t *testing.T, root string) {
			substitute(t, root, func(p string) error { return os.Symlink("/etc/passwd", p) })
		}, skips: 1, images: 8, says: "escapes"},
		{name: "an image is gone", after: func(t *testing.T, root string) { substitute(t, root, func(string) error { return nil }) }, skips: 1, images: 8, says: "no such file"},
		{name: "an image became empty", after: func(t *testing.T, root string) {
			substitute(t, root, func(p string) error { return os.WriteFile(p, nil, 0o644) })
		}, skips: 1, images: 8, says: "zero bytes"},
		{name: "an image became larger", after: func(t *testing.T, root string) {
			substitute(t, root, func(p string) error { return os.WriteFile(p, append(png, make([]byte, 1<<20)...), 0o644) })
		}, skips: 1, images: 8, says: "corrupt PNG"},
		{name: "an image became 1 TiB", after: func(t *testing.T, root string) {
			substitute(t, root, func(p string) error {
				if err := os.WriteFile(p, png, 0o644); err != nil {
					return err
				}
				return os.Truncate(p, 1<<40)
			})
		}, skips: 1, images: 8, says: "too large"},
		{name: "pipes and links", before: func(t *testing.T, root string) {
			os.Symlink("/etc", filepath.Join(root, "train/a/etc"))
			os.Symlink("000.png", filepath.Join(root, "train/a/l.png"))
			filetest.Pipe(t, filepath.Join(root, "train/a/p.png"))
		}, images: 9},
		{name: "a name of odd characters", before: func(t *testing.T, root string) {
			must.Do(t, os.WriteFile(filepath.Join(root, "train/a/\x1b[31m\n.png"), []byte("bad"), 0o644))
		}, skips: 1, images: 9, says: `\x1b[31m\n`},
		{name: "nothing in it", before: func(t *testing.T, root string) { os.RemoveAll(filepath.Join(root, "train")) }, fails: "no images"},
	} {
		c.directory = true
		t.Run(c.name, c.run)
	}
}

// replace removes the third image and calls `with` to put another file in its place.
func substitute(t *testing.T, root string, with func(path string) error) {
	t.Helper()
	path := filepath.Join(root, "train/a/002.png")
	must.Do(t, os.Remove(path))
	must.Do(t, with(path))
}

// An archive that changes after Open gives an error. A loader that keeps the images in memory
// need not notice the change.
func TestCorpus_Changes(t *testing.T) {
	whole := tarOf(numbered(9))
	later := func(t *testing.T, path string) {
		must.Do(t, os.Chtimes(path, time.Time{}, time.Unix(1e9, 0)))
	}
	for _, c := range []hostile{
		{name: "cut", after: func(t *testing.T, path string) { must.Do(t, os.Truncate(path, 700)) }, fails: "open it again"},
		{name: "emptied", after: func(t *testing.T, path string) { must.Do(t, os.Truncate(path, 0)) }, fails: "open it again"},
		{name: "longer", after: func(t *testing.T, path string) { must.Do(t, os.Truncate(path, 1<<20)) }, fails: "open it again"},
		{name: "touched", after: later, fails: "changed while it was being read"},
		{name: "overwritten by other bytes", after: func(t *testing.T, path string) {
			must.Do(t, os.WriteFile(path, bytes.Repeat([]byte("x"), len(whole)), 0o644))
			later(t, path)
		}, fails: "open it again"},
		{name: "deleted", after: func(t *testing.T, path string) { must.Do(t, os.Remove(path)) }, images: 9},
		{name: "replaced", after: func(t *testing.T, path string) {
			must.Do(t, os.WriteFile(path+".new", []byte("another"), 0o644))
			must.Do(t, os.Rename(path+".new", path))
		}, images: 9},
	} {
		for _, data := range [][]byte{whole, gzipOf(whole)} {
			c.data = data
			c.changes = c.fails != ""
			t.Run(fmt.Sprintf("%s/gzip=%v", c.name, data[0] == 0x1f), c.run)
		}
	}
}

const samples = "decode/testdata"

func sampleImage(t *testing.T, name string) []byte {
	t.Helper()
	data := must.Get(os.ReadFile(filepath.Join(samples, name)))(t)
	return data
}

// oddJPEGs returns JPEG files with an unusual header, table, marker or scan.
func oddJPEGs(t *testing.T) map[string][]byte {
	jpg := sampleImage(t, "good/420.jpg")
	progressive := sampleImage(t, "good/progressive.jpg")
	restart := sampleImage(t, "good/restart.jpg")
	patch := func(data []byte, marker byte, at int, with ...byte) []byte {
		out := bytes.Clone(data)
		i := bytes.Index(out, []byte{0xff, marker})
		if i < 0 {
			t.Fatalf("no marker %x", marker)
		}
		copy(out[i+at:], with)
		return out
	}
	insert := func(data []byte, at int, with ...byte) []byte {
		return append(append(bytes.Clone(data[:at]), with...), data[at:]...)
	}
	scan := bytes.Index(jpg, []byte{0xff, 0xda})
	exif := func(tiff string) []byte {
		body := "Exif\x00\x00" + tiff
		return insert(jpg, 2, append([]byte{0xff, 0xe1, byte((len(body) + 2) >> 8), byte(len(body) + 2)}, body...)...)
	}
	app := binary.BigEndian.AppendUint16([]byte{0xff, 0xe1}, 0xffff)
	return map[string][]byte{
		"65535x1":                     patch(jpg, 0xc0, 5, 0, 1, 0xff, 0xff),
		"1x65535":                     patch(jpg, 0xc0, 5, 0xff, 0xff, 0, 1),
		"65535x65535":                 patch(jpg, 0xc0, 5, 0xff, 0xff, 0xff, 0xff),
		"height 0 for DNL":            insert(patch(jpg, 0xc0, 5, 0, 0), len(jpg)-2, 0xff, 0xdc, 0, 4, 0, 18),
		"width 0":                     patch(jpg, 0xc0, 7, 0, 0),
		"taller than its data":        patch(jpg, 0xc0, 5, 1, 0),
		"progressive of 96 Mpx":       patch(progressive, 0xc2, 5, 0x25, 0x80, 0x27, 0x10),
		"sequential of 96 Mpx":        patch(jpg, 0xc0, 5, 0x25, 0x80, 0x27, 0x10),
		"five components":             patch(jpg, 0xc0, 9, 5),
		"255 components":              patch(jpg, 0xc0, 9, 255),
		"sampling factors 4x4":        patch(jpg, 0xc0, 11, 0x44),
		"sampling factors 3x1":        patch(jpg, 0xc0, 11, 0x31),
		"sampling factors 1x3 of Cb":  patch(jpg, 0xc0, 14, 0x13),
		"sampling factors 0x0":        patch(jpg, 0xc0, 11, 0),
		"sampling factors 15x15":      patch(jpg, 0xc0, 11, 0xff),
		"quantizer that is not there": patch(jpg, 0xc0, 12, 3),
		"12 bits":                     patch(jpg, 0xc0, 4, 12),
		"arithmetic coding":           patch(jpg, 0xc0, 1, 0xc9),
		"progressive by name":         patch(jpg, 0xc0, 1, 0xc2),
		"lossless by name":            patch(jpg, 0xc0, 1, 0xc3),
		"hierarchical by name":        patch(jpg, 0xc0, 1, 0xc5),
		"Huffman table overfull":      patch(jpg, 0xc4, 5, 255, 255, 255),
		"Huffman table empty":         patch(jpg, 0xc4, 5, make([]byte, 16)...),
		"restart marker missing":      bytes.Replace(restart, []byte{0xff, 0xd1}, nil, 1),
		"restart marker wrong":        bytes.Replace(restart, []byte{0xff, 0xd1}, []byte{0xff, 0xd5}, 1),
		"restart marker too many":     bytes.Replace(restart, []byte{0xff, 0xd1}, []byte{0xff, 0xd1, 0xff, 0xd2}, 1),
		"restart marker unannounced":  insert(jpg, scan+40, 0xff, 0xd0),
		"all bits of the scan set":    append(bytes.Clone(jpg[:scan+14]), append(bytes.Repeat([]byte{0xff, 0}, 3000), 0xff, 0xd9)...),
		"no bit of the scan set":      append(bytes.Clone(jpg[:scan+14]), append(make([]byte, 5000), 0xff, 0xd9)...),
		"a block that overflows":      append(bytes.Clone(jpg[:scan+14]), append(bytes.Repeat([]byte{0xfe, 0x55}, 3000), 0xff, 0xd9)...),
		"EXIF that is cut":            exif("II*\x00\x08\x00\x00\x00\xff\xff"),
		"EXIF directory in itself":    exif("II*\x00\x08\x00\x00\x00\x01\x00\x69\x87\x04\x00\x01\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00\x00"),
		"EXIF far away":               exif("II*\x00\xff\xff\xff\xff"),
		"EXIF of 64 KB, cut":          append(append([]byte{0xff, 0xd8}, app...), "Exif\x00\x00MM"...),
		"two start markers":           append([]byte{0xff, 0xd8}, jpg...),
		"marker fill of 1 MB":         insert(jpg, 2, bytes.Repeat([]byte{0xff}, 1<<20)...),
		"a scan again":                append(bytes.Clone(jpg[:len(jpg)-2]), jpg[scan:]...),
		"900 scans":                   append(append(bytes.Clone(jpg[:len(jpg)-2]), bytes.Repeat(jpg[scan:len(jpg)-2], 900)...), 0xff, 0xd9),
	}
}

// Each image lies among eight good images. Bad images are skipped, and good images are read. Odd
// JPEG files may be skipped or read.
func TestCorpus_Images(t *testing.T) {
	count := 0
	for folder, skips := range map[string]int{"bad": 1, "good": 0} {
		files := must.Get(os.ReadDir(filepath.Join(samples, folder)))(t)
		for _, file := range files {
			count++
			hostile{data: withImage(sampleImage(t, filepath.Join(folder, file.Name()))), images: 9 - skips, skips: skips, few: true}.sub(t, folder+"/"+file.Name())
		}
	}
	for name, body := range oddJPEGs(t) {
		count++
		hostile{data: withImage(body), images: -1, few: true}.sub(t, name)
	}
	t.Logf("%d images", count)
}

// manyOf returns n members with the same name and content, followed by other members.
func manyOf(name string, n int, body []byte, behind ...member) (members []member) {
	for range n {
		members = append(members, member{name: name, body: body})
	}
	return append(members, behind...)
}
