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

	"github.com/streamtorch/streamtorch/internal/must"
)

// seeds returns small gzip files of every kind.
func seeds(t testing.TB) [][]byte {
	p := text(20000, 1)
	whole := zipped(t, p, 6)
	all := [][]byte{
		whole, zipped(t, p, 0), zipped(t, p[:3000], gzip.HuffmanOnly), zipped(t, nil, 6), members(t, p, 700), flushed(t, p, 900),
		oneBlock(p[:2000]), oneBlock(make([]byte, 300000)), zipped(t, whole, 0), zipped(t, make([]byte, 1<<20), 9),
		whole[:len(whole)/2], append(bytes.Clone(whole), "more"...), append(bytes.Clone(whole), make([]byte, 300)...),
		append(bytes.Clone(whole), zipped(t, p[:10], 6)...), {0x1f, 0x8b, 8, 0x1f, 0, 0, 0, 0, 0, 0, 2, 0, 1, 1, 'n', 0, 'c', 0, 0, 0, 3, 0},
	}
	return all
}

// oneBlock returns a gzip file of one block with deflate's fixed codes. The Reader can find no
// block in this file, except at the beginning.
func oneBlock(p []byte) []byte {
	out := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	bits, count := uint64(0), 0
	put := func(code uint64, n int) { // puts the highest bit first
		for n--; n >= 0; n-- {
			bits |= code >> n & 1 << count
			if count++; count == 8 {
				out, bits, count = append(out, byte(bits)), 0, 0
			}
		}
	}
	put(0b110, 3) // the last block, with fixed codes. The two bits of its kind are stored lowest first
	for i := 0; i < len(p); {
		run := 0
		for i > 0 && run < 258 && i+run < len(p) && p[i+run] == p[i-1] {
			run++
		}
		switch {
		case run == 258:
			put(0xC5, 8)
			put(0, 5)
			i += run
			continue
		case p[i] < 144:
			put(0x30+uint64(p[i]), 8)
		default:
			put(0x190+uint64(p[i]-144), 9)
		}
		i++
	}
	put(0, 7)
	put(0, (8-count)%8)
	sum := checksumOf(p)
	for _, v := range []uint32{sum.crc, uint32(sum.bytes)} {
		out = append(out, byte(v), byte(v>>8), byte(v>>16), byte(v>>24))
	}
	return out
}

// reference returns the content that compress/gzip reads from `in`, at most `most` bytes.
func reference(in []byte, most int64) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(in))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(z, most))
}

// A Reader gives the bytes of compress/gzip, and an error exactly where compress/gzip gives one.
// Small chunks do not change the result. Three differences are wanted. A Reader accepts zeros
// after the last member, as padding. A Reader does not check a header's own checksum. A Reader
// refuses reserved flags in a header, as RFC 1952 says.
func FuzzInflate(f *testing.F) {
	for i, seed := range seeds(f) {
		f.Add(seed, uint16(i*37))
	}
	const most = 4 << 20
	f.Fuzz(func(t *testing.T, in []byte, cut uint16) {
		trimmed := bytes.TrimRight(in, "\x00") // the zeros at the end may be padding or a part of the trailer
		want, wantErr := reference(in, most)
		if wantErr != nil && len(trimmed) < len(in) {
			for n := len(trimmed); n < min(len(trimmed)+9, len(in)); n++ {
				if padded, err := reference(in[:n], most); err == nil {
					want, wantErr = padded, nil
				}
			}
		}
		if len(want) == most {
			return
		}
		l := limits{chunk: 1 + int64(cut%512), spacing: 1 + int(cut>>9)*100, most: 1 + int(cut>>12)*10000}
		for _, l := range []limits{usual, l} {
			r := newReader(context.Background(), bytes.NewReader(in), int64(len(in)), Options{Workers: 2}, l)
			got, err := io.ReadAll(io.LimitReader(r, most+1))
			x := r.Index()
			r.Close()
			if errors.Is(wantErr, gzip.ErrHeader) && err == nil { // the checksum of a header is wrong
				return
			}
			if err != nil && strings.Contains(err.Error(), "reserved flags") {
				return
			}
			if (err == nil) != (wantErr == nil) {
				t.Fatalf("%+v: got %v, want %v", l, err, wantErr)
			}
			if err == nil && !bytes.Equal(got, want) || err != nil && !bytes.HasPrefix(want, got) && !bytes.HasPrefix(got, want) {
				t.Fatalf("%+v: other bytes (%d, want %d), %v, %v", l, len(got), len(want), err, wantErr)
			}
			if err == nil {
				readBack(t, in, got, x, uint64(cut))
			}
		}
	})
}

// readBack reads random parts of the content with the index and compares them.
func readBack(t *testing.T, in, content []byte, x *Index, seed uint64) {
	t.Helper()
	file := NewFile(bytes.NewReader(in), x, nil)
	random := rand.New(rand.NewPCG(seed, 3))
	for range 3 {
		from := random.IntN(len(content) + 1)
		to := from + random.IntN(len(content)-from+1)
		got, err := file.Inflate(int64(from), int64(to), func(n int) []byte { return make([]byte, n) })
		if err != nil || !bytes.Equal(got, content[from:to]) {
			t.Fatalf("bytes %d to %d of %d: %d of them, %v", from, to, len(content), len(got), err)
		}
	}
}

// Any bytes give ErrIndex, or an index that can be used. A part of the content that is read with
// this index has the right length, or the read gives an error.
func FuzzIndex(f *testing.F) {
	p := text(300000, 2)
	z := flushed(f, p, 30000)
	for _, l := range []limits{usual, {chunk: 4096, spacing: 20000, most: 1 << 20}} {
		r := newReader(context.Background(), bytes.NewReader(z), int64(len(z)), Options{Workers: 2}, l)
		io.Copy(io.Discard, r)
		encoded := must.Get(r.Index().AppendBinary(nil))(f)
		r.Close()
		f.Add(encoded, uint32(0), uint32(len(p)))
		f.Add(encoded, uint32(100000), uint32(1000))
	}
	f.Fuzz(func(t *testing.T, encoded []byte, from, bytesWanted uint32) {
		var x Index
		if err := x.UnmarshalBinary(encoded); err != nil {
			if !errors.Is(err, ErrIndex) {
				t.Fatal(err)
			}
			return
		}
		file := NewFile(bytes.NewReader(z), &x, nil)
		begin := min(int64(from), x.Size())
		end := min(begin+int64(bytesWanted%(1<<20)), x.Size())
		taken := 0
		got, err := file.Inflate(begin, end, func(n int) []byte { taken += n; return make([]byte, n) })
		if taken > int(end-begin)+window+2*room {
			t.Fatalf("%d bytes of memory for %d", taken, end-begin)
		}
		switch {
		case err == nil && int64(len(got)) != end-begin:
			t.Fatalf("%d bytes, want %d", len(got), end-begin)
		case err != nil && !errors.Is(err, ErrIndex) && !errors.Is(err, io.ErrUnexpectedEOF):
			t.Fatal(err)
		}
	})
}

// File.Inflate skips a block of 70 MiB in little memory.
func TestFile_GiantBlock(t *testing.T) {
	content := make([]byte, 80<<20)
	copy(content[70<<20:], text(1<<20, 3))
	z := oneBlock(content)
	r := NewReader(context.Background(), bytes.NewReader(z), int64(len(z)), Options{Workers: 1})
	defer r.Close()
	if n, err := io.Copy(io.Discard, r); n != int64(len(content)) || err != nil {
		t.Fatal(n, err)
	}
	if n := r.Index().Segments(); n != 1 {
		t.Fatalf("%d segments: it has a second block", n)
	}
	file := NewFile(bytes.NewReader(z), r.Index(), nil)
	for _, from := range []int{0, 1, skipBytes - 1, skipBytes, skipBytes + 1, 3*skipBytes + 100, 70<<20 + 12345, len(content) - 70000} {
		taken := 0
		got, err := file.Inflate(int64(from), int64(from+70000), func(n int) []byte { taken += n; return make([]byte, n) })
		if err != nil || !bytes.Equal(got, content[from:from+70000]) || taken > 200000 {
			t.Errorf("from %d: %v, equal: %v, in %d bytes", from, err, bytes.Equal(got, content[from:from+70000]), taken)
		}
	}
	if whole, err := file.Inflate(100, int64(len(content)), func(n int) []byte { return make([]byte, n) }); err != nil || !bytes.Equal(whole, content[100:]) {
		t.Errorf("to the end: %v", err)
	}
}
