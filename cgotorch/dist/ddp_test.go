package dist

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// ddp trains the net of `classifier` with DistributedDataParallel, or in one process, and prints
// the losses. The file has the weights, then the images and labels of each step, as float64.
const ddp = `
import json, os, sys, torch, torch.distributed as dist
from torch import nn
path, steps, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
	nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).double()
values = torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.float64)
def take(*shape):
	global values
	count = torch.Size(shape).numel()
	first, values = values[:count], values[count:]
	return first.reshape(shape).clone()
with torch.no_grad():
	for name, p in m.named_parameters():
		p.copy_(take(*p.shape))
if world > 1:
	dist.init_process_group("gloo")
	m = nn.parallel.DistributedDataParallel(m)
opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)
losses = []
for k in range(steps):
	images, labels = take(n, 3, 8, 8), take(n).long()
	part = slice(rank * n // world, (rank + 1) * n // world)
	loss = nn.functional.cross_entropy(m(images[part]), labels[part])
	opt.zero_grad()
	loss.backward()
	opt.step()
	total = loss.detach().clone()
	if world > 1:
		dist.all_reduce(total)
	losses.append(total.item() / world)
if rank == 0:
	print(json.dumps(losses))
`

// Two ranks have the losses of DistributedDataParallel. With synchronised batch norms they have
// those of one process with the batches of both, because PyTorch has no SyncBatchNorm on the CPU.
func TestGradients_EqualDDP(t *testing.T) {
	torchtest.CheckLeaks(t)
	python := pythonWithTorch(t)
	const steps, n = 20, 16
	path := filepath.Join(t.TempDir(), "values")
	var values []float64
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := classifier(t, x, 7, cgotorch.Float64)
		defer nn.Close(m)
		for _, p := range nn.Parameters(m) {
			values = append(values, cgotorch.ToSlice[float64](x, x.Detach(p))...)
		}
		for k := range steps {
			images, labels := batches(t, x, k, n, cgotorch.Float64)
			values = append(values, cgotorch.ToSlice[float64](x, images)...)
			values = append(values, cgotorch.ToSlice[float64](x, x.To(labels, cgotorch.Float64))...)
		}
	})
	var file bytes.Buffer
	if err := binary.Write(&file, binary.NativeEndian, values); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, file.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, synchronised := range []bool{false, true} {
		t.Run(fmt.Sprint("synchronised=", synchronised), func(t *testing.T) {
			world := 2
			if synchronised {
				world = 1
			}
			want := pythonLosses(t, python, world, path, fmt.Sprint(steps), fmt.Sprint(n))
			succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
				got := trainAsDDP(t, x, g, steps, n, synchronised)
				d := farthest(got, want)
				t.Logf("rank %d: the losses differ by %g", g.Rank(), d)
				if !(d <= 1e-9) {
					t.Errorf("rank %d: got %v, want %v", g.Rank(), got, want)
				}
			})
		})
	}
}

// pythonLosses runs the script `ddp` as some ranks, and returns its losses.
func pythonLosses(t *testing.T, python string, world int, args ...string) (losses []float64) {
	port := freePort(t)
	texts := make([][]byte, world)
	var all sync.WaitGroup
	for i := range world {
		all.Add(1)
		go func() {
			defer all.Done()
			c := exec.Command(python, append([]string{"-c", strings.ReplaceAll(ddp, "\t", "    ")}, args...)...)
			var errs bytes.Buffer
			c.Stderr = &errs
			if c.Env = os.Environ(); world > 1 {
				c.Env = append(c.Env, rankEnv(port, i, world)...)
			}
			var err error
			if texts[i], err = c.Output(); err != nil {
				t.Errorf("rank %d of Python: %v\n%s", i, err, errs.String())
			}
		}()
	}
	all.Wait()
	if err := json.Unmarshal(texts[0], &losses); err != nil {
		t.Fatalf("%v: %s", err, texts[0])
	}
	return losses
}

func trainAsDDP(t *testing.T, x *cgotorch.Exec, g *Group, steps, n int, synchronised bool) (losses []float64) {
	m := classifier(t, x, 7+uint64(g.Rank()), cgotorch.Float64)
	defer nn.Close(m)
	if synchronised {
		SyncBatchNorm(g, m)
	}
	opt, err := optim.NewSGD(optim.SGDOptions{LR: 0.05, Momentum: 0.9}, optim.Group{Params: nn.Parameters(m)})
	if err != nil {
		t.Error(err)
		return nil
	}
	defer opt.Close()
	gradients, err := NewGradients(x, g, m, GradientsOptions{})
	if err != nil {
		t.Error(err)
		return nil
	}
	defer gradients.Close()
	for k := range steps {
		images, labels := batches(t, x, k, n, cgotorch.Float64)
		first, share := g.Rank()*n/g.World(), n/g.World()
		loss := nn.CrossEntropy(x, m.Forward(x, x.Narrow(images, 0, first, share)), x.Narrow(labels, 0, first, share), nn.CrossEntropyOptions{})
		opt.ZeroGrad()
		gradients.Backward(x, loss)
		opt.Step(x)
		total := x.Clone(x.Detach(loss))
		g.AllReduce(x, total, Mean)
		losses = append(losses, x.Item(total))
	}
	return losses
}
