package install

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/streamtorch/streamtorch/internal/library"
)

// A Torch is a LibTorch that is on this machine.
type Torch struct {
	Version string
	Folder  string   // holds its lib and include
	Headers string   // the folder nvidia of the wheels with CUDA's headers; "" if they are not used
	Open    []string // libraries that it needs and does not find by itself
	Origin  string   // where it comes from, for a message
}

// Lib is the folder of its libraries.
func (t *Torch) Lib() string { return filepath.Join(t.Folder, "lib") }

// FindTorch returns the first of these LibTorchs that is there: that of $LIBTORCH, that of an
// installed Python torch, and that of the wheels of wheels.lock, which it downloads if need be.
func (in *Installer) FindTorch(ctx context.Context) (*Torch, error) {
	if in.Version != "" {
		if _, ok := in.Lock.release(in.Version); !ok {
			return nil, fmt.Errorf("LibTorch %s is not a version that the library builds with; these are: %s", in.Version, strings.Join(in.Lock.Versions(), " "))
		}
	}
	if os.Getenv("LIBTORCH") != "" {
		return in.fromEnvironment(ctx)
	}
	if t, err := in.fromPython(ctx); t != nil || err != nil {
		return t, err
	}
	return in.fromWheels(ctx)
}

// fromEnvironment uses $LIBTORCH. If that is wrong, nothing else is tried.
func (in *Installer) fromEnvironment(ctx context.Context) (*Torch, error) {
	chosen := os.Getenv("LIBTORCH")
	cure := "set it to LibTorch " + in.wanted() + ", or unset it to have that downloaded"
	if !filepath.IsAbs(chosen) {
		return nil, fmt.Errorf("LIBTORCH=%s is not an absolute path; write it from /", chosen)
	}
	if info, err := os.Stat(chosen); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("LIBTORCH=%s is not a folder; %s", chosen, cure)
	}
	folder := chosen
	if !isFolder(filepath.Join(chosen, "lib")) || !isFolder(filepath.Join(chosen, "include")) {
		folder = filepath.Join(chosen, "torch")
	}
	if err := in.fits(ctx, folder); err != nil {
		if errors.Is(err, errNoCUDA) {
			cure += ", or choose the CPU alone with -cpu or STREAMTORCH_CUDA=0"
		}
		return nil, fmt.Errorf("LIBTORCH=%s: %w; %s", chosen, err, cure)
	}
	return in.installed(ctx, folder, "$LIBTORCH")
}

func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// fits fails with the reason for which the LibTorch in a folder cannot be used.
func (in *Installer) fits(ctx context.Context, folder string) error {
	err := in.usable(folder)
	if err == nil {
		err = in.complete(ctx, folder)
	}
	if err == nil && in.Shared {
		err = readableByAll(folder, filepath.Join(folder, "lib/libtorch_cpu.so"))
	}
	return err
}

// errNoCUDA is wrapped by the error for a LibTorch that cannot use a GPU, if CUDA is wanted.
var errNoCUDA = errors.New("so one with CUDA is wanted")

// complete fails if a LibTorch lacks libraries that the wheels of CUDA's headers do not have.
func (in *Installer) complete(ctx context.Context, folder string) error {
	if err := lacks(ctx, filepath.Join(folder, "lib/libtorch_cpu.so")); err != nil || !in.CUDA {
		return err
	}
	cuda := filepath.Join(folder, "lib/libtorch_cuda.so")
	if sizeOf(cuda) == 0 {
		return fmt.Errorf("it was built without CUDA, and %s, %w", whyCUDA(), errNoCUDA)
	}
	if err := lacks(ctx, cuda); err != nil {
		return fmt.Errorf("%w, and %s, %w", err, whyCUDA(), errNoCUDA)
	}
	return nil
}

// lacks fails if a library does not find others. Those of the driver and those that the wheels of
// CUDA's headers have do not count.
func lacks(ctx context.Context, path string) error {
	missing, err := unresolved(ctx, path)
	missing = slices.DeleteFunc(missing, func(name string) bool {
		return strings.HasPrefix(name, "libcudart.so") || strings.HasPrefix(name, "libcupti.so") || name == "libcuda.so.1"
	})
	if err == nil && len(missing) > 0 {
		err = fmt.Errorf("it needs %s, not found on this machine", strings.Join(missing, " "))
	}
	return err
}

// whyCUDA returns the reason for which the CUDA libraries are wanted.
func whyCUDA() string {
	if os.Getenv("STREAMTORCH_CUDA") == "1" {
		return "STREAMTORCH_CUDA is 1"
	}
	if driver, _ := HasDriver(); driver {
		return "this machine has an NVIDIA driver"
	}
	return "-cuda was given"
}

// readableByAll fails if other users cannot read a file or go into a folder. Links are followed.
func readableByAll(paths ...string) error {
	for _, path := range paths {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		for _, f := range []string{path, real} {
			for ; f != filepath.Dir(f); f = filepath.Dir(f) {
				info, err := os.Stat(f)
				if err != nil {
					return err
				}
				want := os.FileMode(4)
				if info.IsDir() {
					want = 5
				}
				if info.Mode().Perm()&want != want {
					return fmt.Errorf("other users cannot read %s", f)
				}
			}
		}
	}
	return nil
}

// fromWheels uses the wheels of the lock, from the root or from the network.
func (in *Installer) fromWheels(ctx context.Context) (*Torch, error) {
	version := in.wanted()
	r, ok := in.Lock.release(version)
	if !ok {
		return nil, fmt.Errorf("wheels.lock has no LibTorch %s", version)
	}
	prefix, sets := "libtorch-"+version+"-cpu", []string{r.runtime, r.torch}
	if in.CUDA {
		if _, err := in.Lock.wheelsOf(in.processor(), r.libraries); r.libraries == "" || err != nil {
			return nil, fmt.Errorf("the CUDA libraries of LibTorch %s are not in wheels.lock; pip install torch==%s and set PYTHON to its Python, or choose the CPU alone with -cpu or STREAMTORCH_CUDA=0", version, version)
		}
		prefix, sets = "libtorch-"+version+"-cuda", append(sets, r.libraries)
	}
	tree, err := in.tree(ctx, "", prefix, sets...)
	if err != nil {
		return nil, err
	}
	t := &Torch{Version: version, Folder: filepath.Join(tree, "torch"), Headers: filepath.Join(tree, "nvidia"), Origin: "the pinned wheels"}
	return t, in.findOthers(ctx, t)
}

// installed uses a LibTorch that is not of the wheels. If that LibTorch does not find libcudart and
// libcupti itself, they come from the wheels that have CUDA's headers.
func (in *Installer) installed(ctx context.Context, folder, origin string) (*Torch, error) {
	version, err := library.TorchVersion(folder)
	if err != nil {
		return nil, err
	}
	t := &Torch{Version: version, Folder: folder, Origin: origin}
	missing, err := unresolved(ctx, filepath.Join(t.Lib(), "libtorch_cpu.so"))
	if err != nil || len(missing) == 0 {
		return t, err
	}
	if err := in.fetchHeaders(ctx, "", t); err != nil {
		return nil, err
	}
	return t, in.findOthers(ctx, t)
}

// headers gets CUDA's headers for a LibTorch that was built for CUDA, if they are not there. Only a
// compilation needs them. `held` is the root whose lock the caller has, or "".
func (in *Installer) headers(ctx context.Context, held string, t *Torch) error {
	if t.Headers != "" {
		return nil
	}
	err := in.fetchHeaders(ctx, held, t)
	if err == nil || in.CUDA || ctx.Err() != nil {
		return err
	}
	in.Out.Line("%v", err)
	in.Out.Line("going on without the CUDA headers: libcgotorch_cuda.so is not built, and needs a GPU to be of use")
	return nil
}

func (in *Installer) fetchHeaders(ctx context.Context, held string, t *Torch) error {
	cuda := builtForCUDA(t.Folder)
	if cuda == "" {
		return nil
	}
	version, set := in.Lock.headersFor(cuda)
	tree, err := in.tree(ctx, held, "cuda-"+version, set)
	if err == nil {
		t.Headers = filepath.Join(tree, "nvidia")
	}
	return err
}

// findOthers finds the libraries that a LibTorch needs and does not find by itself.
func (in *Installer) findOthers(ctx context.Context, t *Torch) error {
	missing, err := unresolved(ctx, filepath.Join(t.Lib(), "libtorch_cpu.so"))
	if err != nil {
		return err
	}
	for _, name := range missing {
		var found []string
		if t.Headers != "" {
			found, _ = fs.Glob(os.DirFS(t.Headers), "*/lib/"+name)
		}
		if len(found) == 0 {
			return fmt.Errorf("%s needs %s, not found on this machine; unset LIBTORCH to have LibTorch downloaded", filepath.Join(t.Lib(), "libtorch_cpu.so"), name)
		}
		t.Open = append(t.Open, filepath.Join(t.Headers, found[0]))
	}
	return nil
}

// usable fails with what is wrong with the LibTorch in a folder.
func (in *Installer) usable(folder string) error {
	have, err := library.TorchVersion(folder)
	if err != nil {
		return errors.New("no include/torch there, so it is not LibTorch")
	}
	if in.Version != "" && have != in.Version {
		return fmt.Errorf("it is LibTorch %s, and %s is needed", have, in.Version)
	}
	known := in.Lock.Versions()
	if !slices.ContainsFunc(known, func(v string) bool { return library.Release(v) == library.Release(have) }) {
		return fmt.Errorf("it is LibTorch %s, and the library builds with %s", have, strings.Join(known, " "))
	}
	for _, file := range []string{"lib/libtorch_cpu.so", "lib/libc10.so", "include/ATen/core/dispatch/Dispatcher.h"} {
		if sizeOf(filepath.Join(folder, file)) == 0 {
			return fmt.Errorf("%s is missing", file)
		}
	}
	if err := isSound(filepath.Join(folder, "lib/libtorch_cpu.so")); err != nil {
		return fmt.Errorf("lib/libtorch_cpu.so is damaged: %w", err)
	}
	if cuda := builtForCUDA(folder); cuda != "" {
		if _, set := in.Lock.headersFor(cuda); set == "" {
			return fmt.Errorf("it was built for CUDA %s, and CUDA 12 or 13 is needed", cuda)
		}
	}
	return nil
}

// isSound fails if a file is no whole shared library. The table of sections is at its end.
func isSound(path string) error {
	file, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err == nil && len(needed) == 0 {
		err = errors.New("it needs no library")
	}
	return err
}

var (
	cudaLine   = regexp.MustCompile(`(?m)^cuda\b.*= *'([0-9.]*)'`)
	cudartName = regexp.MustCompile(`^libcudart.*\.so\.([0-9]+)`)
)

// builtForCUDA returns the version of CUDA, such as 13.0, of the LibTorch in a folder, or ""
// without CUDA. The minor version is only in version.py of torch. Without that file the result is
// the major.
func builtForCUDA(folder string) string {
	if sizeOf(filepath.Join(folder, "lib/libtorch_cuda.so")) == 0 {
		return ""
	}
	text, _ := os.ReadFile(filepath.Join(folder, "version.py"))
	if match := cudaLine.FindSubmatch(text); match != nil && len(match[1]) > 0 {
		return string(match[1])
	}
	if file, err := elf.Open(filepath.Join(folder, "lib/libc10_cuda.so")); err == nil {
		defer file.Close()
		needed, _ := file.ImportedLibraries()
		for _, name := range needed {
			if match := cudartName.FindStringSubmatch(name); match != nil {
				return match[1]
			}
		}
	}
	return ""
}

var notFound = regexp.MustCompile(`(?m)^\s*(\S+) => not found$`)

// unresolved returns the libraries that a library needs and does not find.
func unresolved(ctx context.Context, path string) ([]string, error) {
	if sizeOf(path) == 0 {
		return nil, nil
	}
	cmd := exec.Command("ldd", path)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LD_LIBRARY_PATH=") })
	out, err := output(ctx, cmd)
	if errors.Is(err, exec.ErrNotFound) {
		return nil, errors.New("missing: ldd, which is a part of glibc; LibTorch needs glibc: use Debian, Ubuntu or Fedora")
	}
	var all []string
	for _, match := range notFound.FindAllSubmatch(out, -1) {
		all = append(all, string(match[1]))
	}
	return all, nil
}
