//go:build !windows

package install

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// clone is a folder with a csrc and a build, on a machine with its own cache and its own package
// index. The program of the tests stands for the program setup: only its lock is another one.
type clone struct {
	t     *testing.T
	root  string
	cache string
	lock  string   // the text of its wheels.lock
	env   []string // added after the environment of the test
	index *index
}

// lockVariable names the lock of a process that is to be the program setup.
const lockVariable = "INSTALL_TEST_LOCK"

func TestMain(m *testing.M) {
	path := os.Getenv(lockVariable)
	if path == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	text, err := os.ReadFile(path)
	var lock *Lock
	if err == nil {
		lock, err = ParseLock(string(text), "")
	}
	if err == nil {
		err = Prepare(ctx, lock, os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "streamtorch:", err)
		os.Exit(1)
	}
}

func newClone(t *testing.T) *clone {
	t.Helper()
	c := &clone{t: t, cache: filepath.Join(t.TempDir(), "cache"), index: newIndex(t)}
	c.lock = c.index.lock()
	c.root = newRoot(t)
	// The folder `empty` has a folder `torch` that is not LibTorch. Python finds this folder first,
	// so that an installed torch is never found.
	empty := t.TempDir()
	write(t, filepath.Join(empty, "torch/__init__.py"), "")
	c.env = append(c.index.env(), "STREAMTORCH_CACHE="+c.cache, "STREAMTORCH_CUDA=0", "LIBTORCH=", "LIBTORCH_VERSION=", "PYTHON=", "VIRTUAL_ENV=", "CONDA_PREFIX=",
		"PYTHONPATH="+empty)
	return c
}

// second returns another clone on the same machine, with the same cache and index.
func (c *clone) second() *clone {
	other := *c
	other.root = newRoot(c.t)
	return &other
}

func newRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	write(t, filepath.Join(root, "csrc/CMakeLists.txt"), "# nothing")
	write(t, filepath.Join(root, "internal/library/source_gen.go"), "")
	return root
}

// command returns the command that sets the clone up, in its own process group.
func (c *clone) command(env ...string) *exec.Cmd {
	lock := filepath.Join(c.t.TempDir(), "wheels.lock") // several commands may run at a time
	write(c.t, lock, c.lock)
	cmd := exec.Command(must.Get(os.Executable())(c.t), "build")
	cmd.Dir = c.root
	cmd.Env = append(append(append(os.Environ(), c.env...), env...), lockVariable+"="+lock)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// setup sets the clone up and returns what was printed.
func (c *clone) setup(env ...string) (string, error) {
	out, err := c.command(env...).CombinedOutput()
	return string(out), err
}

func (c *clone) mustSetup(env ...string) string {
	c.t.Helper()
	out, err := c.setup(env...)
	if err != nil {
		c.t.Fatalf("setup: %v\n%s", err, out)
	}
	return out
}

// mustFail checks that the set-up fails. The last line of the output must hold each of the words.
func (c *clone) mustFail(env []string, words ...string) {
	c.t.Helper()
	out, err := c.setup(env...)
	if err == nil {
		c.t.Fatalf("the set-up succeeded, want it to fail\n%s", out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "streamtorch: ") {
		c.t.Errorf("the last line does not begin with \"streamtorch: \": %q", last)
	}
	for _, word := range words {
		if !strings.Contains(last, word) {
			c.t.Errorf("the last line does not say %q:\n%s", word, out)
		}
	}
	if _, err := os.Stat(filepath.Join(c.root, "build/setup.build")); err == nil {
		c.t.Error("the set-up failed and left its stamp")
	}
}

// libtorch returns the folder lib that the set-up has chosen.
func (c *clone) libtorch() string {
	c.t.Helper()
	return c.set("LIBTORCH_LIB")
}

// set returns what build/libtorch.cmake sets the variable `name` to.
func (c *clone) set(name string) string {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.root, "build/libtorch.cmake"))
	if err != nil {
		c.t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "set("+name+` "`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

// index is a server that serves wheels as PyPI does.
type index struct {
	server *httptest.Server
	wheels []served

	mu       sync.Mutex
	requests map[string]int
	stall    string        // the wheel whose second half the server does not send
	stalled  chan struct{} // closed when the first half of that wheel has been sent
	left     chan struct{} // closed when the client that waits for that wheel is gone
}

type served struct {
	set, name, version, platform string
	data                         []byte
}

func newIndex(t *testing.T) *index {
	t.Helper()
	library := sharedLibrary(t)
	version := "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 11\n#define TORCH_VERSION_PATCH 0\n"
	older := "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n"
	ix := &index{requests: map[string]int{}, stalled: make(chan struct{}), left: make(chan struct{})}
	platform := "manylinux2014_x86_64"
	add := func(set, name, version string, files map[string]string) {
		ix.wheels = append(ix.wheels, served{set, name, version, platform, wheelFile(t, name, version, platform, files)})
	}
	defaults := func(machine string) {
		add("runtime", "fixture-runtime"+machine, "13.0.96", map[string]string{
			"nvidia/cu13/include/cuda_runtime_api.h": "//", "nvidia/cu13/lib/libcudart.so.13": library})
		add("torch", "fixture-torch"+machine, "2.11.0", map[string]string{
			"torch/lib/libtorch_cpu.so": library, "torch/lib/libc10.so": library, "torch/nn/functional.py": "pass",
			"torch/include/torch/headeronly/version.h": version, "torch/include/ATen/core/dispatch/Dispatcher.h": "//"})
	}
	defaults("")
	add("runtime12", "fixture-runtime12", "12.8.90", map[string]string{
		"nvidia/cuda_runtime/include/cuda_runtime_api.h": "//", "nvidia/cuda_runtime/lib/libcudart.so.12": library,
		"nvidia/cuda_cupti/include/cupti.h": "//", "nvidia/cuda_cupti/lib/libcupti.so.12": library})
	add("torch2.9.1", "fixture-older-torch", "2.9.1", map[string]string{
		"torch/lib/libtorch_cpu.so": library, "torch/lib/libc10.so": library,
		"torch/include/torch/headeronly/version.h": older, "torch/include/ATen/core/dispatch/Dispatcher.h": "//"})
	add("cuda", "fixture-cudnn", "9.0", map[string]string{"nvidia/cudnn/lib/libcudnn.so.9": library})
	platform = "manylinux2014_aarch64"
	defaults("-arm64")
	ix.server = httptest.NewServer(http.HandlerFunc(ix.serve))
	t.Cleanup(ix.server.Close)
	return ix
}

func (w served) file() string {
	return strings.ReplaceAll(w.name, "-", "_") + "-" + w.version + "-py3-none-" + w.platform + ".whl"
}

func (ix *index) lock() string {
	var lock strings.Builder
	for _, w := range ix.wheels {
		fmt.Fprintf(&lock, "%s %s %s %s %d %d %x\n", w.set, w.name, w.version, w.platform, len(w.data), 4*len(w.data), sha256.Sum256(w.data))
	}
	return lock.String() + lockedVersions
}

// lockedVersions are the versions of LibTorch that the wheels.lock of the tests lists.
const lockedVersions = "version 2.9.1 12.8 runtime12 torch2.9.1\nversion 2.11.0 13.0 runtime torch cuda\n"

// env returns the environment in which only this index is asked.
func (ix *index) env() []string {
	return []string{"PIP_CONFIG_FILE=/dev/null", "PIP_INDEX_URL=" + ix.server.URL + "/simple", "PIP_EXTRA_INDEX_URL=", "PIP_CERT=",
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1"}
}

func (ix *index) serve(w http.ResponseWriter, r *http.Request) {
	for _, wheel := range ix.wheels {
		switch strings.Trim(r.URL.Path, "/") {
		case path.Join("simple", wheel.name):
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<a href="/files/%s#sha256=%x">%s</a>`, wheel.file(), sha256.Sum256(wheel.data), wheel.file())
			return
		case path.Join("files", wheel.file()):
			ix.mu.Lock()
			ix.requests[wheel.name]++
			stall := ix.stall == wheel.name
			ix.mu.Unlock()
			if stall {
				w.Header().Set("Content-Length", fmt.Sprint(len(wheel.data)))
				w.Write(wheel.data[:len(wheel.data)/2])
				w.(http.Flusher).Flush()
				close(ix.stalled)
				<-r.Context().Done()
				close(ix.left)
				return
			}
			http.ServeContent(w, r, wheel.file(), time.Time{}, bytes.NewReader(wheel.data))
			return
		}
	}
	http.NotFound(w, r)
}

// stallAt makes the index send only the first half of the wheel `name`. An empty name ends the
// stall.
func (ix *index) stallAt(name string) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.stall = name
}

// downloads returns how often each wheel was requested.
func (ix *index) downloads() map[string]int {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	counts := map[string]int{}
	for name, n := range ix.requests {
		counts[name] = n
	}
	return counts
}

// wheelFile returns a wheel of these files.
func wheelFile(t *testing.T, name, version, platform string, files map[string]string) []byte {
	t.Helper()
	info := strings.ReplaceAll(name, "-", "_") + "-" + version + ".dist-info/"
	files[info+"METADATA"] = "Metadata-Version: 2.1\nName: " + name + "\nVersion: " + version + "\n"
	files[info+"WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-" + platform + "\n"
	record := ""
	for file, text := range files {
		sum := sha256.Sum256([]byte(text))
		record += file + ",sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + "," + fmt.Sprint(len(text)) + "\n"
	}
	files[info+"RECORD"] = record + info + "RECORD,,\n"
	var buffer bytes.Buffer
	archive := zip.NewWriter(&buffer)
	for file, text := range files {
		w, err := archive.Create(file)
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		must.Do(t, err)
	}
	must.Do(t, archive.Close())
	return buffer.Bytes()
}

// sharedLibrary returns a real shared library, which ldd accepts.
func sharedLibrary(t *testing.T) string {
	t.Helper()
	text := must.Get(compiledLibrary())(t)
	return string(text)
}

var compiledLibrary = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "library")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "lib.so")
	out, err := exec.Command("gcc", "-shared", "-o", file, "-x", "c", "/dev/null", "-Wl,--no-as-needed", "-lm").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return os.ReadFile(file)
})

func write(t *testing.T, file, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(file), 0o777)
	if err == nil {
		err = os.WriteFile(file, []byte(text), 0o777)
	}
	must.Do(t, err)
}
