package install

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/install"
	"github.com/streamtorch/streamtorch/internal/library"
	"github.com/streamtorch/streamtorch/internal/must"
)

const (
	module  = "github.com/streamtorch/streamtorch"
	version = "v0.1.0"
	command = module + "/cmd/streamtorch@" + version
)

// A machine has an empty home, the folder of a user's module, a proxy that has this module, and a
// server of its release. Nothing on it knows the clone.
type machine struct {
	t         *testing.T
	home, dir string
	proxy     string
	release   *httptest.Server
	env       []string
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	clone := must.Get(filepath.Abs("../.."))(t)
	m, err := library.ReadManifest(filepath.Join(clone, "build/lib", library.ManifestFile))
	if err != nil {
		t.Fatalf("the libraries are not built, run make build: %v", err)
	}
	released := t.TempDir()
	name := install.ArchiveName(library.Platform, m.LibTorch)
	archive, err := os.ReadFile(filepath.Join(clone, "build/release", name)) // what make release made
	if err != nil {
		archive = pack(t, filepath.Join(clone, "build/lib"), m)
	}
	must.Do(t, os.WriteFile(filepath.Join(released, name), archive, 0o666))
	server := httptest.NewServer(http.FileServer(http.Dir(released)))
	t.Cleanup(server.Close)

	home, dir := t.TempDir(), t.TempDir()
	cache := filepath.Join(home, ".cache/streamtorch")
	must.Do(t, os.MkdirAll(cache, 0o777))
	if torch := filepath.Dir(filepath.Dir(m.Folder)); strings.HasPrefix(filepath.Base(torch), "libtorch-") {
		must.Do(t, os.Symlink(torch, filepath.Join(cache, filepath.Base(torch))))
	}
	proxy := t.TempDir()
	publish(t, clone, proxy, fmt.Sprintf("%x  %s\n", sha256.Sum256(archive), name))
	machine := &machine{t: t, home: home, dir: dir, proxy: proxy, release: server}
	known := strings.Fields(output(t, clone, "go", "env", "GOMODCACHE", "GOROOT"))
	path := filepath.Join(known[1], "bin") + ":" + os.Getenv("PATH")
	machine.env = []string{"HOME=" + home, "PATH=" + path, "GOPROXY=file://" + proxy + ",file://" + filepath.Join(known[0], "cache/download"),
		"GOSUMDB=off", "HTTPS_PROXY=http://127.0.0.1:1", "STREAMTORCH_CUDA=0"}
	// What was compiled once for any folder is not compiled again.
	machine.env = append(machine.env, "GOFLAGS=-modcacherw -trimpath", "GOCACHE="+strings.TrimSpace(output(t, clone, "go", "env", "GOCACHE")))
	machine.run("go", "mod", "init", "example.org/outside")
	return machine
}

// pack returns the archive of the libraries in a folder, in the form of a release.
func pack(t *testing.T, folder string, m library.Manifest) []byte {
	t.Helper()
	var buffer bytes.Buffer
	z := gzip.NewWriter(&buffer)
	archive := tar.NewWriter(z)
	add := func(name string, text []byte) {
		must.Do(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))}))
		must.Get(archive.Write(text))(t)
	}
	for _, path := range must.Get(filepath.Glob(filepath.Join(folder, "libcgotorch*.so")))(t) {
		add(filepath.Base(path), must.Get(os.ReadFile(path))(t))
	}
	m.Folder, m.Open = "", nil
	add(library.ManifestFile, m.Text())
	must.Do(t, archive.Close())
	must.Do(t, z.Close())
	return buffer.Bytes()
}

// publish puts this module into a folder that serves as a proxy. `sums` is its release.sum.
func publish(t *testing.T, clone, proxy, sums string) {
	t.Helper()
	at := filepath.Join(proxy, module, "@v")
	must.Do(t, os.MkdirAll(at, 0o777))
	out := must.Get(os.Create(filepath.Join(at, version+".zip")))(t)
	defer out.Close()
	archive := zip.NewWriter(out)
	files := strings.Split(output(t, clone, "git", "ls-files", "--cached", "--others", "--exclude-standard"), "\n")
	var nested []string // the go command leaves other modules out
	for _, file := range files {
		if strings.HasSuffix(file, "/go.mod") {
			nested = append(nested, strings.TrimSuffix(file, "go.mod"))
		}
	}
	for _, file := range files {
		if file == "" || slices.ContainsFunc(nested, func(n string) bool { return strings.HasPrefix(file, n) }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(clone, file))
		if err != nil {
			continue // a file that was deleted, and a link
		}
		if file == "internal/install/release.sum" {
			text = []byte(sums)
		}
		w := must.Get(archive.Create(module + "@" + version + "/" + file))(t)
		must.Get(w.Write(text))(t)
	}
	must.Do(t, archive.Close())
	mod := must.Get(os.ReadFile(filepath.Join(clone, "go.mod")))(t)
	for name, text := range map[string]string{".mod": string(mod), ".info": `{"Version":"` + version + `","Time":"2026-11-28T00:00:00Z"}`} {
		must.Do(t, os.WriteFile(filepath.Join(at, version+name), []byte(text), 0o666))
	}
	must.Do(t, os.WriteFile(filepath.Join(at, "list"), []byte(version+"\n"), 0o666))
}

func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	return string(must.Get(cmd.Output())(t))
}

func (m *machine) write(name, text string) {
	m.t.Helper()
	must.Do(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o666))
}

// cold returns the machine of somebody who has never compiled anything.
func (m *machine) cold() *machine {
	return m.with("GOFLAGS=-modcacherw", "GOCACHE="+filepath.Join(m.home, ".cache/go-build"))
}

// with returns the machine with more in its environment.
func (m *machine) with(env ...string) *machine {
	other := *m
	other.env = append(slices.Clone(m.env), env...)
	return &other
}

// command returns a command in the user's module. Of the environment of the test it has nothing.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	if name == "go" { // a PATH of the machine alone holds for what go runs
		name = filepath.Join(strings.Split(strings.TrimPrefix(m.env[1], "PATH="), ":")[0], "go")
	}
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = m.dir, m.env
	return cmd
}

// run runs a command and returns its standard output.
func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	cmd := m.command(name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// fails runs a command that must fail, and returns what it printed.
func (m *machine) fails(name string, args ...string) string {
	m.t.Helper()
	var out bytes.Buffer
	cmd := m.command(name, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err == nil {
		m.t.Errorf("%s %s succeeded, want it to fail", name, strings.Join(args, " "))
	}
	text, _ := io.ReadAll(&out)
	return string(text)
}
