package imageloader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/flate"

	"github.com/streamtorch/streamtorch/internal/filelock"
	"github.com/streamtorch/streamtorch/internal/filetest"
	"github.com/streamtorch/streamtorch/internal/must"
)

// An index file begins with this text.
const indexMagic = "streamtorch index 2\n"

// indexed has a .tgz and its index file.
type indexed struct {
	path, folder, file string
	id                 []byte // the shard's identity
	data               []byte // content of the index file
	body               []byte // body of the index file, not compressed
}

// indexArchive stores an archive and opens a loader, which makes an index file.
func indexArchive(t testing.TB, data []byte) indexed {
	t.Helper()
	x := indexed{path: write(t, "a.tgz", data), folder: t.TempDir()}
	must.Do(t, os.Chtimes(x.path, time.Time{}, time.Unix(1e9, 0)))
	l, err := Open(x.path, x.options())
	must.Do(t, err)
	if files := l.Stats().IndexFiles; len(files) == 1 {
		x.file = files[0]
	} else {
		t.Fatalf("index files %q, %s", files, l.Stats().IndexError)
	}
	l.Close()
	if x.data, err = os.ReadFile(x.file); err != nil {
		t.Fatal(err)
	}
	x.id = x.data[len(indexMagic):][:48] // a size, a time and a SHA-256
	head := len(indexMagic) + len(x.id) + 8
	if x.body, err = io.ReadAll(flate.NewReader(bytes.NewReader(x.data[head : len(x.data)-4]))); err != nil {
		t.Fatal(err)
	}
	return x
}

func (x indexed) options() Options {
	o := options()
	o.Reading.ShuffleBuffer, o.Index.Dir, o.Reading.MaxSkipRate, o.Workers = 700, x.folder, 0.9, 2
	return o
}

// sealed returns an index file with the given body. Its length and checksum are right, even if
// the body is not.
func (x indexed) sealed(body []byte) []byte {
	out := append([]byte(indexMagic), x.id...)
	out = binary.LittleEndian.AppendUint64(out, uint64(len(body)))
	var packed bytes.Buffer
	w, _ := flate.NewWriter(&packed, flate.BestSpeed)
	w.Write(body)
	w.Close()
	out = append(out, packed.Bytes()...)
	return binary.LittleEndian.AppendUint32(out, crc32.ChecksumIEEE(out))
}

// parts returns the points and the entries of the body.
func (x indexed) parts() (points, entries []byte) {
	n, at := binary.Uvarint(x.body)
	return x.body[at:][:n], x.body[at+int(n):]
}

func joinParts(points, entries []byte) []byte {
	return append(append(binary.AppendUvarint(nil, uint64(len(points))), points...), entries...)
}

// indexFile is a file in place of the right index file, and what the loader must do with it.
type indexFile struct {
	name string
	make func() []byte
	want string // text of an error. "" if the index is made again, or is harmless
	any  bool   // any outcome without harm is right
}

// indexFiles returns index files for the archive of `base`. `packed` is the archive's data, and
// `whole` is its content.
func indexFiles(t *testing.T, base indexed, packed, whole []byte) []indexFile {
	points, entries := base.parts()
	other := indexArchive(t, gzipOf(tarOf(numbered(30))))
	entry := func(kind byte, same, n uint64, name string, offset, size uint64) []byte {
		out := binary.AppendUvarint([]byte{kind}, same)
		out = append(binary.AppendUvarint(out, n), name...)
		return append(binary.AppendUvarint(binary.AppendUvarint(out, offset), size), 0, 0) // an empty label and an empty fault
	}
	list := func(count uint64, of ...[]byte) []byte {
		return joinParts(points, append(binary.AppendUvarint(nil, count), bytes.Join(of, nil)...))
	}
	return []indexFile{
		{"as it was", func() []byte { return base.data }, "", false},
		{"empty", func() []byte { return nil }, "", false},
		{"cut", func() []byte { return base.data[:len(base.data)/2] }, "", false},
		{"without its checksum", func() []byte { return base.data[:len(base.data)-4] }, "", false},
		{"a bit of its identity flipped", func() []byte { return flipped(base.data, 8*25) }, "", false},
		{"a bit of its body flipped", func() []byte { return flipped(base.data, 8*(len(base.data)-20)) }, "", false},
		{"longer", func() []byte { return append(bytes.Clone(base.data), "more"...) }, "", false},
		{"of another archive", func() []byte { return other.data }, "", false},
		{"of another archive, identity of this one", func() []byte { return base.sealed(other.body) }, "", false},
		{"noise", func() []byte { return bytes.Repeat([]byte{0xa5}, 5000) }, "", false},
		{"of 40 MB", func() []byte { return make([]byte, 40<<20) }, "", false},
		{"sealed, empty", func() []byte { return base.sealed(nil) }, "", false},
		{"sealed, cut", func() []byte { return base.sealed(base.body[:len(base.body)-1]) }, "", false},
		{"sealed, longer", func() []byte { return base.sealed(append(bytes.Clone(base.body), 0)) }, "", false},
		{"sealed, 1 GiB of zeros", func() []byte { return base.sealed(make([]byte, 1<<30)) }, "", false},
		{"points of 2^60 bytes", func() []byte { return base.sealed(binary.AppendUvarint(nil, 1<<60)) }, "", false},
		{"2^40 points", func() []byte {
			p := binary.AppendUvarint(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(len(packed))), 5000), 1<<40)
			return base.sealed(joinParts(p, entries))
		}, "", false},
		{"2^60 entries", func() []byte { return base.sealed(list(1 << 60)) }, "", false},
		{"an entry without a name", func() []byte { return base.sealed(list(1, entry(0, 0, 1<<19, "x", 0, 0))) }, "", false},
		{"an entry behind the end", func() []byte { return base.sealed(list(1, entry(0, 0, 7, "a/1.jpg", 1<<40, 5))) }, "", false},
		{"an entry larger than the content", func() []byte { return base.sealed(list(1, entry(0, 0, 7, "a/1.jpg", 5, 1<<40))) }, "", false},
		{"an entry of an unknown kind", func() []byte { return base.sealed(list(1, entry(77, 0, 7, "a/1.jpg", 5, 1))) }, "", false},
		{"entries of no images", func() []byte { return base.sealed(list(1, entry(0, 0, 7, "a/1.txt", 5, 1))) }, "no images", false},
		{"entries that are elsewhere", func() []byte { return base.sealed(list(1, entry(0, 0, 7, "a/1.jpg", 5, 1000))) }, "are unusable", false},
		{"entries one over another", func() []byte {
			return base.sealed(list(2, entry(0, 0, 7, "a/1.jpg", 512, 4000), entry(0, 7, 0, "", 0, 4000)))
		}, "", true},
		{"entries of a whole content", func() []byte { return base.sealed(list(1, entry(0, 0, 7, "a/1.jpg", 0, uint64(len(whole))))) }, "are unusable", false},
		{"another checksum of a segment", func() []byte {
			p := bytes.Clone(points)
			p[bytes.Index(p, []byte{1, 0})+2] ^= 1
			return base.sealed(joinParts(p, entries))
		}, "", true},
	}
}

// If an index file is wrong, the loader makes it again. If only inflating can show the fault, the
// loader gives an error.
func TestCorpus_Index(t *testing.T) {
	members := numbered(9)
	for i := range members {
		members[i].body = append(photo(30+i, 20), make([]byte, 3000)...)
		members[i].name = strings.Replace(members[i].name, ".png", ".jpg", 1)
	}
	whole := tarOf(members)
	packed := gzipOf(whole)
	base := indexArchive(t, packed)
	for _, test := range indexFiles(t, base, packed, whole) {
		t.Run(test.name, func(t *testing.T) {
			checkLeaks(t)
			data := test.make()
			memory := peak(func() {
				for _, train := range []bool{false, true} {
					for _, given := range []bool{false, true} {
						must.Do(t, os.WriteFile(base.file, data, 0o644))
						o := base.options()
						o.Train = train
						if given {
							o.Labels.Classes = []string{"a", "b", "c"}
						}
						within(t, 20*time.Second, func() {
							err := readTwice(base.path, o)
							switch {
							case test.any && (err == nil || errors.As(err, new(*Error))):
							case train && given && err == nil: // the first epoch does not use the index
							case (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want):
								t.Errorf("train %v, classes %v: got %v, want %q", train, given, err, test.want)
							}
						})
					}
				}
			})
			if memory > 100<<20 {
				t.Errorf("%d MiB of heap", memory>>20)
			}
		})
	}
}

// readTwice opens an archive and reads two epochs.
func readTwice(path string, o Options) error {
	l, err := Open(path, o)
	if err != nil {
		return err
	}
	defer l.Close()
	for range 2 {
		if _, err := tryRead(l); err != nil {
			return err
		}
	}
	return nil
}

// Wrong points in an index give a different error than a changed archive. The error names the
// index file as the file to delete.
func TestEpoch_IndexLies(t *testing.T) {
	x := indexArchive(t, stored(tarOf(heavy(9, 1<<20))))
	points, entries := x.parts()
	p := bytes.Clone(points)
	// The bytes 1, 0 are the first point: a member that begins at bit 0 and offset 0. The checksum
	// follows.
	p[bytes.Index(p, []byte{1, 0})+2] ^= 1
	must.Do(t, os.WriteFile(x.file, x.sealed(joinParts(p, entries)), 0o644))
	o := x.options()
	o.Reading.MaxSkipRate = 0
	err := readTwice(x.path, o)
	if err == nil || !errors.Is(err, ErrArchive) || !strings.Contains(err.Error(), "its index file "+x.file) || !strings.Contains(err.Error(), "delete that file") {
		t.Fatalf("got %v", err)
	}
	must.Do(t, os.Remove(x.file))
	must.Check(t, readTwice(x.path, o))
}

// The index cannot be written, or another file has its name. The archive is still read without an
// error.
func TestCorpus_IndexFolder(t *testing.T) {
	data := gzipOf(tarOf(numbered(30)))
	base := indexArchive(t, data)
	name := filepath.Base(base.file)
	for what, make := range map[string]func(t *testing.T) string{
		"a file":              func(t *testing.T) string { return write(t, "folder", nil) },
		"below a file":        func(t *testing.T) string { return filepath.Join(write(t, "folder", nil), "deeper") },
		"cannot be written":   func(t *testing.T) string { return "/proc/self/task" },
		"is not there":        func(t *testing.T) string { return filepath.Join(t.TempDir(), "a", "b") },
		"full":                func(t *testing.T) string { return "/dev/full" },
		"a pipe in its place": func(t *testing.T) string { d := t.TempDir(); filetest.Pipe(t, filepath.Join(d, name)); return d },
		"a folder in its place": func(t *testing.T) string {
			d := t.TempDir()
			must.Do(t, os.Mkdir(filepath.Join(d, name), 0o755))
			return d
		},
		"a link to nothing": func(t *testing.T) string {
			d := t.TempDir()
			must.Do(t, os.Symlink("nothing", filepath.Join(d, name)))
			return d
		},
		"a link to a device": func(t *testing.T) string {
			d := t.TempDir()
			must.Do(t, os.Symlink("/dev/zero", filepath.Join(d, name)))
			return d
		},
		"a file without an end": func(t *testing.T) string {
			d := t.TempDir()
			f := filepath.Join(d, name)
			must.Do(t, os.WriteFile(f, nil, 0o644))
			must.Do(t, os.Truncate(f, 1<<40))
			return d
		},
	} {
		t.Run(what, func(t *testing.T) {
			checkLeaks(t)
			o := base.options()
			o.Index.Dir = make(t)
			within(t, 20*time.Second, func() {
				must.Check(t, readTwice(base.path, o))
			})
			if left, _ := filepath.Glob(filepath.Join(o.Index.Dir, "*.index.*")); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// With any body in a sealed index file, an epoch ends with images or with an *Error.
func FuzzIndex(f *testing.F) {
	x := indexArchive(f, gzipOf(tarOf(numbered(30))))
	f.Add(x.body, false)
	f.Add(x.body, true)
	points, entries := x.parts()
	f.Add(joinParts(points, entries[:len(entries)/2]), true)
	f.Add(joinParts(points[:len(points)/2], entries), false)
	f.Fuzz(func(t *testing.T, body []byte, train bool) {
		must.Do(t, os.WriteFile(x.file, x.sealed(body), 0o644))
		o := x.options()
		o.Train = train
		if err := readTwice(x.path, o); err != nil && !errors.As(err, new(*Error)) {
			t.Fatal(fmt.Sprintf("%T", err), err)
		}
	})
}

// The size of all shards together decides whether an archive is kept in memory. It also decides
// whether the shards get index files.
func TestOpen_IndexOfSmallShards(t *testing.T) {
	folder := t.TempDir()
	all := noisy(120)
	largest := 0
	for i := range 4 {
		packed := gzipOf(tarOf(all[30*i : 30*i+30]))
		largest = max(largest, len(packed))
		must.Do(t, os.WriteFile(fmt.Sprintf("%s/s-%d.tgz", folder, i), packed, 0o644))
	}
	o := blockOptions()
	o.Index.NoFile, o.Reading.ShuffleBuffer = false, largest+1
	for i := range 2 {
		l := open(t, folder+"/s-*.tgz", o)
		read(t, l)
		if s := l.Stats(); len(s.IndexFiles) != 4 {
			t.Errorf("opened %d times: index files %q, %s", i+1, s.IndexFiles, s.IndexError)
		}
		l.Close()
	}
}

// Ranks of a host open a .tgz at the same time. They wait for the one that makes the index. If the
// index does not come, each makes its own.
func TestOpen_OneIndexAHost(t *testing.T) {
	const ranks = 4
	x := indexArchive(t, gzipOf(tarOf(numbered(90))))
	for _, test := range []struct {
		name   string
		folder string
		comes  bool // the index comes while the ranks wait
		waits  bool
	}{
		{"the index comes", t.TempDir(), true, true},
		{"the index does not come", t.TempDir(), false, true},
		{"no index can be stored", filepath.Join(write(t, "file", nil), "folder"), false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			checkLeaks(t)
			index := filepath.Join(test.folder, filepath.Base(x.file))
			unlock := lock(index)
			loaders, errs := make([]*Loader, ranks), make([]error, ranks)
			var wait sync.WaitGroup
			var opened atomic.Int32
			for rank := range ranks {
				o := x.options()
				o.Index.Dir, o.Ranks.World, o.Ranks.Rank, o.Ranks.EachOnce = test.folder, ranks, rank, true
				wait.Add(1)
				go func() {
					defer wait.Done()
					loaders[rank], errs[rank] = Open(x.path, o)
					opened.Add(1)
				}()
			}
			time.Sleep(100 * time.Millisecond)
			if n := opened.Load(); n != 0 && test.waits {
				t.Errorf("%d ranks did not wait", n)
			}
			if test.comes {
				must.Do(t, os.WriteFile(index, x.data, 0o644))
			}
			before, _ := os.Stat(index)
			unlock()
			wait.Wait()
			images := 0
			for rank, l := range loaders {
				if errs[rank] != nil {
					t.Fatal(errs[rank])
				}
				defer closeWhole(t, l)
				if after, _ := os.Stat(index); test.comes && !os.SameFile(before, after) {
					t.Errorf("rank %d made an index", rank)
				}
				read(t, l)
				images += l.Stats().Samples
			}
			if images != 90 {
				t.Errorf("%d images of 90", images)
			}
			if left, _ := filepath.Glob(filepath.Join(test.folder, "*"+".lock")); len(left) > 0 {
				t.Errorf("files are left: %q", left)
			}
		})
	}
}

// lock takes the lock of an index file, as another process that makes it. The caller unlocks it.
// Where there is no folder, nobody can.
func lock(index string) (unlock func()) {
	f, err := filelock.Open(index+".lock", os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return func() {}
	}
	filelock.Lock(f)
	return func() {
		os.Remove(f.Name())
		f.Close()
	}
}

// indexOfFirst returns the name and the content of the index file of a-0.tgz in a folder.
func indexOfFirst(t *testing.T, folder string) (name string, content []byte) {
	o := options()
	o.Reading.ShuffleBuffer, o.Index.Dir = 700, t.TempDir()
	open(t, filepath.Join(folder, "a-0.tgz"), o)
	files, err := filepath.Glob(filepath.Join(o.Index.Dir, "*.index"))
	must.Do(t, err)
	content, err = os.ReadFile(files[0])
	must.Do(t, err)
	return filepath.Base(files[0]), content
}

// fourShards makes a folder with the files a-0.tgz to a-3.tgz of 20 images each.
func fourShards(t *testing.T) (folder string) {
	folder = t.TempDir()
	for i := range 4 {
		data := gzipOf(tarOf(numbered(90)[i*20:][:20]))
		must.Do(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("a-%d.tgz", i)), data, 0o644))
	}
	return folder
}

func filesOfIndices(folder string) int {
	all, _ := filepath.Glob(filepath.Join(folder, "*.index"))
	return len(all)
}

// A rank that needs the first images alone does not read further shards.
func TestOpen_IndicesTogether_Limit(t *testing.T) {
	folder := t.TempDir()
	o := options()
	o.Reading.ShuffleBuffer, o.Index.Dir, o.Ranks.World, o.Limit, o.Labels.Classes = 700, folder, 2, 6, []string{"a", "b", "c"}
	l := open(t, filepath.Join(fourShards(t), "a-{0..3}.tgz"), o)
	if n := filesOfIndices(folder); n != 1 || l.Len() != 3 {
		t.Errorf("%d index files, %d images", n, l.Len())
	}
}

// A shard that is damaged gives its error, also where another rank could make the other indices.
func TestOpen_IndicesTogether_Damaged(t *testing.T) {
	folder := fourShards(t)
	data := must.Get(os.ReadFile(filepath.Join(folder, "a-2.tgz")))(t)
	must.Do(t, os.WriteFile(filepath.Join(folder, "a-2.tgz"), data[:len(data)/2], 0o644))
	for rank := range 2 {
		o := options()
		o.Reading.ShuffleBuffer, o.Index.Dir, o.Ranks.World, o.Ranks.Rank = 700, t.TempDir(), 2, rank
		_, err := Open(filepath.Join(folder, "a-{0..3}.tgz"), o)
		wantError(t, err, ErrArchive, "a-2.tgz", "cut short")
		o.Reading.AllowTruncated = true
		l := open(t, filepath.Join(folder, "a-{0..3}.tgz"), o)
		if n := len(l.Stats().Truncated); n != 1 || filesOfIndices(o.Index.Dir) != 3 {
			t.Errorf("%d shards are cut short, %d index files", n, filesOfIndices(o.Index.Dir))
		}
	}
}

// Of an archive of several shards, a rank makes the indices that no other rank makes. It waits for
// the others after that.
func TestOpen_IndicesTogether(t *testing.T) {
	const shards = 4
	for _, test := range []struct {
		rank  int
		comes bool // another rank makes the index of the first shard. Otherwise that rank fails
	}{{0, true}, {0, false}, {1, true}} {
		t.Run(fmt.Sprint(test.rank, test.comes), func(t *testing.T) {
			checkLeaks(t)
			folder, indices := fourShards(t), t.TempDir()
			o := options()
			o.Reading.ShuffleBuffer, o.Index.Dir, o.Workers, o.Ranks.World, o.Ranks.Rank, o.Ranks.EachOnce = 700, indices, 2, 2, test.rank, true
			index, made := indexOfFirst(t, folder)
			index = filepath.Join(indices, index)
			unlock := lock(index) // as another process that makes the index of the first shard
			var l *Loader
			opened := make(chan error, 1)
			go func() {
				var err error
				l, err = Open(filepath.Join(folder, "a-{0..3}.tgz"), o)
				opened <- err
			}()
			eventually(t, "missing index files", 0, func() int { return shards - 1 - filesOfIndices(indices) })
			select {
			case err := <-opened:
				t.Fatalf("Open has not waited: %v", err)
			case <-time.After(50 * time.Millisecond):
			}
			if test.comes {
				if _, err := os.Stat(index); err == nil {
					t.Fatal("the rank made an index whose lock it does not have")
				}
				must.Do(t, os.WriteFile(index, made, 0o644))
			}
			before, _ := os.Stat(index)
			unlock()
			must.Do(t, <-opened)
			defer closeWhole(t, l)
			if got := len(read(t, l)); got != 10 || filesOfIndices(indices) != shards {
				t.Errorf("%d batches and %d index files", got, filesOfIndices(indices))
			}
			if after, _ := os.Stat(index); test.comes && !os.SameFile(before, after) {
				t.Error("the rank made the first index")
			}
		})
	}
}
