package library

import "strings"

// A rule is why a folder of libraries was chosen. The cure for what is wrong there follows from it.
type rule int

const (
	byVariable rule = iota + 1
	byProgram
	beside
	ofClone
	ofUser
	ofSystem
	ofLibTorch // what $LIBTORCH names
)

// cure returns what a user does about libraries that are missing or wrong in a folder.
func (r rule) cure() string {
	const fill = "put the libraries of this version there (streamtorch install -prefix FOLDER makes them in FOLDER/lib), or "
	switch r {
	case byVariable:
		return fill + "unset STREAMTORCH_LIB"
	case byProgram:
		return fill + "let the program name another folder"
	case beside:
		return fill + "remove those that lie beside the program"
	case ofClone:
		return cureFor(clone(), "")
	case ofLibTorch:
		return "set LIBTORCH to another LibTorch, or unset it"
	}
	return cure()
}

// cure is what a user does about libraries that were not found.
func cure() string { return cureFor(clone(), Version()) }

func cureFor(clone, version string) string {
	if clone != "" {
		return "run make libraries in " + clone
	}
	if version != "" {
		return "run: go run " + module + "/cmd/streamtorch@" + version + " install"
	}
	return "install the libraries of the commit that you compile: in its clone run: go run ./cmd/streamtorch install"
}

// systemCure returns what a user does about what the dynamic loader says, if it is not about our
// libraries and LibTorch's, and "" otherwise.
func systemCure(said string) string {
	if strings.Contains(said, "static TLS") { // memory of threads, which glibc sets aside when a program starts
		return "libraries that were opened before have used this memory; open streamtorch's first, or run the program with GLIBC_TUNABLES=glibc.rtld.optional_static_tls=16384"
	}
	if strings.Contains(said, "version `GLIBC") { // of glibc, and GLIBCXX of libstdc++
		return "this system is older than the libraries need: run the program on a newer one, with glibc 2.28 or newer"
	}
	name, _, missing := strings.Cut(said, ": cannot open shared object file")
	if !missing || strings.Contains(name, "/") {
		return ""
	}
	for _, installed := range []string{"libcgotorch", "libtorch", "libc10", "libshm", "libcaffe2", "libcu", "libnv", "libnccl"} {
		if strings.HasPrefix(name, installed) {
			return ""
		}
	}
	packages := map[string]string{"libstdc++.so.6": "libstdc++6", "libgomp.so.1": "libgomp1", "libgcc_s.so.1": "libgcc-s1"}
	if p := packages[name]; p != "" {
		return "install it, on Debian and Ubuntu by: apt-get install " + p
	}
	return "install the package of this system that has " + name
}
