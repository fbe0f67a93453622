package cifar

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/must"
)

// pixels returns the pixels of image i, as in make.py.
func pixels(i int) []byte {
	all := make([]byte, bytesEach)
	for p := range all {
		all[p] = byte(7*p + 31*i)
	}
	return all
}

func write(t testing.TB, path string, parts ...[]byte) {
	t.Helper()
	must.Do(t, os.WriteFile(path, bytes.Join(parts, nil), 0o666))
}

func checkSet(t *testing.T, name string, s Set, err error, labels, coarse []int64) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if !slices.Equal(s.Labels, labels) || !slices.Equal(s.Coarse, coarse) {
		t.Errorf("%s: labels %v and %v, want %v and %v", name, s.Labels, s.Coarse, labels, coarse)
	}
	if len(s.Images) != len(labels)*bytesEach || !bytes.Equal(s.Images[:2*bytesEach], append(pixels(0), pixels(1)...)) {
		t.Errorf("%s: other pixels", name)
	}
}

func TestReadPython(t *testing.T) {
	for _, name := range []string{"batch10-protocol2", "batch10-protocol4"} {
		s, err := readPython("testdata/" + name)
		checkSet(t, name, s, err, []int64{3, 9}, nil)
	}
	s, err := readPython("testdata/batch100-protocol2")
	checkSet(t, "batch100", s, err, []int64{99, 0}, []int64{19, 4})
}

// python2 is a batch as Python 2 writes it, which is how the authors' files were made.
func python2() []byte {
	var b bytes.Buffer
	text := func(s string) { fmt.Fprintf(&b, "U%c%s", len(s), s) }
	b.WriteString("\x80\x02}q\x01(")
	text("data")
	b.WriteString("cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85")
	text("b")
	b.WriteString("\x87Rq\x04(K\x01K\x02M\x00\x0c\x86cnumpy\ndtype\nq\x05")
	text("u1")
	b.WriteString("K\x00K\x01\x87Rq\x06(K\x03")
	text("|")
	b.WriteString("NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T\x00\x18\x00\x00")
	b.Write(append(pixels(0), pixels(1)...))
	b.WriteString("tb")
	text("labels")
	b.WriteString("]q\x07(K\x03K\x09eu.")
	return b.Bytes()
}

func TestReadPython_Python2(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data_batch_1")
	write(t, path, python2())
	s, err := readPython(path)
	checkSet(t, "Python 2", s, err, []int64{3, 9}, nil)
}

// python3 returns a batch as numpy 2 and Python 3 write it in protocol 0 or 5. `data` and `labels`
// are the instructions that push the values of these keys.
func python3(protocol int, data, labels string) []byte {
	if protocol == 0 {
		return []byte("(dp0\nVbatch_label\np1\nVcaf\xe9\\u005c\\u4e00\\u000a\np2\nsVdata\np3\n" + data + "sVlabels\np4\n" + labels + "sVloss\np5\nF0.5\ns.")
	}
	return []byte("\x80\x05\x95\x00\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x04data\x94" + data + "\x8c\x06labels\x94" + labels + "u.")
}

// frombuffer pushes an array as protocol 5 does. `push` is the instruction for its bytes.
func frombuffer(push string, data []byte, dtype, shape, order string) string {
	size := string(binary.LittleEndian.AppendUint64(nil, uint64(len(data))))
	return "\x8c\x13numpy._core.numeric\x94\x8c\x0b_frombuffer\x94\x93\x94(" + push + size + string(data) + "\x94\x8c\x05numpy\x94\x8c\x05dtype\x94\x93\x94\x8c\x02" + dtype[1:] +
		"\x94\x89\x88\x87\x94R\x94(K\x03\x8c\x01" + dtype[:1] + "\x94NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t\x94b" + shape + "\x94\x8c\x01" + order + "\x94t\x94R\x94"
}

// latin1 returns bytes as a line of protocol 0.
func latin1(data []byte) string {
	var out strings.Builder
	for _, b := range data {
		switch b {
		case 0, '\n', '\r', '\\', 0x1a:
			fmt.Fprintf(&out, "\\u%04x", b)
		default:
			out.WriteByte(b)
		}
	}
	return out.String()
}

// quoted returns bytes as Python 2 writes a string in protocol 0.
func quoted(data []byte) string {
	var out strings.Builder
	for _, b := range data {
		switch {
		case b == '\n':
			out.WriteString(`\n`)
		case b == '\'' || b == '\\':
			out.WriteString("\\" + string(b))
		case b < ' ' || b > '~':
			fmt.Fprintf(&out, `\x%02x`, b)
		default:
			out.WriteByte(b)
		}
	}
	return "'" + out.String() + "'"
}

func TestReadPython_Protocols(t *testing.T) {
	rows := append(pixels(0), pixels(1)...)
	columns := make([]byte, len(rows))
	for i := range rows {
		columns[i%bytesEach*2+i/bytesEach] = rows[i]
	}
	const shape, list5, list0 = "K\x02M\x00\x0c\x86", "]\x94(K\x03K\x09e", "(lp9\nI3\naL9L\na"
	ndarray := func(kind, flag, push string) string {
		return "cnumpy.core.multiarray\n_reconstruct\np10\n(cnumpy\nndarray\np11\n(I0\ntp12\n" + kind + "tp13\nRp14\n(I1\n(I2\nI3072\ntp15\ncnumpy\ndtype\np16\n(" + flag +
			"I0\nI1\ntp17\nRp18\n(I3\n" + strings.Replace(flag, "u1", "|", 1) + "NNNI-1\nI-1\nI0\ntp19\nbI00\n" + push + "tp20\nb"
	}
	encoded := func(data []byte) string {
		return "c_codecs\nencode\np21\n(V" + latin1(data) + "\np22\nVlatin1\np23\ntp24\nRp25\n"
	}
	for name, text := range map[string][]byte{
		"5":                              python3(5, frombuffer("\x96", rows, "|u1", shape, "C"), list5),
		"5, read only":                   python3(5, frombuffer("\x8e", rows, "|u1", shape, "C"), list5),
		"5, numpy 1":                     bytes.ReplaceAll(python3(5, frombuffer("\x96", rows, "|u1", shape, "C"), list5), []byte("\x13numpy._core"), []byte("\x12numpy.core")),
		"5, columns":                     python3(5, frombuffer("\x96", columns, "|u1", shape, "F"), list5),
		"5, labels of int64":             python3(5, frombuffer("\x96", rows, "|u1", shape, "C"), frombuffer("\x96", []byte("\x03\x00\x00\x00\x00\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00"), "<i8", "K\x02\x85", "C")),
		"5, labels, the high byte first": python3(5, frombuffer("\x96", rows, "|u1", shape, "C"), frombuffer("\x96", []byte("\x00\x03\x00\x09"), ">i2", "K\x02\x85", "C")),
		"0":                              python3(0, ndarray(encoded([]byte("b")), "Vu1\n", encoded(rows)), list0),
		"0 of Python 2":                  python3(0, ndarray("S'b'\n", "S'u1'\n", "S"+quoted(rows)+"\n"), list0),
	} {
		path := filepath.Join(t.TempDir(), "data_batch_1")
		write(t, path, text)
		s, err := readPython(path)
		checkSet(t, name, s, err, []int64{3, 9}, nil)
	}
	for name, c := range map[string]struct {
		text []byte
		want string
	}{
		"buffers beside":        {python3(5, strings.Replace(frombuffer("\x96", nil, "|u1", shape, "C"), "\x96\x00\x00\x00\x00\x00\x00\x00\x00", "\x97", 1), list5), "buffer_callback"},
		"another order":         {python3(5, frombuffer("\x96", rows, "|u1", shape, "K"), list5), "an array of"},
		"a wrong size":          {python3(5, frombuffer("\x96", rows[1:], "|u1", shape, "C"), list5), "with 6143 bytes"},
		"labels of floats":      {python3(5, frombuffer("\x96", rows, "|u1", shape, "C"), frombuffer("\x96", make([]byte, 16), "<f8", "K\x02\x85", "C")), `"labels" is not a list of 2 numbers: it is an array [2] of f8`},
		"three labels":          {python3(5, frombuffer("\x96", rows, "|u1", shape, "C"), "]\x94(K\x03K\x03K\x03e"), "it has 3"},
		"a number of no digits": {python3(0, "Fx\n", list0), "is not a number"},
		"an open quote":         {python3(0, "S'x\n", list0), "is not a quoted string"},
		"a wrong escape":        {python3(0, "S'\\xzz'\n", list0), "is not an escape"},
		"protocol 6":            {[]byte("\x80\x06}."), "protocol 6"},
	} {
		path := filepath.Join(t.TempDir(), "data_batch_1")
		write(t, path, c.text)
		if _, err := readPython(path); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestReadBinary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "batch")
	write(t, path, []byte{3}, pixels(0), []byte{9}, pixels(1))
	s, err := readBinary(path, 10)
	checkSet(t, "CIFAR-10", s, err, []int64{3, 9}, nil)
	write(t, path, []byte{19, 99}, pixels(0), []byte{4, 0}, pixels(1))
	s, err = readBinary(path, 100)
	checkSet(t, "CIFAR-100", s, err, []int64{99, 0}, []int64{19, 4})
}

func TestRead_Folder(t *testing.T) {
	folder := t.TempDir()
	if _, err := Read(folder, true); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), folder) {
		t.Errorf("an empty folder: %v", err)
	}
	for i := range 5 {
		write(t, filepath.Join(folder, fmt.Sprintf("data_batch_%d.bin", i+1)), []byte{byte(i)}, pixels(0), []byte{9}, pixels(1))
	}
	s, err := Read(folder, true)
	checkSet(t, "training", s, err, []int64{0, 9, 1, 9, 2, 9, 3, 9, 4, 9}, nil)
	if _, err := Read(folder, false); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "test_batch.bin") {
		t.Errorf("without a test batch: %v", err)
	}
}

func TestRead_Hostile(t *testing.T) {
	whole := python2()
	for name, text := range map[string][]byte{
		"empty":           nil,
		"cut":             whole[:len(whole)-1],
		"cut in pixels":   whole[:2000],
		"no dict":         []byte("\x80\x02K\x01."),
		"no data":         []byte("\x80\x02}."),
		"code":            []byte("cos\nsystem\n(U\x02lsp0\ntR."),
		"other protocol":  []byte("\x80\x05}."),
		"no stack":        []byte("a."),
		"no mark":         []byte("]e."),
		"no memo":         []byte("h\x07."),
		"a long text":     []byte("T\xff\xff\xff\xff."),
		"a long number":   []byte("\x8a\xff."),
		"a number of 9":   []byte("\x8a\x09123456789."),
		"an empty stack":  []byte("."),
		"pairs of a list": []byte("](K\x01K\x01u."),
		"half a pair":     []byte("}(K\x01u."),
		"a filled number": []byte("K\x01(K\x01e."),
		"a name of names": []byte("\x80\x04U\x01aU\x01b" + strings.Repeat("\x94h\x00\x93", 60) + "."),
		"encoded often":   []byte("\x80\x02X\x40\x00\x00\x00" + strings.Repeat("a", 64) + "q\x00" + strings.Repeat("c_codecs\nencode\nh\x00U\x06latin1\x86R", 50) + "."),
		"label 10":        bytes.Replace(whole, []byte("K\x09eu."), []byte("K\x0aeu."), 1),
		"label of text":   bytes.Replace(whole, []byte("K\x09eu."), []byte("U\x01aeu."), 1),
		"too few labels":  bytes.Replace(whole, []byte("K\x03K\x09eu."), []byte("K\x03eu."), 1),
		"too many pixels": bytes.Replace(whole, []byte("K\x02M\x00\x0c\x86"), []byte("K\x03M\x00\x0c\x86"), 1),
		"huge sizes":      bytes.Replace(whole, []byte("K\x02M\x00\x0c\x86"), []byte("J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86"), 1),
	} {
		path := filepath.Join(t.TempDir(), "batch")
		write(t, path, text)
		if _, err := readPython(path); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
	for name, text := range map[string][]byte{"empty": nil, "cut": pixels(0), "label 10": append([]byte{10}, pixels(0)...)} {
		path := filepath.Join(t.TempDir(), "batch.bin")
		write(t, path, text)
		if _, err := readBinary(path, 10); !errors.Is(err, ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("binary, %s: got %v, want an error that names the file", name, err)
		}
	}
}

func FuzzReadPython(f *testing.F) {
	f.Add(python2())
	f.Add(python3(0, "S'\\x41'\n", "(lI1\na"))
	f.Add(python3(5, frombuffer("\x96", pixels(0), "|u1", "K\x01M\x00\x0c\x86", "C"), "]\x94(K\x03e"))
	for _, name := range []string{"batch10-protocol2", "batch10-protocol4", "batch100-protocol2"} {
		text := must.Get(os.ReadFile("testdata/" + name))(f)
		f.Add(text)
	}
	path := filepath.Join(f.TempDir(), "batch")
	f.Fuzz(func(t *testing.T, text []byte) {
		write(t, path, text)
		if s, err := readPython(path); err == nil && len(s.Images) != len(s.Labels)*bytesEach || err != nil && !errors.Is(err, ErrFormat) {
			t.Errorf("%d labels, %v", len(s.Labels), err)
		}
	})
}
