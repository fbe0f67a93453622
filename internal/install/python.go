package install

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// fromPython uses the torch of a Python that is here. The first Python with a usable torch is
// taken.
func (in *Installer) fromPython(ctx context.Context) (*Torch, error) {
	seen := map[string]bool{}
	for _, python := range pythons() {
		folder := torchOf(ctx, python)
		if folder == "" || seen[folder] {
			continue
		}
		seen[folder] = true
		err := in.fits(ctx, folder)
		if err == nil {
			return in.installed(ctx, folder, python)
		}
		in.Out.Line("not using the torch of %s in %s: %v", python, folder, err)
	}
	return nil, nil
}

// torchOf returns the folder of the torch of a Python, or "". It does not import torch, because an
// import takes seconds.
func torchOf(ctx context.Context, python string) string {
	path, err := exec.LookPath(python)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return ""
	}
	// A folder torch in the current folder is not an installed one. What a sitecustomize prints
	// comes before the path.
	cmd := exec.Command(path, "-c", `
import sys
sys.path[:] = [p for p in sys.path if p and p != "/"]
import importlib.util, os
spec = importlib.util.find_spec("torch")
if spec and spec.origin: print("\n" + os.path.dirname(os.path.abspath(spec.origin)))`)
	cmd.Dir = "/"
	out, err := output(ctx, cmd)
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	folder := lines[len(lines)-1]
	library := filepath.Join(folder, "lib/libtorch_cpu.so")
	if err != nil || !filepath.IsAbs(folder) || sizeOf(library) == 0 {
		return ""
	}
	// In an environment of conda these files are links to those of the environment, and only there
	// does LibTorch find its libraries. In a venv of uv they may be links too, and there it is the
	// reverse.
	real, err := filepath.EvalSymlinks(library)
	if err != nil {
		return folder
	}
	missing, _ := unresolved(ctx, library)
	missingThere, _ := unresolved(ctx, real)
	if above := filepath.Dir(filepath.Dir(real)); len(missing) > 0 && len(missingThere) == 0 && isFolder(filepath.Join(above, "include/ATen")) {
		return above
	}
	return folder
}

// A program that is asked something is given up after this long.
const answerTime = time.Minute

// output runs a program and returns what it prints. It does not wait for a process that the program
// has left behind.
func output(ctx context.Context, cmd *exec.Cmd) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	bound := exec.CommandContext(ctx, cmd.Path, cmd.Args[1:]...)
	bound.Env, bound.Dir, bound.WaitDelay = cmd.Env, cmd.Dir, 2*time.Second
	out, err := bound.Output()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil
	}
	return out, err
}
