//go:build !windows

package install

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/together"
)

func TestSetup_Wheels(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	out := c.mustSetup()
	if !strings.Contains(out, "fixture-torch 2.11.0: 1 MB, checked") {
		t.Errorf("no progress shown:\n%s", out)
	}
	if lib := c.libtorch(); !strings.HasPrefix(lib, c.cache+"/libtorch-2.11.0-cpu-") {
		t.Errorf("LIBTORCH_LIB = %s, want a folder of the cache %s", lib, c.cache)
	}
	for _, file := range []string{"lib/libtorch_cpu.so", "include/torch/headeronly/version.h", "../nvidia/cu13/lib/libcudart.so.13"} {
		if _, err := os.Stat(filepath.Join(c.libtorch(), "..", file)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(c.libtorch(), "../nn")); err == nil {
		t.Error("torch's Python files were unpacked")
	}
	if got, want := c.index.downloads(), map[string]int{"fixture-runtime": 1, "fixture-torch": 1}; !maps.Equal(got, want) {
		t.Errorf("downloads = %v, want %v", got, want)
	}
	if left, err := filepath.Glob(c.cache + "/tmp/*"); err != nil || len(left) != 0 {
		t.Errorf("left in the cache: %v, %v", left, err)
	}

	// A second set-up has nothing to do. It runs no Python and prints nothing.
	if out := c.mustSetup("PYTHON=/nonexistent", "PIP_INDEX_URL=http://127.0.0.1:1"); out != "" {
		t.Errorf("the second set-up said %q, want nothing", out)
	}
	// The set-up of another clone downloads nothing.
	other := c.second()
	other.mustSetup("PIP_INDEX_URL=http://127.0.0.1:1")
	if got, want := other.libtorch(), c.libtorch(); got != want {
		t.Errorf("the second clone has %s, want %s", got, want)
	}
	// After a driver appears, files that are already there are not downloaded again.
	c.mustSetup("STREAMTORCH_CUDA=1")
	if _, err := os.Stat(filepath.Join(c.libtorch(), "../../nvidia/cudnn/lib/libcudnn.so.9")); err != nil {
		t.Error(err)
	}
	if got, want := c.index.downloads(), map[string]int{"fixture-runtime": 1, "fixture-torch": 1, "fixture-cudnn": 1}; !maps.Equal(got, want) {
		t.Errorf("downloads = %v, want %v", got, want)
	}
	// The set-up restores a part of the cache that was deleted, and then the whole cache.
	for _, deleted := range []string{filepath.Join(c.libtorch(), "libtorch_cpu.so"), c.cache} {
		must.Do(t, os.RemoveAll(deleted))
		c.mustSetup("STREAMTORCH_CUDA=1")
		if _, err := os.Stat(filepath.Join(c.libtorch(), "libtorch_cpu.so")); err != nil {
			t.Errorf("after %s was deleted: %v", deleted, err)
		}
	}
}

func TestSetup_Interrupted(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(signal.String(), func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			c.index.stallAt("fixture-torch")
			cmd := c.command()
			must.Do(t, cmd.Start())
			select {
			case <-c.index.stalled:
			case <-time.After(time.Minute):
				t.Error("the download did not begin")
			}
			victims := -cmd.Process.Pid // the process group gets the signal, as after Ctrl-C or when a terminal is closed
			if signal == syscall.SIGTERM {
				victims = cmd.Process.Pid // only the program gets the signal
			}
			must.Check(t, syscall.Kill(victims, signal))
			if err := cmd.Wait(); err == nil {
				t.Error("the killed set-up succeeded")
			}
			select {
			case <-c.index.left:
			case <-time.After(20 * time.Second):
				t.Error("the set-up is gone and its download goes on")
			}
			if trees, err := filepath.Glob(c.cache + "/libtorch-*"); err != nil || len(trees) != 0 {
				t.Errorf("an interrupted download left %v, %v", trees, err)
			}
			// What came stays, and the next set-up goes on behind it: TestFetch_Stopped.
			for _, left := range must.Get(filepath.Glob(c.cache + "/tmp/*"))(t) {
				if !strings.HasSuffix(left, ".part") && signal == syscall.SIGTERM {
					t.Errorf("left in the cache: %s", left)
				}
			}

			c.index.stallAt("")
			c.mustSetup()
			if got, want := c.index.downloads(), map[string]int{"fixture-runtime": 1, "fixture-torch": 2}; !maps.Equal(got, want) {
				t.Errorf("downloads = %v, want %v: what was whole must not be downloaded again", got, want)
			}
			if left, err := filepath.Glob(c.cache + "/tmp/*"); err != nil || len(left) != 0 {
				t.Errorf("left in the cache: %v, %v", left, err)
			}
		})
	}
}

func TestSetup_TwoAtOnce(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	clones := []*clone{c, c, c.second()}
	together.Run(len(clones), func(i int) {
		if out, err := clones[i].setup(); err != nil {
			t.Errorf("setup: %v\n%s", err, out)
		}
	})
	if got, want := c.index.downloads(), map[string]int{"fixture-runtime": 1, "fixture-torch": 1}; !maps.Equal(got, want) {
		t.Errorf("downloads = %v, want %v", got, want)
	}
}

func TestSetup_DownloadFails(t *testing.T) {
	t.Parallel()
	const first = "fixture-runtime 13.0.96"
	for _, test := range []struct {
		name  string
		lock  func(string) string // nil means that wheels.lock is unchanged
		env   []string
		words []string
	}{
		{"no network", nil, []string{"PIP_INDEX_URL=http://127.0.0.1:1/simple"}, []string{first, "cannot be reached", "LIBTORCH"}},
		{"other file", flipHash, nil, []string{first, "not the file that wheels.lock names"}},
		{"not in the index", func(lock string) string { return strings.Replace(lock, " fixture-runtime ", " fixture-absent ", 1) }, nil,
			[]string{"fixture-absent 13.0.96", "does not have it"}},
		{"disk too small", func(lock string) string {
			return strings.Replace(lock, " manylinux2014_x86_64 ", " manylinux2014_x86_64 100000000000", 1)
		}, nil,
			[]string{"MB free, and ", "MB are needed", "STREAMTORCH_CACHE"}},
		{"cache is no folder", nil, []string{"STREAMTORCH_CACHE=/dev/null/cache"}, []string{"/dev/null/cache cannot be written", "STREAMTORCH_CACHE"}},
		{"cache is relative", nil, []string{"STREAMTORCH_CACHE=cache"}, []string{"the cache cache is not an absolute path"}},
		{"bad switch", nil, []string{"STREAMTORCH_CUDA=yes"}, []string{"STREAMTORCH_CUDA is \"yes\"; it must be 0, 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			if test.lock != nil {
				c.lock = test.lock(c.index.lock())
			}
			c.mustFail(test.env, test.words...)
			if trees, err := filepath.Glob(c.cache + "/libtorch-*"); err != nil || len(trees) != 0 {
				t.Errorf("a failed download left %v, %v", trees, err)
			}
		})
	}
}

// flipHash changes the last digit of the first hash.
func flipHash(lock string) string {
	end := strings.Index(lock, "\n") - 1
	digit := "0"
	if lock[end] == '0' {
		digit = "1"
	}
	return lock[:end] + digit + lock[end+1:]
}

// A disk that becomes full during the set-up gives an error. wheels.lock says that the wheel is
// small, so the set-up begins.
func TestSetup_DiskFills(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", t.TempDir()).CombinedOutput(); err != nil {
		t.Skipf("no tmpfs can be mounted here: %s", out)
	}
	noise := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{}).Read(noise)
	for name, content := range map[string]string{
		"while downloading": string(noise),
		"while unpacking":   strings.Repeat("0123456789", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			first := &c.index.wheels[0]
			first.data = wheelFile(t, first.name, first.version, first.platform, map[string]string{"nvidia/cu13/include/big.h": content})
			locked, others, _ := strings.Cut(c.index.lock(), "\n")
			line := strings.Fields(locked)
			line[4], line[5] = "0", "1" // a size of 0 is one that is not known
			c.lock = strings.Join(line, " ") + "\n" + others
			must.Do(t, os.MkdirAll(c.cache, 0o777))
			cmd := exec.Command("unshare", "-rm", "sh", "-c", `mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" build`, "sh",
				c.cache, must.Get(os.Executable())(t))
			like := c.command()
			cmd.Dir, cmd.Env = like.Dir, like.Env
			out, err := cmd.CombinedOutput()
			if err == nil || !strings.Contains(string(out), "is full; free some") {
				t.Errorf("the set-up on a full disk: %v\n%s", err, out)
			}
		})
	}
}

// fakeLibTorch makes the files that the set-up reads, for the given version of LibTorch.
func fakeLibTorch(t *testing.T, version string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "torch")
	library := sharedLibrary(t)
	write(t, dir+"/lib/libtorch_cpu.so", library)
	write(t, dir+"/lib/libc10.so", library)
	write(t, dir+"/include/ATen/core/dispatch/Dispatcher.h", "//")
	numbers := strings.Split(version, ".")
	write(t, dir+"/include/torch/headeronly/version.h", fmt.Sprintf(
		"#define TORCH_VERSION_MAJOR %s\n#define TORCH_VERSION_MINOR %s\n#define TORCH_VERSION_PATCH %s\n", numbers[0], numbers[1], numbers[2]))
	return dir
}

func TestSetup_LIBTORCH(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	dir := fakeLibTorch(t, "2.11.0")
	for _, libtorch := range []string{dir, filepath.Dir(dir)} {
		c.mustSetup("LIBTORCH="+libtorch, "PIP_INDEX_URL=http://127.0.0.1:1/simple")
		if got, want := c.libtorch(), dir+"/lib"; got != want {
			t.Errorf("LIBTORCH=%s: LIBTORCH_LIB = %s, want %s", libtorch, got, want)
		}
	}
	// After LIBTORCH is unset, its folder is not used any more.
	c.mustSetup()
	if got := c.libtorch(); !strings.HasPrefix(got, c.cache) {
		t.Errorf("LIBTORCH unset: LIBTORCH_LIB = %s, want a folder of the cache", got)
	}
}

func TestSetup_LIBTORCH_Wrong(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		spoil func(dir string) string // changes the files and returns the value of LIBTORCH
		want  string
	}{
		{"not there", func(dir string) string { return dir + "x" }, "is not a folder"},
		{"relative", func(dir string) string { return "torch" }, "is not an absolute path"},
		{"something else", func(dir string) string { return "/usr" }, "so it is not LibTorch;"},
		{"without libraries", func(dir string) string { os.Remove(dir + "/lib/libtorch_cpu.so"); return dir }, "lib/libtorch_cpu.so is missing"},
		{"without headers", func(dir string) string { os.RemoveAll(dir + "/include/ATen"); return dir }, "Dispatcher.h is missing"},
		{"truncated", func(dir string) string { os.Truncate(dir+"/lib/libtorch_cpu.so", 8000); return dir }, "lib/libtorch_cpu.so is damaged"},
		{"other CUDA", func(dir string) string { pretendCUDA(dir, "11.8"); return dir }, "it was built for CUDA 11.8, and CUDA 12 or 13 is needed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			libtorch := test.spoil(fakeLibTorch(t, "2.11.0"))
			c.mustFail([]string{"LIBTORCH=" + libtorch}, "LIBTORCH="+libtorch, test.want)
		})
	}
	t.Run("version", func(t *testing.T) {
		t.Parallel()
		dir := fakeLibTorch(t, "2.8.0")
		newClone(t).mustFail([]string{"LIBTORCH=" + dir}, "it is LibTorch 2.8.0, and the library builds with 2.9.1 2.11.0", "unset it")
	})
}

func pretendCUDA(dir, version string) {
	os.Link(dir+"/lib/libtorch_cpu.so", dir+"/lib/libtorch_cuda.so")
	os.WriteFile(dir+"/version.py", []byte("cuda: Optional[str] = '"+version+"'\n"), 0o666)
}

// LIBTORCH_VERSION chooses one of the versions of wheels.lock. Without it, a LibTorch that is there
// may be of any of their releases.
func TestSetup_LIBTORCH_VERSION(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	older := "LIBTORCH_VERSION=2.9.1"
	c.mustSetup(older)
	if got := c.libtorch(); !strings.HasPrefix(got, c.cache+"/libtorch-2.9.1-cpu-") {
		t.Errorf("%s: LIBTORCH_LIB = %s, want a folder of the cache %s", older, got, c.cache)
	}
	// The wheels of CUDA 12 have a folder each.
	nvidia := filepath.Join(c.libtorch(), "../../nvidia")
	for name, want := range map[string]string{
		"CUDA_INCLUDE": nvidia + "/cuda_cupti/include;" + nvidia + "/cuda_runtime/include",
		"CUDA_LIB":     nvidia + "/cuda_cupti/lib;" + nvidia + "/cuda_runtime/lib",
	} {
		if got := c.set(name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
	c.mustSetup()
	if got := c.libtorch(); !strings.HasPrefix(got, c.cache+"/libtorch-2.11.0-cpu-") {
		t.Errorf("LIBTORCH_VERSION unset: LIBTORCH_LIB = %s, want that of 2.11.0", got)
	}
	// The set-up of another folder leaves this one as it is.
	cmd := c.command(older)
	cmd.Args = append(cmd.Args, "build/versions/2.9.1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("setup build build/versions/2.9.1: %v\n%s", err, out)
	}
	if text, err := os.ReadFile(filepath.Join(c.root, "build/versions/2.9.1/libtorch.cmake")); err != nil || !strings.Contains(string(text), "/libtorch-2.9.1-cpu-") {
		t.Errorf("build/versions/2.9.1/libtorch.cmake: %v\n%s", err, text)
	}
	if got := c.libtorch(); !strings.HasPrefix(got, c.cache+"/libtorch-2.11.0-cpu-") {
		t.Errorf("after the set-up of another folder: LIBTORCH_LIB = %s, want that of 2.11.0", got)
	}

	// A LibTorch that is there, of a listed release and for another CUDA of a listed major version.
	dir := fakeLibTorch(t, "2.9.0")
	pretendCUDA(dir, "12.6")
	c.mustSetup("LIBTORCH=" + dir)
	if got, want := c.libtorch(), dir+"/lib"; got != want {
		t.Errorf("LIBTORCH=%s: LIBTORCH_LIB = %s, want %s", dir, got, want)
	}
	if got := c.set("CUDA_INCLUDE"); !strings.HasSuffix(got, "/nvidia/cuda_runtime/include") {
		t.Errorf("a LibTorch for CUDA 12.6: CUDA_INCLUDE = %s, want the headers of CUDA 12.8", got)
	}
	// Its CUDA libraries lie beside it.
	write(t, filepath.Join(dir, "../nvidia/cu13/lib/libnvrtc.so.13"), "")
	c.mustSetup("LIBTORCH="+dir, "CXX=g++")
	if got, want := c.set("CUDA_LIB"), filepath.Dir(dir)+"/nvidia/cu13/lib"; got != want {
		t.Errorf("CUDA_LIB = %s, want %s", got, want)
	}

	os.Remove(filepath.Join(c.root, "build/setup.build"))
	c.mustFail([]string{"LIBTORCH_VERSION=2.16.0"}, "LibTorch 2.16.0 is not a version", "these are: 2.9.1 2.11.0")
	c.mustFail([]string{older, "LIBTORCH=" + dir}, "it is LibTorch 2.9.0, and 2.9.1 is needed")
	c.mustFail([]string{older, "STREAMTORCH_CUDA=1"}, "the CUDA libraries of LibTorch 2.9.1 are not in wheels.lock", "pip install torch==2.9.1")
}

func TestSetup_PythonTorch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		version string
		cuda    string // the value of STREAMTORCH_CUDA
		used    bool
		says    string
	}{
		{"2.11.0", "0", true, ""},
		{"2.9.0", "0", true, ""},
		{"2.10.0", "0", false, "it is LibTorch 2.10.0, and the library builds with 2.9.1 2.11.0"},
		{"2.11.0", "1", false, "it was built without CUDA"},
	} {
		t.Run(test.version+" cuda="+test.cuda, func(t *testing.T) {
			t.Parallel()
			c := newClone(t)
			dir := fakeLibTorch(t, test.version)
			write(t, dir+"/__init__.py", "raise Exception('imported')")
			out := c.mustSetup("PYTHONPATH="+filepath.Dir(dir), "STREAMTORCH_CUDA="+test.cuda)
			if got := c.libtorch() == dir+"/lib"; got != test.used {
				t.Errorf("used = %v, want %v\n%s", got, test.used, out)
			}
			if !strings.Contains(out, test.says) {
				t.Errorf("the set-up did not say %q:\n%s", test.says, out)
			}
		})
	}
}

// The set-up finds the torch of a Python in each place where users install it. The python3 of the
// PATH has a usable torch only where the test is about that.
func TestSetup_PythonTorch_Places(t *testing.T) {
	t.Parallel()
	// install makes a torch in the folder site, which Python imports from, and returns its folder.
	install := func(t *testing.T, site, version string) string {
		dir := filepath.Join(site, "torch")
		must.Do(t, os.CopyFS(dir, os.DirFS(fakeLibTorch(t, version))))
		write(t, dir+"/__init__.py", "raise Exception('imported')")
		return dir
	}
	// python makes an interpreter that imports from the folder site, which may be empty.
	python := func(t *testing.T, file, site string) {
		write(t, file, "#!/bin/sh\nPYTHONPATH='"+site+"' exec python3 \"$@\"\n")
	}
	run := func(t *testing.T, c *clone, want string, env ...string) {
		t.Helper()
		out := c.mustSetup(append(env, "PIP_INDEX_URL=http://127.0.0.1:1/simple")...)
		if got := c.libtorch(); got != want+"/lib" {
			t.Errorf("LIBTORCH_LIB = %s, want %s/lib\n%s", got, want, out)
		}
	}
	for minor := 10; minor <= 11; minor++ { // "the first usable one" has the others
		name := fmt.Sprintf("python3.%d", minor)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			prefix := t.TempDir()
			site := filepath.Join(prefix, "lib", name, "site-packages")
			python(t, filepath.Join(prefix, "bin", name), site)
			run(t, newClone(t), install(t, site, "2.11.0"), "PATH="+prefix+"/bin:"+os.Getenv("PATH"))
		})
	}
	t.Run("the first usable one", func(t *testing.T) {
		t.Parallel()
		prefix := t.TempDir()
		for name, version := range map[string]string{"python3.14": "2.8.0", "python3.12": "2.11.0", "python3.10": "2.9.1"} {
			site := filepath.Join(prefix, "lib", name, "site-packages")
			python(t, filepath.Join(prefix, "bin", name), site)
			install(t, site, version)
		}
		write(t, prefix+"/bin/python3.13", "#!/bin/sh\necho 'python3.13: command not found' >&2\nexit 127\n") // as pyenv's
		c, path := newClone(t), "PATH="+prefix+"/bin:"+os.Getenv("PATH")
		run(t, c, prefix+"/lib/python3.12/site-packages/torch", path)
		run(t, c, prefix+"/lib/python3.10/site-packages/torch", path, "PYTHON=python3.10")
	})
	t.Run("venv", func(t *testing.T) {
		t.Parallel()
		dir := venv(t)
		sites, err := filepath.Glob(dir + "/lib/python3.*/site-packages")
		if err != nil || len(sites) != 1 {
			t.Fatalf("site-packages of a venv: %v, %v", sites, err)
		}
		torch := install(t, sites[0], "2.11.0")
		run(t, newClone(t), torch, "PYTHONPATH=", "PATH="+dir+"/bin:"+os.Getenv("PATH"))
		run(t, newClone(t), torch, "PYTHONPATH=", "VIRTUAL_ENV="+dir) // another python3 is before it on the PATH
	})
	t.Run("user site", func(t *testing.T) {
		t.Parallel()
		base := "PYTHONUSERBASE=" + t.TempDir()
		cmd := exec.Command("python3", "-m", "site", "--user-site")
		cmd.Env = append(os.Environ(), base)
		site, _ := cmd.Output() // its exit code says that the folder is not there yet
		run(t, newClone(t), install(t, strings.TrimSpace(string(site)), "2.11.0"), "PYTHONPATH=", base)
	})
	// In a conda environment, LibTorch is in lib and include of the environment. The folder of
	// torch has links to it. The other libraries of the environment lie only in lib.
	t.Run("conda", func(t *testing.T) {
		t.Parallel()
		prefix := t.TempDir()
		torch := install(t, filepath.Join(prefix, "lib/python3.13/site-packages"), "2.11.0")
		dependent(t, prefix+"/lib")
		for _, link := range []string{"lib/libtorch_cpu.so", "lib/libc10.so", "include"} {
			if link != "lib/libtorch_cpu.so" {
				must.Do(t, os.Rename(filepath.Join(torch, link), filepath.Join(prefix, link)))
			}
			os.Remove(filepath.Join(torch, link))
			must.Do(t, os.Symlink(filepath.Join(prefix, link), filepath.Join(torch, link)))
		}
		python(t, prefix+"/bin/python3", filepath.Dir(torch))
		run(t, newClone(t), prefix, "CONDA_PREFIX="+prefix)

		// Without that library this torch cannot be used.
		must.Do(t, os.Remove(prefix+"/lib/libneeded.so"))
		c := newClone(t)
		out := c.mustSetup("CONDA_PREFIX=" + prefix)
		if got := c.libtorch(); !strings.HasPrefix(got, c.cache) || !strings.Contains(out, "it needs libneeded.so, not found on this machine") {
			t.Errorf("LIBTORCH_LIB = %s, want a folder of the cache\n%s", got, out)
		}
	})
}

// venv makes a virtual environment without pip.
func venv(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("python3", "-m", "venv", "--without-pip", dir).CombinedOutput(); err != nil {
		t.Fatalf("python3 -m venv: %v\n%s", err, out)
	}
	return dir
}

// dependent makes dir/libtorch_cpu.so, which needs dir/libneeded.so and looks for it beside itself.
func dependent(t *testing.T, dir string) {
	t.Helper()
	for _, args := range [][]string{{"libneeded.so", "-Wl,-soname,libneeded.so"}, {"libtorch_cpu.so", "-L" + dir, "-lneeded", "-Wl,-rpath,$ORIGIN"}} {
		args = append([]string{"-shared", "-x", "c", "/dev/null", "-Wl,--no-as-needed", "-o", filepath.Join(dir, args[0])}, args[1:]...)
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
}

// toolbox returns a folder with all programs that the set-up runs, except those in `without`.
func toolbox(t *testing.T, without ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, tool := range []string{"bash", "uname", "dirname", "id", "mkdir", "cat", "cmp", "rm", "mv", "flock", "grep", "sed", "awk", "sha256sum", "cut",
		"head", "tail", "paste", "ldd", "ldconfig", "readelf", "env", "python3", "g++", "gcc", "cmake", "make", "go"} {
		if path, err := exec.LookPath(tool); err == nil {
			os.Symlink(path, filepath.Join(dir, tool))
		}
	}
	for _, tool := range without {
		os.Remove(filepath.Join(dir, tool))
	}
	return dir
}

func TestSetup_MissingTool(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		without string
		words   []string
	}{
		{"g++", []string{"missing: g++", "apt-get install g++"}},
		{"cmake", []string{"missing: cmake", "apt-get install cmake"}},
	} {
		t.Run(test.without, func(t *testing.T) {
			t.Parallel()
			newClone(t).mustFail([]string{"PATH=" + toolbox(t, test.without)}, test.words...)
		})
	}
	for _, test := range []struct{ tool, says, want string }{
		{"g++", "9.4.0", "g++ is version 9.4.0"},
	} {
		t.Run(test.tool+" "+test.says, func(t *testing.T) {
			t.Parallel()
			tools := toolbox(t, test.tool)
			write(t, filepath.Join(tools, test.tool), "#!/bin/sh\necho "+test.says+"\n")
			newClone(t).mustFail([]string{"PATH=" + tools}, test.want)
		})
	}
}

// On a machine without apt-get, the set-up names the missing packages. With apt-get it installs
// them, but no test tries that.
func TestSetup_MissingPackages(t *testing.T) {
	t.Parallel()
	tools := toolbox(t, "g++")
	compiler := must.Get(exec.LookPath("g++"))(t)
	write(t, filepath.Join(tools, "g++"), "#!/bin/sh\n[ \"$1\" != -E ] || exit 1\nexec "+compiler+" \"$@\"\n")
	newClone(t).mustFail([]string{"PATH=" + tools}, "libjpeg-dev libpng-dev zlib1g-dev", "package manager")
}

func TestLock_Arm64(t *testing.T) {
	lock := must.Get(ParseLock(newIndex(t).lock(), ""))(t)
	wheels := must.Get(lock.wheelsOf("arm64", "runtime", "torch"))(t)
	if len(wheels) != 2 || wheels[0].name != "fixture-runtime-arm64" || wheels[1].name != "fixture-torch-arm64" {
		t.Errorf("arm64 has the wheels %v", wheels)
	}
	const want = "wheels.lock has no runtime12 for aarch64; use LibTorch 2.11.0 there"
	if _, err := lock.wheelsOf("arm64", "runtime12"); err == nil || err.Error() != want {
		t.Errorf("a set without arm64: %v", err)
	}
}

// The loader needs only compilers and system packages. For the loader, the set-up does not look for
// LibTorch, does not run Python and downloads nothing.
func TestSetup_Loader(t *testing.T) {
	t.Parallel()
	c := newClone(t)
	cmd := c.command("HOME="+t.TempDir(), "STREAMTORCH_CACHE=", "LIBTORCH=/nowhere", "PYTHON=/nowhere/python3")
	cmd.Args[1] = "loader"
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("setup loader: %v\n%s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(c.root, "build/libtorch*")); err != nil || len(left) > 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}
