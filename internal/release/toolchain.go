package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/streamtorch/streamtorch/internal/install"
)

// A toolchain compiles for one processor.
//
// Note [Old symbols]
// The compiler and the linker are clang and lld in one file, of the Python package ziglang. It
// also has the headers of glibc, and stubs with the symbols that glibc 2.28 has. libstdc++'s
// headers are those of gcc 12, because LibTorch's headers need C++20. Our stub of libstdc++ leaves
// out what gcc 8 did not have. The folder old/include changes what the headers expect of glibc.
// The sources in old define, hidden, what the headers expect of libstdc++. No code of libstdc++'s
// own library is linked in. -fclang-abi-compat=17 gives
// templates the names that gcc gave them in LibTorch. -ffp-contract=off makes arm64 round as amd64.
type toolchain struct {
	arch      string
	cc        string // compiles C and assembles
	nasm      string
	file      string // for CMake
	codecs    string // the folder of the codecs
	libraries []string
}

// newToolchain makes a toolchain in a folder. `source` is the folder of this program.
func newToolchain(p *parts, arch, source, folder string) (*toolchain, error) {
	var from [5]string
	for i, name := range []string{"zig", "nasm", "libstdc++-dev", "libstdc++", "libgcc"} {
		var err error
		if from[i], err = p.folder(name, arch); err != nil {
			return nil, err
		}
	}
	zig, nasm, headers, libstdcxx, libgcc := from[0], from[1], from[2], from[3], from[4]
	triple := install.MachineOf(arch) + "-linux-gnu"
	t := &toolchain{
		arch:   arch,
		cc:     filepath.Join(folder, "bin", "cc"),
		nasm:   filepath.Join(nasm, "usr/bin/nasm"),
		file:   filepath.Join(source, "toolchain.cmake"),
		codecs: filepath.Join(folder, "codecs"),
	}
	include := filepath.Join(headers, "usr/include")
	flags := "-target " + triple + ".2.28 -g0 -fomit-frame-pointer -ffp-contract=off"
	cxx := fmt.Sprintf("-nostdinc++ -I'%s/old/include' -I'%s/c++/12' -I'%s/%s/c++/12'", source, include, include, triple)
	program := filepath.Join(zig, "ziglang/zig")
	for name, command := range map[string]string{"cc": "cc " + flags, "c++": "c++ " + flags + " -nostdlib++ -fclang-abi-compat=17 " + cxx, "ar": "ar", "ranlib": "ranlib"} {
		// zig keeps what it compiles of glibc in these folders.
		script := fmt.Sprintf("#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR='%s' ZIG_LOCAL_CACHE_DIR='%s'\nexec '%s' %s \"$@\"\n",
			filepath.Join(folder, "zig"), filepath.Join(folder, "zig"), program, command)
		if err := write(filepath.Join(folder, "bin", name), []byte(script), 0o777); err != nil {
			return nil, err
		}
	}
	for _, real := range []string{filepath.Join(libstdcxx, "usr/lib", triple, "libstdc++.so.6"), filepath.Join(libgcc, "lib", triple, "libgcc_s.so.1")} {
		stub, err := t.stub(real, filepath.Join(folder, "stubs"))
		if err != nil {
			return nil, err
		}
		t.libraries = append(t.libraries, stub)
	}
	old := filepath.Join(folder, "libold.a")
	t.libraries = append([]string{old}, t.libraries...)
	script := fmt.Sprintf(`for f in old/*.cc; do '%[1]s/c++' -std=c++20 -O2 -fPIC -c $f -o '%[2]s'/$(basename $f).o || exit 1; done; '%[1]s/ar' rcs '%[3]s' '%[2]s'/*.cc.o`,
		filepath.Dir(t.cc), folder, old)
	return t, run(source, "sh", "-c", script)
}

// cmake configures a project in a folder of its own, and builds targets of it.
func (t *toolchain) cmake(source, build string, jobs int, targets []string, settings ...string) error {
	args := []string{"-S", source, "-B", build, "-G", "Ninja", "-DCMAKE_TOOLCHAIN_FILE=" + t.file, "-DCMAKE_BUILD_TYPE=Release",
		"-DRELEASE_BIN=" + filepath.Dir(t.cc), "-DRELEASE_PROCESSOR=" + install.MachineOf(t.arch), "-DRELEASE_CODECS=" + t.codecs,
		"-DRELEASE_LIBRARIES=" + strings.Join(t.libraries, " "), "-DRELEASE_NASM=" + t.nasm}
	if err := run(".", "cmake", append(args, settings...)...); err != nil {
		return err
	}
	return run(".", "cmake", append([]string{"--build", build, "-j", fmt.Sprint(jobs), "--target"}, targets...)...)
}

// needTools fails if the machine lacks a program that the release is made with.
func needTools() error {
	for _, tool := range []string{"cmake", "ninja", "ar", "tar", "xz", "bzip2", "patch"} {
		if err := run(".", "sh", "-c", "command -v "+tool); err != nil {
			return fmt.Errorf("%s is missing: run apt-get install cmake ninja-build binutils tar xz-utils bzip2 patch", tool)
		}
	}
	if machine, err := os.ReadFile("/proc/sys/kernel/arch"); err == nil && strings.TrimSpace(string(machine)) != "x86_64" {
		return fmt.Errorf("the release is made on x86_64, and this machine is %s", machine)
	}
	return nil
}
