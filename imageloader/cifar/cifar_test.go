package cifar_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/imageloader/cifar"
)

// pixels returns the pixels of image i, as in make.py.
func pixels(i int) []byte {
	all := make([]byte, cifar.Pixels)
	for p := range all {
		all[p] = byte(7*p + 31*i)
	}
	return all
}

func write(t testing.TB, path string, parts ...[]byte) {
	t.Helper()
	if err := os.WriteFile(path, bytes.Join(parts, nil), 0o666); err != nil {
		t.Fatal(err)
	}
}

func checkSet(t *testing.T, name string, s cifar.Set, err error, labels, coarse []int64) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	if !slices.Equal(s.Labels, labels) || !slices.Equal(s.Coarse, coarse) || s.Len() != len(labels) {
		t.Errorf("%s: labels %v and %v, want %v and %v", name, s.Labels, s.Coarse, labels, coarse)
	}
	if len(s.Images) != len(labels)*cifar.Pixels || !bytes.Equal(s.Images[:2*cifar.Pixels], append(pixels(0), pixels(1)...)) {
		t.Errorf("%s: other pixels", name)
	}
}

func TestReadPython(t *testing.T) {
	for _, name := range []string{"batch10-protocol2", "batch10-protocol4"} {
		s, err := cifar.ReadPython("testdata/" + name)
		checkSet(t, name, s, err, []int64{3, 9}, nil)
	}
	s, err := cifar.ReadPython("testdata/batch100-protocol2")
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
	s, err := cifar.ReadPython(path)
	checkSet(t, "Python 2", s, err, []int64{3, 9}, nil)
}

func TestReadBinary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "batch")
	write(t, path, []byte{3}, pixels(0), []byte{9}, pixels(1))
	s, err := cifar.ReadBinary(path, cifar.CIFAR10)
	checkSet(t, "CIFAR-10", s, err, []int64{3, 9}, nil)
	write(t, path, []byte{19, 99}, pixels(0), []byte{4, 0}, pixels(1))
	s, err = cifar.ReadBinary(path, cifar.CIFAR100)
	checkSet(t, "CIFAR-100", s, err, []int64{99, 0}, []int64{19, 4})
}

func TestRead_Folder(t *testing.T) {
	folder := t.TempDir()
	if _, err := cifar.Read(folder, true); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), folder) {
		t.Errorf("an empty folder: %v", err)
	}
	for i := range 5 {
		write(t, filepath.Join(folder, fmt.Sprintf("data_batch_%d.bin", i+1)), []byte{byte(i)}, pixels(0), []byte{9}, pixels(1))
	}
	s, err := cifar.Read(folder, true)
	checkSet(t, "training", s, err, []int64{0, 9, 1, 9, 2, 9, 3, 9, 4, 9}, nil)
	if _, err := cifar.Read(folder, false); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), "test_batch.bin") {
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
		if _, err := cifar.ReadPython(path); !errors.Is(err, cifar.ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: got %v, want an error that names the file", name, err)
		}
	}
	for name, text := range map[string][]byte{"empty": nil, "cut": pixels(0), "label 10": append([]byte{10}, pixels(0)...)} {
		path := filepath.Join(t.TempDir(), "batch.bin")
		write(t, path, text)
		if _, err := cifar.ReadBinary(path, cifar.CIFAR10); !errors.Is(err, cifar.ErrFormat) || !strings.Contains(err.Error(), path) {
			t.Errorf("binary, %s: got %v, want an error that names the file", name, err)
		}
	}
}

func FuzzReadPython(f *testing.F) {
	f.Add(python2())
	for _, name := range []string{"batch10-protocol2", "batch10-protocol4", "batch100-protocol2"} {
		text, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	path := filepath.Join(f.TempDir(), "batch")
	f.Fuzz(func(t *testing.T, text []byte) {
		write(t, path, text)
		if s, err := cifar.ReadPython(path); err == nil && len(s.Images) != s.Len()*cifar.Pixels || err != nil && !errors.Is(err, cifar.ErrFormat) {
			t.Errorf("%d labels, %v", s.Len(), err)
		}
	})
}
