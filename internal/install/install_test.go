//go:build !windows

package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

// archive returns a release's archive of fake libraries with this manifest.
func archive(t *testing.T, m library.Manifest, names ...string) []byte {
	t.Helper()
	var buffer bytes.Buffer
	z := gzip.NewWriter(&buffer)
	to := tar.NewWriter(z)
	for _, name := range append(slices.Clone(names), library.ManifestFile) {
		text := []byte("the file " + name)
		if name == library.ManifestFile {
			text = m.Text()
		}
		must.Do(t, to.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}))
		must.Get(to.Write(text))(t)
	}
	must.Do(t, to.Close())
	must.Do(t, z.Close())
	return buffer.Bytes()
}

// installer returns an Installer whose LibTorch is a fake one and whose root is a new folder.
func installer(t *testing.T, archives string) (*Installer, *bytes.Buffer) {
	t.Helper()
	var said bytes.Buffer
	lock := must.Get(ParseLock(newIndex(t).lock(), archives))(t)
	return &Installer{Root: filepath.Join(t.TempDir(), "root"), Lock: lock, Out: NewPrinter(&said)}, &said
}

var (
	right = library.Manifest{LibTorch: "2.11.0", Platform: library.Platform, Source: library.Source}
	files = []string{library.CoreFile, library.DecoderFile, "libcgotorch_cuda.so", "licenses/zlib.txt"}
)

// built makes fake libraries in a folder, as a clone compiles them.
func built(t *testing.T, folder string, m library.Manifest) {
	t.Helper()
	for _, file := range files[:3] {
		write(t, filepath.Join(folder, file), "built")
	}
	write(t, filepath.Join(folder, library.ManifestFile), string(m.Text()))
}

// setenv sets variables of the form NAME=VALUE until the test ends.
func setenv(t *testing.T, variables ...string) {
	t.Helper()
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
}

// Install checks what it gets. What is wrong leaves nothing under a final name, and what was there
// stays.
func TestInstall_Release(t *testing.T) {
	torch := fakeLibTorch(t, "2.11.0")
	t.Setenv("LIBTORCH", torch)
	name, loader := ArchiveName(library.Platform, "2.11.0"), ArchiveName(library.Platform, "")
	whole := archive(t, right, files...)
	half := archive(t, library.Manifest{Platform: library.Platform, Source: library.Source}, library.DecoderFile)
	served := map[string][]byte{name: whole, loader: half}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := served[strings.TrimPrefix(r.URL.Path, "/")]; ok {
			w.Write(text)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	sums := fmt.Sprintf("%x  %s\n%x  %s\n", sha256.Sum256(whole), name, sha256.Sum256(half), loader)

	in, said := installer(t, sums)
	in.From = server.URL
	folder := filepath.Join(in.Root, "lib", library.Key())
	must.Do(t, in.Install(context.Background(), true))
	if got := names(t, folder); got != "SHA256SUMS libcgotorch.json libcgotorch_decode.so" {
		t.Errorf("-loader installed %s", got)
	}
	must.Do(t, in.Install(context.Background(), false))
	m := must.Get(library.ReadManifest(filepath.Join(folder, library.ManifestFile)))(t)
	if m.Folder != torch+"/lib" || m.LibTorch != "2.11.0" || m.Source != library.Source {
		t.Errorf("the manifest is %+v", m)
	}
	must.Do(t, in.Verify(context.Background(), said))

	t.Setenv("LIBTORCH", fakeLibTorch(t, "2.11.0")) // another one, so that the libraries are wanted anew
	for what, c := range map[string]struct {
		sums  string
		serve []byte
		text  string
	}{
		"other bytes":     {sums, archive(t, right, files[:2]...), "SHA-256"},
		"not served":      {strings.ReplaceAll(sums, name, "x"+name), nil, "release.sum of this version has no " + name},
		"a 404":           {sums, nil, "does not have it"},
		"another version": {sumLine(t, name, library.Manifest{LibTorch: "2.11.0", Platform: library.Platform, Source: strings.Repeat("0", 64)}), archive(t, library.Manifest{LibTorch: "2.11.0", Platform: library.Platform, Source: strings.Repeat("0", 64)}, files...), "source 000000000000"},
		"another release": {sumLine(t, name, library.Manifest{LibTorch: "2.9.1", Platform: library.Platform, Source: library.Source}), archive(t, library.Manifest{LibTorch: "2.9.1", Platform: library.Platform, Source: library.Source}, files...), "are for LibTorch 2.9.1, and LibTorch 2.11.0 is here"},
		"no archive":      {fmt.Sprintf("%x  %s\n", sha256.Sum256([]byte("junk")), name), []byte("junk"), "EOF"},
	} {
		t.Run(what, func(t *testing.T) {
			delete(served, name)
			if c.serve != nil {
				served[name] = c.serve
			}
			in.Lock = must.Get(ParseLock(newIndex(t).lock(), c.sums))(t)
			if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want an error with %q", err, c.text)
			}
			if wrong := wrongLibraries(folder); len(wrong) > 0 {
				t.Errorf("what was there is damaged: %v", wrong)
			}
			if left := must.Get(filepath.Glob(filepath.Join(in.Root, "tmp/*")))(t); len(left) > 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}

func sumLine(t *testing.T, name string, m library.Manifest) string {
	return fmt.Sprintf("%x  %s\n", sha256.Sum256(archive(t, m, files...)), name)
}

// names returns the names of the files in a folder.
func names(t *testing.T, folder string) string {
	t.Helper()
	var all []string
	for _, entry := range must.Get(os.ReadDir(folder))(t) {
		all = append(all, entry.Name())
	}
	return strings.Join(all, " ")
}

// A folder gives the archives of a release with their hashes, or compiled libraries.
func TestInstall_FromFolder(t *testing.T) {
	t.Setenv("LIBTORCH", fakeLibTorch(t, "2.11.0"))
	from := t.TempDir()
	name := ArchiveName(library.Platform, "2.11.0")
	in, said := installer(t, "")
	in.From = from
	fails := func(text string) {
		t.Helper()
		if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want an error with %q", err, text)
		}
	}
	fails("has no " + name)
	whole := archive(t, right, files...)
	must.Do(t, os.WriteFile(filepath.Join(from, name), whole, 0o666))
	fails("the hash of " + filepath.Join(from, name) + " is unknown")
	must.Do(t, os.WriteFile(filepath.Join(from, sumsFile), []byte(sumLine(t, name, library.Manifest{})), 0o666))
	fails("SHA-256")
	must.Do(t, os.WriteFile(filepath.Join(from, sumsFile), []byte(sumLine(t, name, right)), 0o666))
	must.Do(t, in.Install(context.Background(), false))
	if !strings.Contains(said.String(), "is not in release.sum of this version") {
		t.Errorf("it does not say that the release is unknown:\n%s", said)
	}

	in.From, in.Root = t.TempDir(), filepath.Join(t.TempDir(), "root")
	other := right
	other.Source = strings.Repeat("1", 64)
	built(t, in.From, other)
	fails("source 111111111111")
	built(t, in.From, right)
	must.Do(t, in.Install(context.Background(), false))
}

// What is installed for all users can be read by all, whatever the umask is. A LibTorch in a
// private home is not used for it.
func TestInstall_Shared(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	index := newIndex(t)
	setenv(t, append(index.env(), "LIBTORCH=", "PYTHON=/nonexistent", "STREAMTORCH_CUDA=0")...)
	in, _ := installer(t, "")
	in.Lock = must.Get(ParseLock(index.lock(), ""))(t)
	in.Shared = true
	in.From = t.TempDir()
	built(t, in.From, right)
	must.Do(t, in.Install(context.Background(), false))
	must.Do(t, filepath.WalkDir(in.Root, func(path string, entry os.DirEntry, err error) error {
		info, err := entry.Info()
		if want := os.FileMode(4); err == nil && info.Mode().Perm()&want == 0 && filepath.Base(path) != lockName {
			t.Errorf("%s has the mode %v", path, info.Mode())
		}
		return err
	}))

	private := fakeLibTorch(t, "2.11.0")
	must.Do(t, os.Chmod(filepath.Dir(private), 0o700))
	t.Setenv("LIBTORCH", private)
	if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), "other users cannot read") {
		t.Errorf("a private LibTorch for all users: %v", err)
	}
}

// Several installs at once do the work once.
func TestInstall_Together(t *testing.T) {
	t.Setenv("LIBTORCH", fakeLibTorch(t, "2.11.0"))
	whole := archive(t, right, files...)
	name := ArchiveName(library.Platform, "2.11.0")
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		w.Write(whole)
	}))
	t.Cleanup(server.Close)
	sums := sumLine(t, name, right)
	root := filepath.Join(t.TempDir(), "root")
	together.Run(4, func(int) {
		in := &Installer{Root: root, Lock: must.Get(ParseLock(newIndex(t).lock(), sums))(t), From: server.URL, Out: NewPrinter(&bytes.Buffer{})}
		must.Check(t, in.Install(context.Background(), false))
	})
	if wrong := wrongLibraries(filepath.Join(root, "lib", library.Key())); len(wrong) > 0 {
		t.Errorf("it is damaged: %v", wrong)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("four installs at once asked %d times, want once", n)
	}
}

// A root that cannot be written is an error that says what to do.
func TestInstall_Root(t *testing.T) {
	t.Setenv("LIBTORCH", fakeLibTorch(t, "2.11.0"))
	in, _ := installer(t, "")
	for root, text := range map[string]string{"/dev/null/root": "cannot be written", "relative": "is not an absolute path", "/proc/streamtorch": "-prefix"} {
		in.Root = root
		if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v, want an error with %q", root, err, text)
		}
	}
	in.Root = ""
	for _, name := range []string{"HOME", "XDG_CACHE_HOME", "STREAMTORCH_CACHE"} {
		t.Setenv(name, "")
	}
	if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), "HOME is not set") {
		t.Errorf("without HOME: %v", err)
	}
}

// Verify tells what is missing and what has changed, and Remove takes away what is installed alone.
func TestVerify_Remove(t *testing.T) {
	index := newIndex(t)
	setenv(t, append(index.env(), "LIBTORCH=", "PYTHON=/nonexistent", "STREAMTORCH_CUDA=0")...)
	in, said := installer(t, "")
	in.Lock = must.Get(ParseLock(index.lock(), ""))(t)
	in.From = t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(in.From, ArchiveName(library.Platform, "2.11.0")), archive(t, right, files...), 0o666))
	must.Do(t, os.WriteFile(filepath.Join(in.From, sumsFile), []byte(sumLine(t, ArchiveName(library.Platform, "2.11.0"), right)), 0o666))
	must.Do(t, in.Install(context.Background(), false))
	write(t, filepath.Join(in.Root, "mine"), "a file of the user")
	said.Reset()
	must.Do(t, in.List(said))
	for _, text := range []string{"* libraries", "for LibTorch 2.11.0", "LibTorch   "} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("list has no %q:\n%s", text, said)
		}
	}
	must.Do(t, in.Verify(context.Background(), said))
	tree := must.Get(filepath.Glob(filepath.Join(in.Root, "libtorch-*")))(t)[0]
	must.Do(t, os.Truncate(filepath.Join(tree, "torch/lib/libc10.so"), 100))
	must.Do(t, os.Remove(filepath.Join(in.Root, "lib", library.Key(), library.CoreFile)))
	said.Reset()
	if err := in.Verify(context.Background(), said); !errors.Is(err, ErrDamaged) {
		t.Errorf("verify of damaged files: %v", err)
	}
	for _, text := range []string{"torch/lib/libc10.so has changed", library.CoreFile + " is missing"} {
		if !strings.Contains(said.String(), text) {
			t.Errorf("verify does not say %q:\n%s", text, said)
		}
	}
	must.Do(t, in.Remove(context.Background(), said))
	if got := names(t, in.Root); got != "mine streamtorch.lock" {
		t.Errorf("remove left %s", got)
	}
	if err := in.Verify(context.Background(), said); err == nil || !strings.Contains(err.Error(), "nothing is installed in "+in.Root) {
		t.Errorf("verify of nothing: %v", err)
	}
}

// A folder of others is no root. Nothing in it is removed, and its mode stays.
func TestInstall_FoldersOfOthers(t *testing.T) {
	torch := fakeLibTorch(t, "2.11.0")
	t.Setenv("LIBTORCH", torch)
	for f := filepath.Dir(torch); f != os.TempDir(); f = filepath.Dir(f) {
		must.Do(t, os.Chmod(f, 0o755))
	}
	in, said := installer(t, "")
	in.Shared = true
	in.From = t.TempDir()
	built(t, in.From, right)
	theirs := []string{"bin/tool", "lib/x86_64-linux-gnu/libc.so.6", "cuda-12.4/bin/nvcc", "libtorch-2.9-mine/f", "wheels/x/f", "tmp/work-2026/thesis", "tmp/f.part"}
	for _, file := range theirs {
		write(t, filepath.Join(in.Root, file), "theirs")
	}
	must.Do(t, os.Chmod(in.Root, 0o700))
	still := func(what string) {
		t.Helper()
		for _, file := range theirs {
			if _, err := os.Stat(filepath.Join(in.Root, file)); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if info := must.Get(os.Stat(in.Root))(t); info.Mode().Perm() != 0o700 {
			t.Errorf("%s: the folder has the mode %v", what, info.Mode())
		}
	}
	if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), "holds other things (bin)") {
		t.Errorf("install into a folder of others: %v", err)
	}
	still("install")
	if err := in.Remove(context.Background(), said); err == nil || !strings.Contains(err.Error(), "nothing is installed") {
		t.Errorf("remove of a folder of others: %v", err)
	}
	still("remove")
	// In a root that is ours, what others have put there stays.
	write(t, filepath.Join(in.Root, lockName), "")
	must.Do(t, in.Install(context.Background(), false))
	must.Do(t, in.Remove(context.Background(), said))
	still("install and remove in a root")
}

// The loader alone does not take the place of all libraries.
func TestInstall_LoaderKeepsAll(t *testing.T) {
	t.Setenv("LIBTORCH", fakeLibTorch(t, "2.11.0"))
	in, _ := installer(t, "")
	in.Root = filepath.Join(t.TempDir(), "a root[1]") // no pattern
	in.From = filepath.Join(t.TempDir(), "lib[0]")
	built(t, in.From, right)
	must.Do(t, in.Install(context.Background(), false))
	before := names(t, filepath.Join(in.Root, "lib", library.Key()))
	must.Do(t, in.Install(context.Background(), true))
	if after := names(t, filepath.Join(in.Root, "lib", library.Key())); after != before || !strings.Contains(after, library.CoreFile) {
		t.Errorf("after -loader the folder has %s, and had %s", after, before)
	}
}

// A program that prints long lines, and one that never ends, hinder nobody.
func TestRun(t *testing.T) {
	in, _ := installer(t, "")
	err := in.run(context.Background(), "sh", "-c", "head -c 200000 /dev/zero | tr '\\0' x; echo; echo [1/2] one; echo the end; exit 3")
	if err == nil || !strings.Contains(err.Error(), "the end") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a program that fails: %.200v", err)
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), time.Second, errors.New("stopped"))
	defer stop()
	begin := time.Now()
	if err := in.run(ctx, "sh", "-c", "sleep 60 & sleep 60"); err == nil || err.Error() != "stopped" || time.Since(begin) > 20*time.Second {
		t.Errorf("a stopped program: %v after %v", err, time.Since(begin))
	}
}

// A release for another LibTorch than the one that is here does not help. The libraries are
// compiled then, with CUDA's headers, and what a killed process left is gone.
func TestInstall_NoReleaseForThisLibTorch(t *testing.T) {
	torch := fakeLibTorch(t, "2.11.0")
	pretendCUDA(torch, "13.0")
	index := newIndex(t)
	tools := t.TempDir()
	write(t, filepath.Join(tools, "cmake"), "#!/bin/sh\necho no compilation here\nexit 1\n")
	setenv(t, append(index.env(), "LIBTORCH="+torch, "STREAMTORCH_CUDA=0", "PATH="+tools+":"+os.Getenv("PATH"))...)
	in, _ := installer(t, "")
	in.Lock = must.Get(ParseLock(index.lock(), sumLine(t, ArchiveName(library.Platform, "2.9.1"), right)))(t)
	left := filepath.Join(in.Root, "tmp/streamtorch-1/half")
	write(t, left, "of a killed process")
	if err := in.Install(context.Background(), false); err == nil || !strings.Contains(err.Error(), "no compilation here") {
		t.Errorf("got %v, want the error of the compilation", err)
	}
	if got := index.downloads(); got["fixture-runtime"] != 1 {
		t.Errorf("downloads = %v, want CUDA's headers too", got)
	}
	if names := must.Get(filepath.Glob(filepath.Join(in.Root, "tmp/*")))(t); len(names) > 0 {
		t.Errorf("tmp has %v", names)
	}
}

// What is there is found on a machine without a compiler, too.
func TestInstall_ThereWithoutCompiler(t *testing.T) {
	t.Setenv("LIBTORCH", fakeLibTorch(t, "2.11.0"))
	in, said := installer(t, "")
	in.From = t.TempDir()
	built(t, in.From, right)
	must.Do(t, in.Install(context.Background(), false))
	in.From = ""
	t.Setenv("PATH", toolbox(t, "g++", "cmake"))
	must.Do(t, in.Install(context.Background(), false))
	if !strings.Contains(said.String(), "already") {
		t.Errorf("it said\n%s", said)
	}
}
