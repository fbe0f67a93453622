//go:build !windows

package install

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// newInstaller returns an installer with its own root, which asks an index of its own alone.
func newInstaller(t *testing.T) (*Installer, *index) {
	t.Helper()
	ix := newIndex(t)
	lock := must.Get(ParseLock(ix.lock(), ""))(t)
	return &Installer{Root: filepath.Join(t.TempDir(), "H[1]*"), Lock: lock, Arch: "amd64", Index: ix.server.URL + "/simple", Patience: time.Second, Out: NewPrinter(io.Discard)}, ix
}

// The headers of CUDA are downloaded for a compilation alone, also under the lock of the root.
func TestTorch_Headers(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	folder := fakeLibTorch(t, "2.11.0")
	pretendCUDA(folder, "13.0")
	for _, locked := range []bool{false, true} {
		in, ix := newInstaller(t)
		torch := must.Get(in.installed(ctx, folder, "a test"))(t)
		if got := ix.downloads(); len(got) != 0 || torch.Headers != "" {
			t.Errorf("before a compilation: it downloaded %v, headers %q", got, torch.Headers)
		}
		if locked {
			must.Do(t, in.locked(ctx, func(root string) error {
				work, remove, err := workFolder(root)
				must.Do(t, err)
				defer remove()
				must.Do(t, in.headers(ctx, root, torch))
				if !isFolder(work) {
					t.Error("the work folder of the caller is gone")
				}
				return nil
			}))
		} else {
			must.Do(t, in.headers(ctx, "", torch))
		}
		must.Do(t, in.headers(ctx, "", torch))
		if got, want := ix.downloads(), map[string]int{"fixture-runtime": 1}; !maps.Equal(got, want) {
			t.Errorf("downloads = %v, want %v", got, want)
		}
		if sizeOf(filepath.Join(torch.Headers, "cu13/include/cuda_runtime_api.h")) == 0 {
			t.Errorf("no header in %q", torch.Headers)
		}
	}
}

// A LibTorch of $LIBTORCH without CUDA is refused if the GPU is to be used.
func TestSetup_LIBTORCH_WithoutCUDA(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	folder := fakeLibTorch(t, "2.11.0")
	c.mustFail([]string{"LIBTORCH=" + folder, "STREAMTORCH_CUDA=1"}, "it was built without CUDA", "STREAMTORCH_CUDA is 1", "-cpu")
	pretendCUDA(folder, "13.0")
	must.Do(t, os.Remove(filepath.Join(folder, "lib/libtorch_cuda.so")))
	dependent(t, filepath.Join(folder, "lib"))
	must.Do(t, os.Rename(filepath.Join(folder, "lib/libtorch_cpu.so"), filepath.Join(folder, "lib/libtorch_cuda.so")))
	must.Do(t, os.Remove(filepath.Join(folder, "lib/libneeded.so")))
	write(t, filepath.Join(folder, "lib/libtorch_cpu.so"), sharedLibrary(t))
	c.mustFail([]string{"LIBTORCH=" + folder, "STREAMTORCH_CUDA=1"}, "it needs libneeded.so", "STREAMTORCH_CUDA is 1", "-cpu")
}

// The torch of a Python is found by the Python's own paths, whatever its start-up prints or leaves
// running. A folder torch of the current folder is not one.
func TestSetup_PythonTorch_StartUp(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	must.Do(t, os.CopyFS(filepath.Join(c.root, "torch"), os.DirFS(fakeLibTorch(t, "2.11.0"))))
	write(t, filepath.Join(c.root, "torch/__init__.py"), "")
	c.mustSetup()
	if got := c.libtorch(); !strings.HasPrefix(got, c.cache) {
		t.Errorf("LIBTORCH_LIB = %s, want a folder of the cache", got)
	}

	site := t.TempDir()
	must.Do(t, os.CopyFS(filepath.Join(site, "torch"), os.DirFS(fakeLibTorch(t, "2.11.0"))))
	write(t, filepath.Join(site, "torch/__init__.py"), "")
	write(t, filepath.Join(site, "sitecustomize.py"), "import subprocess\nprint('good morning')\nsubprocess.Popen(['sleep', '60'])\n")
	begin := time.Now()
	c = c.second()
	c.mustSetup("PYTHONPATH=" + site)
	if got, want := c.libtorch(), filepath.Join(site, "torch/lib"); got != want {
		t.Errorf("LIBTORCH_LIB = %s, want %s", got, want)
	}
	if took := time.Since(begin); took > 50*time.Second {
		t.Errorf("the set-up took %v: it waited for a process that Python left behind", took)
	}
}

// A LibTorch behind a link is readable by all users only if the folders that the link leads through
// are.
func TestReadableByAll(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	for f := base; f != os.TempDir() && f != "/"; f = filepath.Dir(f) {
		must.Do(t, os.Chmod(f, 0o755))
	}
	write(t, filepath.Join(base, "home/torch/lib/a.so"), "a library")
	must.Do(t, os.MkdirAll(filepath.Join(base, "opt"), 0o755))
	link := filepath.Join(base, "opt/torch")
	must.Do(t, os.Symlink(filepath.Join(base, "home/torch"), link))
	if err := readableByAll(link); err != nil {
		t.Error(err)
	}
	must.Do(t, os.Chmod(filepath.Join(base, "home"), 0o700))
	if err := readableByAll(link); err == nil || !strings.Contains(err.Error(), "other users cannot read "+filepath.Join(base, "home")) {
		t.Errorf("a link into a private home: %v", err)
	}
}
