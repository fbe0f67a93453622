package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/install"
	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/must"
)

// wholeVariable turns on what takes long: make test-install sets it.
const wholeVariable = "STREAMTORCH_TEST_INSTALL"

// roots are the systems in which a program is installed and run, the oldest first. The first one
// and the last one compile the program too. LibTorch needs the glibc of 2.28.
var roots = []struct{ name, mirror, keys string }{
	{"bullseye", "http://deb.debian.org/debian", "debian-archive-keyring.gpg"},
	{"focal", "http://archive.ubuntu.com/ubuntu", "ubuntu-archive-keyring.gpg"},
	{"jammy", "http://archive.ubuntu.com/ubuntu", "ubuntu-archive-keyring.gpg"},
	{"bookworm", "http://deb.debian.org/debian", "debian-archive-keyring.gpg"},
	{"noble", "http://archive.ubuntu.com/ubuntu", "ubuntu-archive-keyring.gpg"},
	{"trixie", "http://deb.debian.org/debian", "debian-archive-keyring.gpg"},
	{"forky", "http://deb.debian.org/debian", "debian-archive-keyring.gpg"},
}

// A program that was compiled in the oldest system, and the libraries of the release, run in each
// newer one. In the oldest and the newest the three commands of the README compile it.
func TestRoots(t *testing.T) {
	whole(t)
	if os.Getuid() != 0 {
		t.Skip("debootstrap and chroot need root")
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		t.Fatalf("missing: debootstrap; run: apt-get install debootstrap ubuntu-keyring: %v", err)
	}
	// The libraries of a build here need the glibc of this machine, so those of a release are tried.
	clone := must.Get(filepath.Abs("../.."))(t)
	if !isFile(filepath.Join(clone, "build/release", install.ArchiveName(library.Platform, install.Default))) {
		output(t, clone, "make", "release", "ARGS=-arch "+runtime.GOARCH+" -libtorch "+install.Default)
	}
	m := newMachine(t)
	m.write("main.go", program)
	for i, r := range roots {
		t.Run(r.name, func(t *testing.T) {
			compiles := i == 0 || i == len(roots)-1
			root := bootstrap(t, r.name, r.mirror, r.keys, compiles)
			inside := m.inside(t, root)
			if compiles {
				begin := time.Now()
				inside("go", "get", module+"@"+version)
				inside("env", "GOBIN="+m.dir, "go", "install", command)
				inside("go", "build", "-o", "outside", ".")
				t.Logf("compiled in %.0f s", time.Since(begin).Seconds())
			}
			inside("./streamtorch", "install", "-from", m.release.URL)
			begin := time.Now()
			if got := inside("./outside"); got != printed {
				t.Errorf("the program printed %q, want %q", got, printed)
			}
			t.Logf("ran in %.2f s", time.Since(begin).Seconds())
			inside("./streamtorch", "verify")
			inside("./streamtorch", "doctor")
			inside("./streamtorch", "install", "-remove")
		})
	}
}

// bootstrap returns a folder with a small system. With a compiler it has gcc.
func bootstrap(t *testing.T, name, mirror, keys string, compiler bool) string {
	t.Helper()
	root := t.TempDir()
	must.Do(t, os.Chmod(root, 0o755))
	args := []string{"--variant=minbase", "--no-check-gpg"} // where the keys of the other system are not installed
	if keyring := "/usr/share/keyrings/" + keys; isFile(keyring) {
		args[1] = "--keyring=" + keyring
	}
	script := "/usr/share/debootstrap/scripts/sid" // a debootstrap that is older than the system has no other
	if strings.Contains(mirror, "ubuntu") {
		script = "/usr/share/debootstrap/scripts/gutsy"
	}
	packages := "ca-certificates,libstdc++6"
	if compiler {
		packages += ",gcc,libc6-dev"
	}
	out, err := exec.Command("debootstrap", append(args, "--include="+packages, name, root, mirror, script)...).CombinedOutput()
	if err != nil {
		t.Fatalf("debootstrap %s: %v\n%s", name, err, tail(string(out)))
	}
	return root
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// inside returns a function that runs a command in a root as in the user's module. The root sees
// the machine's home and module, its proxy, the LibTorch of its cache, and Go. It has its own
// caches of Go and of streamtorch.
func (m *machine) inside(t *testing.T, root string) func(name string, args ...string) string {
	t.Helper()
	goroot := strings.TrimSpace(output(t, m.dir, "go", "env", "GOROOT"))
	modules := strings.TrimSpace(output(t, m.dir, "go", "env", "GOMODCACHE"))
	binds := []string{m.dir, m.proxy, goroot, modules, "/proc", "/dev"}
	home := "/home/user"
	cache := filepath.Join(root, home, ".cache/streamtorch")
	must.Do(t, os.MkdirAll(cache, 0o755))
	links := must.Get(filepath.Glob(filepath.Join(m.home, ".cache/streamtorch/libtorch-*")))(t)
	for _, link := range links {
		tree := must.Get(filepath.EvalSymlinks(link))(t)
		binds = append(binds, tree)
		must.Do(t, os.Symlink(tree, filepath.Join(cache, filepath.Base(link))))
	}
	script := "set -e\n"
	for _, b := range binds {
		must.Do(t, os.MkdirAll(filepath.Join(root, b), 0o755))
		script += fmt.Sprintf("mount --rbind %s %s\n", b, filepath.Join(root, b))
	}
	script += fmt.Sprintf("exec chroot %s sh -c 'cd %s && exec \"$@\"' sh \"$@\"\n", root, m.dir)
	env := []string{"HOME=" + home, "PATH=" + goroot + "/bin:/usr/bin:/bin:/usr/sbin:/sbin"}
	for _, v := range m.env {
		if !strings.HasPrefix(v, "HOME=") && !strings.HasPrefix(v, "PATH=") && !strings.HasPrefix(v, "GOCACHE=") {
			env = append(env, v)
		}
	}
	return func(name string, args ...string) string {
		t.Helper()
		cmd := exec.Command("unshare", append([]string{"--mount", "--propagation", "private", "sh", "-c", script, "sh", name}, args...)...)
		cmd.Env = env
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, tail(stderr.String()))
		}
		return string(out)
	}
}
