package inflate

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	kflate "github.com/klauspost/compress/gzip"

	"github.com/streamtorch/streamtorch/internal/leaktest"
	"github.com/streamtorch/streamtorch/internal/must"
)

// text returns `size` bytes, some of them long matches and some of them noise.
func text(size int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 1))
	p := make([]byte, 0, size+1000)
	for len(p) < size {
		switch random.IntN(3) {
		case 0:
			for range random.IntN(2000) {
				p = append(p, byte(random.Uint32()))
			}
		case 1:
			p = append(p, strings.Repeat(string(rune('a'+random.IntN(20))), random.IntN(300))...)
		default:
			if len(p) > 40000 {
				from := len(p) - 1 - random.IntN(32768)
				p = append(p, p[from:min(from+random.IntN(400), len(p))]...)
			}
		}
	}
	return p[:size]
}

func noise(size int, seed uint64) []byte {
	random := rand.New(rand.NewPCG(seed, 2))
	p := make([]byte, size)
	for i := range p {
		p[i] = byte(random.Uint32())
	}
	return p
}

func zipped(t testing.TB, p []byte, level int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := must.Get(gzip.NewWriterLevel(&out, level))(t)
	w.Write(p)
	must.Do(t, w.Close())
	return out.Bytes()
}

// members returns a gzip file with one member for every `each` bytes of p.
func members(t testing.TB, p []byte, each int) []byte {
	t.Helper()
	var out []byte
	for len(p) > 0 {
		n := min(each, len(p))
		out = append(out, zipped(t, p[:n], 6)...)
		p = p[n:]
	}
	return out
}

func flushed(t testing.TB, p []byte, each int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := kflate.NewWriter(&out)
	for len(p) > 0 {
		n := min(each, len(p))
		w.Write(p[:n])
		w.Flush()
		p = p[n:]
	}
	w.Close()
	return out.Bytes()
}

func fixtures(t testing.TB) map[string][2][]byte {
	all := map[string][2][]byte{}
	add := func(name string, p, z []byte) { all[name] = [2][]byte{p, z} }
	add("empty", nil, zipped(t, nil, 6))
	add("short", []byte("hello"), zipped(t, []byte("hello"), 6))
	big, mixed := noise(9<<20, 3), text(12<<20, 4)
	add("noise", big, zipped(t, big, 6))
	add("stored", mixed, zipped(t, mixed, 0))
	add("fast", mixed, zipped(t, mixed, 1))
	add("best", mixed, zipped(t, mixed, 9))
	add("huffman", big, zipped(t, big[:5<<20], gzip.HuffmanOnly))
	all["huffman"] = [2][]byte{big[:5<<20], all["huffman"][1]}
	add("members", mixed, members(t, mixed, 60000))
	add("large members", mixed, members(t, mixed, 5<<20))
	add("flushed", mixed, flushed(t, mixed, 100000))
	add("empty members", nil, members(t, make([]byte, 100), 1)[:0:0])
	delete(all, "empty members")
	zeros := make([]byte, 60<<20)
	add("zeros", zeros, zipped(t, zeros, 6))
	inner := zipped(t, mixed, 6)
	add("gzip in stored", inner, zipped(t, inner, 0))
	add("padded", mixed[:3<<20], append(zipped(t, mixed[:3<<20], 6), make([]byte, 300000)...))
	return all
}

func TestReader(t *testing.T) {
	leaktest.Check(t, nil)
	for name, f := range fixtures(t) {
		for _, workers := range []int{1, 3} {
			r := NewReader(context.Background(), bytes.NewReader(f[1]), int64(len(f[1])), Options{Workers: workers})
			got, err := io.ReadAll(r)
			if err != nil || !bytes.Equal(got, f[0]) {
				t.Fatalf("%s, %d workers: %d bytes, %v; want %d", name, workers, len(got), err, len(f[0]))
			}
			x := r.Index()
			if x.Size() != int64(len(f[0])) {
				t.Errorf("%s: index of %d bytes, want %d", name, x.Size(), len(f[0]))
			}
			encoded, _ := x.AppendBinary(nil)
			t.Logf("%s: %d bytes of %d, %d segments, index of %d bytes", name, len(f[1]), len(f[0]), x.Segments(), len(encoded))
			r.Close()
			testFile(t, name, f, x)
		}
	}
}

// testFile reads the whole content and random parts of it through a File.
func testFile(t *testing.T, name string, f [2][]byte, x *Index) {
	t.Helper()
	encoded := must.Get(x.AppendBinary(nil))(t)
	var again Index
	if err := again.UnmarshalBinary(encoded); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	content := NewFile(bytes.NewReader(f[1]), &again, nil)
	random := rand.New(rand.NewPCG(5, 5))
	whole := make([]byte, len(f[0]))
	if n, err := content.ReadAt(whole, 0); n != len(whole) || err != nil && err != io.EOF || !bytes.Equal(whole, f[0]) {
		t.Fatalf("%s: the whole content: %d bytes, %v", name, n, err)
	}
	for range 8 {
		if len(f[0]) == 0 {
			break
		}
		from := random.IntN(len(f[0]))
		p := make([]byte, min(len(f[0])-from, random.IntN(3<<20)))
		if n, err := content.ReadAt(p, int64(from)); n != len(p) || err != nil || !bytes.Equal(p, f[0][from:from+n]) {
			t.Fatalf("%s: %d bytes at %d: %d, %v", name, len(p), from, n, err)
		}
	}
}

// The index does not depend on the number of workers or on chance.
func TestReader_IndexIsTheSame(t *testing.T) {
	_, z := text(20<<20, 8), zipped(t, text(20<<20, 8), 6)
	var first []byte
	for i := range 5 {
		r := NewReader(context.Background(), bytes.NewReader(z), int64(len(z)), Options{Workers: i + 1})
		io.Copy(io.Discard, r)
		encoded, _ := r.Index().AppendBinary(nil)
		r.Close()
		if first == nil {
			first = encoded
		}
		if !bytes.Equal(encoded, first) {
			t.Fatalf("%d workers: another index", i+1)
		}
	}
}

// A stored block that was found is used wherever its header is: 3 to 10 bits before its length.
func TestJoiner_IsAt_Stored(t *testing.T) {
	const field = 8 * 1000 // the bit at which the length begins
	for bits := uint64(2); bits <= 16; bits++ {
		zeros := uint16(1)<<(16-bits) - 1 // ones where the block before ends, then zeros
		for _, test := range []struct {
			lead uint16
			want bool
		}{{zeros, bits >= 3 && bits <= 10}, {zeros | 1<<15, false}, {zeros | 1<<(16-bits), false}} {
			s := &segment{begin: place{bit: field - storedHeader}, stored: true, lead: test.lead}
			j := joiner{place: place{bit: field - bits}}
			if got := j.isAt(s); got != test.want {
				t.Errorf("%d bits, lead %016b: %v", bits, test.lead, got)
			}
		}
	}
}

func TestReader_Refuses(t *testing.T) {
	leaktest.Check(t, nil)
	whole := zipped(t, text(7<<20, 9), 6)
	flip := func(at int) []byte {
		p := bytes.Clone(whole)
		p[at] ^= 0x10
		return p
	}
	for _, test := range []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, ErrTruncated},
		{"one byte", whole[:1], ErrTruncated},
		{"half a header", whole[:7], ErrTruncated},
		{"no data", whole[:10], ErrTruncated},
		{"half", whole[:len(whole)/2], ErrTruncated},
		{"no trailer", whole[:len(whole)-8], ErrTruncated},
		{"half a trailer", whole[:len(whole)-3], ErrTruncated},
		{"text", []byte("a text, and no gzip file at all"), ErrNotGzip},
		{"another method", append([]byte{0x1f, 0x8b, 7}, whole[3:]...), ErrCorrupt},
		{"wrong checksum", flip(len(whole) - 6), ErrChecksum},
		{"wrong size", flip(len(whole) - 2), ErrChecksum},
		{"something behind", append(bytes.Clone(whole), "more"...), ErrTrailing},
		{"a byte behind", append(bytes.Clone(whole), 0x1f), ErrTrailing},
		{"half a member behind", append(bytes.Clone(whole), whole[:1000]...), ErrTruncated},
		{"zeros, then more", append(append(bytes.Clone(whole), make([]byte, 200000)...), 1), ErrTrailing},
	} {
		r := NewReader(context.Background(), bytes.NewReader(test.in), int64(len(test.in)), Options{Workers: 3})
		var content bytes.Buffer
		n, err := io.Copy(&content, r)
		if !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		if _, again := r.Read(make([]byte, 1)); again != err {
			t.Errorf("%s: then %v", test.name, again)
		}
		if test.name == "half" && n < 3<<20 {
			t.Errorf("%s: only %d bytes before the error", test.name, n)
		}
		index := r.Index()
		if (index != nil) != (test.want == ErrTruncated) {
			t.Errorf("%s: index %v", test.name, index)
		}
		if index != nil { // the index is of the part before the cut
			got, err := NewFile(bytes.NewReader(test.in), index, nil).Inflate(0, n, func(n int) []byte { return make([]byte, n) })
			if err != nil || !bytes.Equal(got, content.Bytes()) {
				t.Errorf("%s: with its index %d bytes of %d: %v", test.name, len(got), n, err)
			}
		}
		r.Close()
	}
}

// A file with one damaged byte gives an error.
func TestReader_Damaged(t *testing.T) {
	content := text(6<<20, 10)
	whole := zipped(t, content, 6)
	random := rand.New(rand.NewPCG(11, 11))
	for range 60 {
		damaged := bytes.Clone(whole)
		damaged[10+random.IntN(len(whole)-18)] ^= byte(1 + random.IntN(255))
		r := NewReader(context.Background(), bytes.NewReader(damaged), int64(len(damaged)), Options{Workers: 2})
		_, err := io.Copy(io.Discard, r)
		if !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrChecksum) && !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrTrailing) {
			t.Errorf("%v", err)
		}
		r.Close()
	}
}
