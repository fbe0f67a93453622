package install

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

//go:embed wheels.lock
var lockText string

// releaseSums has a line `SHA256  NAME` for each released archive of this version.
//
//go:embed release.sum
var releaseSums string

// A Lock says what may be downloaded, with hashes: from wheels.lock the releases of LibTorch that
// the library builds with, and their wheels; from release.sum the compiled libraries of this
// version.
type Lock struct {
	releases []release
	wheels   []wheel
	archives string // lines of release.sum
}

// A release is one version of LibTorch, with the names of its sets of wheels.
type release struct {
	version, cuda string // 2.11.0 and 13.0
	runtime       string // what LibTorch needs on each machine, and CUDA's headers
	torch         string // LibTorch itself
	libraries     string // what a machine with a GPU needs; "" if wheels.lock does not have it
}

// A wheel is a file of a Python package.
type wheel struct {
	set, name, version, platform string
	bytes, unpacked              int64
	sha256                       string
	line                         string // in wheels.lock
}

// Locked returns the lock that this program was compiled with.
func Locked() *Lock {
	l, err := ParseLock(lockText, releaseSums)
	if err != nil {
		panic(err) // a test reads the file
	}
	return l
}

// ParseLock reads the text of a wheels.lock. The archives are lines of a release.sum.
func ParseLock(text, archives string) (*Lock, error) {
	l := &Lock{archives: archives}
	for n, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(line, "#"):
		case f[0] == "version" && (len(f) == 5 || len(f) == 6):
			r := release{version: f[1], cuda: f[2], runtime: f[3], torch: f[4]}
			if len(f) == 6 {
				r.libraries = f[5]
			}
			l.releases = append(l.releases, r)
		case len(f) == 7:
			w := wheel{set: f[0], name: f[1], version: f[2], platform: f[3], sha256: f[6], line: line}
			var err, err2 error
			w.bytes, err = strconv.ParseInt(f[4], 10, 64)
			w.unpacked, err2 = strconv.ParseInt(f[5], 10, 64)
			if err != nil || err2 != nil || len(w.sha256) != 64 {
				return nil, fmt.Errorf("wheels.lock: line %d: %q is not SET NAME VERSION PLATFORM BYTES UNPACKED SHA256", n+1, line)
			}
			l.wheels = append(l.wheels, w)
		default:
			return nil, fmt.Errorf("wheels.lock: line %d: %q is neither a version nor a wheel", n+1, line)
		}
	}
	return l, nil
}

// Versions returns the releases of LibTorch that the library builds with.
func (l *Lock) Versions() []string {
	var all []string
	for _, r := range l.releases {
		all = append(all, r.version)
	}
	return all
}

func (l *Lock) release(version string) (release, bool) {
	i := slices.IndexFunc(l.releases, func(r release) bool { return r.version == version })
	if i < 0 {
		return release{}, false
	}
	return l.releases[i], true
}

// MachineOf returns the name that compilers and Python have for one of Go's processors, or "" if
// LibTorch does not run on it.
func MachineOf(processor string) string {
	switch processor {
	case "amd64":
		return "x86_64"
	case "arm64":
		return "aarch64"
	}
	return ""
}

// wheelsOf returns the wheels of these sets for a processor, in Go's words. It fails if a set has
// none.
func (l *Lock) wheelsOf(processor string, sets ...string) ([]wheel, error) {
	machine := MachineOf(processor)
	var all []wheel
	found := map[string]bool{}
	for _, w := range l.wheels {
		if slices.Contains(sets, w.set) && strings.HasSuffix(w.platform, "_"+machine) {
			all = append(all, w)
			found[w.set] = true
		}
	}
	for _, set := range sets {
		if !found[set] {
			return nil, fmt.Errorf("wheels.lock has no %s for %s; use LibTorch %s there", set, machine, Default)
		}
	}
	return all, nil
}

// headersFor returns the version of CUDA's headers for a LibTorch of this CUDA, and their set. If
// the lock has none of this CUDA, they are others of its major version. The set is "" without any.
func (l *Lock) headersFor(cuda string) (version, set string) {
	major, _, _ := strings.Cut(cuda, ".")
	for _, r := range l.releases {
		if m, _, _ := strings.Cut(r.cuda, "."); r.cuda == cuda || set == "" && m == major {
			version, set = r.cuda, r.runtime
		}
	}
	return version, set
}

// treeName returns the name of the folder of these wheels, which changes with any of them.
func treeName(prefix string, wheels []wheel) string {
	var lines strings.Builder
	for _, w := range wheels {
		lines.WriteString(w.line + "\n")
	}
	sum := sha256.Sum256([]byte(lines.String()))
	return fmt.Sprintf("%s-%x", prefix, sum[:6])
}
