package distributed

import (
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// pythonWithTorch returns a Python that has the PyTorch of this library's LibTorch. It skips the
// test where there is none.
func pythonWithTorch(t *testing.T) string {
	t.Helper()
	python := torchtest.Python(t, "torch")
	out, err := exec.Command(python, "-c", "import torch; print(torch.__version__)").Output()
	if err != nil {
		t.Skipf("%s has no PyTorch: %v", python, err)
	}
	release := func(version string) string {
		before, _, _ := strings.Cut(version, "+")
		return strings.TrimSpace(before)
	}
	if got, want := release(string(out)), release(cgotorch.LibTorchVersion()); got != want {
		t.Skipf("%s has PyTorch %s, and this is LibTorch %s", python, got, want)
	}
	return python
}

// pythonRank joins the store of the run, tells its version, and makes the collectives of
// "meetPython".
const pythonRank = `
import os, sys, torch, torch.distributed as distributed
store, rank, world = next(distributed.rendezvous("env://"))
store.set(f"streamtorch/rank/{rank}", sys.argv[1] or torch.__version__)
distributed.init_process_group("gloo", store=distributed.PrefixStore("default_pg", store), rank=rank, world_size=world)
t = torch.full((5,), float(rank + 1), dtype=torch.float64)
distributed.all_reduce(t)
b = torch.arange(3) if rank == 0 else torch.zeros(3, dtype=torch.int64)
distributed.broadcast(b, 0)
print("python:", t.tolist(), b.tolist(), flush=True)
distributed.destroy_process_group()
`

func init() {
	roles["meetPython"] = func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error {
			t := x.Full(cgotorch.Float64, g.Rank()+1, 5)
			g.AllReduce(x, t, Sum)
			b := x.MulScalar(x.Arange(cgotorch.Int64, 0, 3, 1), max(0, 1-g.Rank()))
			g.Broadcast(x, b, 0)
			fmt.Println("go:", cgotorch.ToSlice[float64](x, t), cgotorch.ToSlice[int64](x, b))
			return nil
		})
	}
}

// A process with torch.distributed is a rank beside ranks of this library.
func TestPython_SameWorld(t *testing.T) {
	python := pythonWithTorch(t)
	for _, goRank := range []int{0, 1} {
		t.Run(fmt.Sprint("Go is rank ", goRank), func(t *testing.T) {
			port := freePort(t)
			p := startRank(t, "meetPython", 20*time.Second, rankEnv(port, goRank, 2)...)
			q := exec.Command(python, "-c", pythonRank, "")
			q.Env = append(os.Environ(), rankEnv(port, 1-goRank, 2)...)
			out, err := q.CombinedOutput()
			if err != nil || !strings.Contains(string(out), "python: [3.0, 3.0, 3.0, 3.0, 3.0] [0, 1, 2]") {
				t.Errorf("%v\n%s", err, out)
			}
			expect(t, goRank, p.await(t, 60*time.Second), "go: [3 3 3 3 3] [0 1 2]")
		})
	}
}

// A Python with another version of PyTorch is refused.
func TestPython_OtherVersion(t *testing.T) {
	python := pythonWithTorch(t)
	port := freePort(t)
	p := startRank(t, "meetPython", 5*time.Second, rankEnv(port, 0, 2)...)
	q := exec.Command(python, "-c", pythonRank, "2.3.1+cpu")
	q.Env = append(os.Environ(), rankEnv(port, 1, 2)...)
	must.Do(t, q.Start())
	defer q.Wait()
	defer q.Process.Kill()
	expect(t, 0, p.await(t, 60*time.Second), "has LibTorch 2.", "2.3.1+cpu", "all ranks need the same version")
}

// torchrun starts the ranks, and serves their store itself or not.
func TestTorchrun(t *testing.T) {
	python := pythonWithTorch(t)
	for _, flags := range [][]string{{"--standalone"}, {"--master-addr", "127.0.0.1", "--master-port", fmt.Sprint(freePort(t))}} {
		t.Run(flags[0], func(t *testing.T) {
			args := append([]string{"-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"}, flags...)
			c := exec.Command(python, append(args, os.Args[0])...)
			c.Env = append(os.Environ(), roleVariable+"=finish", timeoutVariable+"=20s", "OMP_NUM_THREADS=1")
			out, err := c.CombinedOutput()
			if err != nil || strings.Count(string(out), "step 9\n") != 2 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
