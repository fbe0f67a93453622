package install

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/streamtorch/streamtorch/csrc"
	"github.com/streamtorch/streamtorch/internal/hostmemory"
	"github.com/streamtorch/streamtorch/internal/library"
)

// compile compiles the libraries from this module's own csrc into a folder, for a LibTorch, or
// without one for the loader.
func (in *Installer) compile(ctx context.Context, work, to string, t *Torch) error {
	hash, err := csrc.Hash(csrc.Files)
	if err == nil && hash != library.Source {
		err = fmt.Errorf("the C++ sources of this module have the hash %.12s, and its Go code wants %.12s; get the module again, or in a clone run make generate", hash, library.Source)
	}
	if err == nil {
		err = canCompile(ctx)
	}
	if err != nil {
		return err
	}
	source, build := filepath.Join(work, "csrc"), filepath.Join(work, "build")
	if err := os.CopyFS(source, csrc.Files); err != nil {
		return err
	}
	args := []string{"-S", source, "-B", build, "-DCGOTORCH_LIB_DIR=" + to}
	if t == nil {
		args = append(args, "-DCGOTORCH_LOADER_ONLY=ON")
		in.Out.Line("compiling the library of the loader, some 20 s")
	} else {
		setup := filepath.Join(work, "libtorch.cmake")
		if err := os.WriteFile(setup, []byte(t.CMake()), 0o644); err != nil {
			return err
		}
		args = append(args, "-DCGOTORCH_SETUP="+setup)
		in.Out.Line("compiling the libraries, which takes 4 minutes on 2 free cores, and 2 GB of memory for each of %d jobs", jobs())
	}
	if _, err := exec.LookPath("ninja"); err == nil {
		args = append(args, "-G", "Ninja")
	}
	if err := in.run(ctx, "cmake", args...); err != nil {
		return err
	}
	return in.run(ctx, "cmake", "--build", build, "-j", fmt.Sprint(jobs()), "--target", "libraries")
}

// canCompile fails if the machine lacks what compiles the libraries.
func canCompile(ctx context.Context) error {
	if err := needTools(ctx); err != nil {
		return err
	}
	if missing := strings.Join(missingPackages(ctx, false, false), " "); missing != "" {
		return fmt.Errorf("missing: %s (Debian's names); run: %s", missing, installCommand(missing))
	}
	return nil
}

// jobs is how many files are compiled at a time. One can take 2 GB.
func jobs() int {
	free, _ := hostmemory.Available()
	return max(1, min(runtime.NumCPU(), int(free/(2_000_000<<10))))
}

// step is how ninja and make tell how far they are.
var step = regexp.MustCompile(`^\[ *([0-9]+)(?:/([0-9]+)|%)\]`)

// lastLines is how much of a program's output an error has.
const lastLines = 20

// run runs a program and shows its progress. If it fails, the error has the end of what it printed.
// All that it has started ends with ctx.
func (in *Installer) run(ctx context.Context, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	inGroup(cmd)
	from, to := io.Pipe()
	cmd.Stdout, cmd.Stderr = to, to
	ended := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		ended <- cmd.Wait()
		to.Close()
	}()
	var said []string
	for lines := bufio.NewReader(from); ; {
		line, err := lines.ReadString('\n')
		if line != "" {
			said = append(said, strings.TrimRight(line, "\n"))
			said = said[max(0, len(said)-lastLines):]
			in.progressOf(line)
		}
		if err != nil {
			break
		}
	}
	err := <-ended
	in.Out.end()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("%s %s fails (%w):\n%s", program, args[0], err, strings.Join(said, "\n"))
	}
	return nil
}

// progressOf shows the progress that a line of ninja or make tells.
func (in *Installer) progressOf(line string) {
	match := step.FindStringSubmatch(line)
	switch {
	case match == nil:
	case match[2] != "":
		in.Out.progress("compiling", int64(atoi(match[1])), int64(atoi(match[2])), "files")
	default:
		in.Out.progress("compiling", int64(atoi(match[1])), 100, "%")
	}
}

// CMake returns the settings of csrc/CMakeLists.txt for a LibTorch.
func (t *Torch) CMake() string {
	include := filepath.Join(t.Folder, "include")
	return fmt.Sprintf("# Where LibTorch is.\nset(LIBTORCH_INCLUDE %q)\nset(LIBTORCH_LIB %q)\nset(CUDA_INCLUDE %q)\nset(CUDA_LIB %q)\nset(LIBTORCH_EXTRA %q)\n",
		include+";"+filepath.Join(include, "torch/csrc/api/include"), t.Lib(), t.cuda("include"), t.cudaLib(), strings.Join(t.Open, ";"))
}

// cudaLib returns the folders of CUDA's libraries, with semicolons.
func (t *Torch) cudaLib() string {
	if len(t.Open) > 0 {
		return t.cuda("lib")
	}
	return cudaFolders(filepath.Join(filepath.Dir(t.Folder), "nvidia"), "lib")
}

func (t *Torch) cuda(name string) string {
	if t.Headers == "" {
		return ""
	}
	return cudaFolders(t.Headers, name)
}

// cudaFolders returns the folders `name` of the CUDA wheels in a folder, with semicolons. The
// wheels of CUDA 13 share one folder, cu13. Those of CUDA 12 have one each, such as cuda_runtime.
func cudaFolders(tree, name string) string {
	var all []string
	for _, kind := range []string{"cu[0-9]*", "cuda_*", "nvjpeg"} {
		found, _ := fs.Glob(os.DirFS(tree), kind+"/"+name)
		for _, f := range found {
			all = append(all, filepath.Join(tree, f))
		}
	}
	return strings.Join(all, ";")
}
