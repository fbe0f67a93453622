package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Check fails on a machine that the libraries do not run on.
func Check() error {
	if runtime.GOOS != "linux" || MachineOf(runtime.GOARCH) == "" {
		return fmt.Errorf("this is %s on %s, and only Linux on amd64 and on arm64 is supported", runtime.GOOS, runtime.GOARCH)
	}
	if found, _ := filepath.Glob("/lib/ld-musl-*"); len(found) > 0 {
		if glibc, _ := filepath.Glob("/lib*/ld-linux-*"); len(glibc) == 0 {
			return errors.New("this machine has musl, and LibTorch needs glibc: use Debian, Ubuntu or Fedora")
		}
	}
	return nil
}

// HasDriver reports whether an NVIDIA driver is installed. STREAMTORCH_CUDA=0 or 1 decides instead,
// if it is set.
func HasDriver() (bool, error) {
	switch set := os.Getenv("STREAMTORCH_CUDA"); set {
	case "0", "1":
		return set == "1", nil
	case "":
	default:
		return false, fmt.Errorf("STREAMTORCH_CUDA is %q; it must be 0, 1 or unset", set)
	}
	const driver = "libcuda.so.1"
	for _, folder := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if sizeOf(filepath.Join(folder, driver)) > 0 {
			return true, nil
		}
	}
	for _, ldconfig := range []string{"ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"} {
		if out, err := exec.Command(ldconfig, "-p").Output(); err == nil {
			return strings.Contains(string(out), driver), nil
		}
	}
	return false, nil
}

// pythons returns the Pythons that are asked for a torch: $PYTHON alone if it is set. Else that of
// the active environment, then those on the PATH, then that of the system.
func pythons() []string {
	names := []string{os.Getenv("PYTHON")}
	if names[0] == "" {
		names = nil
		for _, variable := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
			if folder := os.Getenv(variable); folder != "" {
				names = append(names, filepath.Join(folder, "bin/python3"))
			}
		}
		names = append(names, "python3")
		for minor := 14; minor >= 10; minor-- {
			names = append(names, fmt.Sprintf("python3.%d", minor))
		}
		names = append(names, "/usr/bin/python3")
	}
	var found []string
	for _, name := range names {
		if _, err := exec.LookPath(name); err == nil {
			found = append(found, name)
		}
	}
	return found
}

// variable returns an environment variable, or what holds without it.
func variable(name, otherwise string) string {
	if value := os.Getenv(name); strings.TrimSpace(value) != "" {
		return value
	}
	return otherwise
}

// installCommand returns the command by which the user of this machine installs packages.
func installCommand(packages string) string {
	sudo := ""
	if os.Getuid() != 0 {
		sudo = "sudo "
	}
	return sudo + "apt-get update && " + sudo + "apt-get install " + packages
}

// needTools fails if a compiler or a build tool is missing. The error has the command that installs
// them.
func needTools(ctx context.Context) error {
	var missing []string
	cxx := strings.Fields(variable("CXX", "g++"))
	for _, tool := range []struct{ program, name string }{{cxx[0], "g++"}, {strings.Fields(variable("CC", "gcc"))[0], "gcc"}, {"cmake", "cmake"}, {"make", "make"}} {
		if _, err := exec.LookPath(tool.program); err != nil && (tool.name != "gcc" || len(missing) == 0) {
			missing = append(missing, tool.name)
		}
	}
	if len(missing) > 0 {
		names := strings.Join(missing, " ")
		return fmt.Errorf("missing: %s; run: %s", names, installCommand(names))
	}
	version, err := exec.CommandContext(ctx, cxx[0], append(cxx[1:], "-dumpversion")...).Output()
	if err != nil {
		return fmt.Errorf("%s does not run (%w); run: %s", cxx[0], err, installCommand("g++"))
	}
	// clang is asked for by its name, because it sets __GNUC__ to 4.
	name, least := "version", 11
	if about, _ := exec.CommandContext(ctx, cxx[0], append(cxx[1:], "--version")...).Output(); strings.Contains(strings.ToLower(string(about)), "clang") {
		name, least = "clang", 15
	}
	if major, _, _ := strings.Cut(strings.TrimSpace(string(version)), "."); atoi(major) < least {
		return fmt.Errorf("%s is %s %s, and LibTorch's headers need %d or newer; install one and set CXX", cxx[0], name, strings.TrimSpace(string(version)), least)
	}
	return nil
}

func atoi(text string) int {
	n, _ := strconv.Atoi(text)
	return n
}

// hasHeader reports whether the C++ compiler finds a header.
func hasHeader(ctx context.Context, header string) bool {
	cxx := strings.Fields(variable("CXX", "g++"))
	cmd := exec.CommandContext(ctx, cxx[0], append(cxx[1:], "-E", "-x", "c++", "-")...)
	cmd.Stdin = strings.NewReader("#include <cstddef>\n#include <cstdio>\n#include <" + header + ">\n")
	return cmd.Run() == nil
}

// missingPackages returns the names, in Debian and Ubuntu, of what the machine lacks.
func missingPackages(ctx context.Context, tests, patchelf bool) []string {
	var missing []string
	lacks := func(header, name string) {
		if !hasHeader(ctx, header) {
			missing = append(missing, name)
		}
	}
	lacks("jpeglib.h", "libjpeg-dev")
	lacks("png.h", "libpng-dev")
	lacks("zlib.h", "zlib1g-dev")
	if tests {
		lacks("gtest/gtest.h", "libgtest-dev")
	}
	if _, err := exec.LookPath("patchelf"); patchelf && err != nil {
		missing = append(missing, "patchelf")
	}
	return missing
}

// getPackages installs packages with apt-get. That needs root, or sudo without a password.
// Otherwise it fails, and the error names the packages.
func getPackages(ctx context.Context, out *Printer, log string, packages []string) error {
	names := strings.Join(packages, " ")
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("missing: %s (Debian's names); install them with this system's package manager", names)
	}
	apt := []string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"}
	if os.Getuid() != 0 {
		if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
			return fmt.Errorf("missing: %s; run: %s", names, installCommand(names))
		}
		apt = append([]string{"sudo", "-n"}, apt...)
	}
	out.Line("installing %s with apt-get", names)
	to, err := os.Create(log)
	if err != nil {
		return err
	}
	defer to.Close()
	run := func(args ...string) error {
		cmd := exec.CommandContext(ctx, apt[0], append(apt[1:len(apt):len(apt)], args...)...)
		cmd.Stdout, cmd.Stderr = to, to
		return cmd.Run()
	}
	if run("update") != nil {
		out.Line("apt-get update failed; going on with the package lists that are here (see %s)", log)
	}
	if run(append([]string{"install", "-y", "--no-install-recommends"}, packages...)...) != nil {
		return fmt.Errorf("apt-get could not install %s; see %s, then run: %s", names, log, installCommand(names))
	}
	return nil
}
