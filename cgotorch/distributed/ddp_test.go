package distributed

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
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// ddp trains the net of `classifier` with DistributedDataParallel, or in one process, and prints
// the losses. The file has the weights, then the images and labels of each step, as float64.
const ddp = `
import json, os, sys, torch, torch.distributed as distributed
from torch import nn
path, steps, n = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
dtype, cuda = getattr(torch, sys.argv[4]), sys.argv[5] == "cuda"
device = f"cuda:{rank}" if cuda else "cpu"
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.deterministic = True
m = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
	nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)).to(device, dtype)
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
	distributed.init_process_group("nccl" if cuda else "gloo")
	m = nn.parallel.DistributedDataParallel(m)
opt = torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9)
losses = []
for k in range(steps):
	images, labels = take(n, 3, 8, 8).to(device, dtype), take(n).long().to(device)
	part = slice(rank * n // world, (rank + 1) * n // world)
	loss = nn.functional.cross_entropy(m(images[part]), labels[part])
	opt.zero_grad()
	loss.backward()
	opt.step()
	total = loss.detach().double()
	if world > 1:
		distributed.all_reduce(total)
	losses.append(total.item() / world)
if rank == 0:
	print(json.dumps(losses), flush=True)
if world > 1: # gloo's threads may outlive the interpreter, which then aborts
	distributed.barrier()
	os._exit(0)
`

// ddpCase is a training of the net of `classifier` by two ranks, here and in Python.
type ddpCase struct {
	steps, n     int // of the batch of both ranks
	dtype        cgotorch.DType
	synchronised bool      // the batch norms
	values       []float64 // see the script
	path         string    // the file of the values
}

func newDDPCase(t *testing.T, steps int) ddpCase {
	c := ddpCase{steps: steps, n: 16, dtype: cgotorch.Float64, path: filepath.Join(t.TempDir(), "values")}
	torchtest.Do(t, cgotorch.CPU, func(x *cgotorch.Exec) {
		m := classifier(t, x, 7, cgotorch.Float64)
		defer nn.Close(m)
		for _, p := range nn.Parameters(m) {
			c.values = append(c.values, cgotorch.ToSlice[float64](x, x.Detach(p))...)
		}
		for k := range steps {
			images, labels := batches(t, x, k, c.n, cgotorch.Float64)
			c.values = append(c.values, cgotorch.ToSlice[float64](x, images)...)
			c.values = append(c.values, cgotorch.ToSlice[float64](x, x.To(labels, cgotorch.Float64))...)
		}
	})
	var file bytes.Buffer
	must.Do(t, binary.Write(&file, binary.NativeEndian, c.values))
	must.Do(t, os.WriteFile(c.path, file.Bytes(), 0o644))
	return c
}

// Two ranks have the losses of DistributedDataParallel. With synchronised batch norms they have
// those of one process with the batches of both, because PyTorch has no SyncBatchNorm on the CPU.
func TestGradients_EqualDDP(t *testing.T) {
	if testing.Short() {
		t.Skip("the ranks do what those of TestGradients_EqualOneProcess do")
	}
	torchtest.CheckLeaks(t)
	python := pythonWithTorch(t)
	c := newDDPCase(t, 20)
	for _, synchronised := range []bool{false, true} {
		t.Run(fmt.Sprint("synchronised=", synchronised), func(t *testing.T) {
			c, world := c, 2
			if c.synchronised = synchronised; synchronised {
				world = 1
			}
			want := c.python(t, python, world, false)
			succeed(t, 2, func(g *Group, x *cgotorch.Exec) {
				got := c.train(t, x, g)
				d := farthest(got, want)
				t.Logf("rank %d: the losses differ by %g", g.Rank(), d)
				if !(d <= 1e-9) {
					t.Errorf("rank %d: got %v, want %v", g.Rank(), got, want)
				}
			})
		})
	}
}

// The same on two GPUs, where two runs of DistributedDataParallel are compared too.
func TestGradients_EqualDDPCUDA(t *testing.T) {
	torchtest.CheckLeaks(t)
	if severalGPUs(t) != 2 {
		t.Skip("the batch is for two ranks")
	}
	torchtest.Deterministic(t)
	torchtest.NoTF32(t)
	python := pythonWithTorch(t)
	c := newDDPCase(t, 100)
	for _, dtype := range []cgotorch.DType{cgotorch.Float64, cgotorch.Float32} {
		t.Run(dtype.String(), func(t *testing.T) {
			c := c
			c.dtype = dtype
			want, again := c.python(t, python, 2, true), c.python(t, python, 2, true)
			onGPUs(t, Options{}, func(g *Group, s *cgotorch.Stream) error {
				return s.Do(func(x *cgotorch.Exec) error {
					got := c.train(t, x, g)
					first, later := farthest(got[:10], want[:10]), farthest(got, want)
					t.Logf("rank %d: the losses differ by %g in 10 steps, by %g in %d; two runs of PyTorch by %g", g.Rank(), first, later, c.steps, farthest(want, again))
					if dtype == cgotorch.Float64 && !(later <= 1e-9) || !(first <= 1e-5) {
						t.Errorf("rank %d: got %v, want %v", g.Rank(), got, want)
					}
					return nil
				})
			})
		})
	}
}

// python runs the script `ddp` as some ranks, and returns its losses.
func (c ddpCase) python(t *testing.T, python string, world int, cuda bool) (losses []float64) {
	port := freePort(t)
	device := "cpu"
	if cuda {
		device = "cuda"
	}
	texts := make([][]byte, world)
	var all sync.WaitGroup
	for i := range world {
		all.Add(1)
		go func() {
			defer all.Done()
			command := exec.Command(python, "-c", strings.ReplaceAll(ddp, "\t", "    "), c.path, fmt.Sprint(c.steps), fmt.Sprint(c.n), c.dtype.String(), device)
			var errs bytes.Buffer
			command.Stderr = &errs
			if command.Env = os.Environ(); world > 1 {
				command.Env = append(command.Env, rankEnv(port, i, world)...)
			}
			var err error
			if texts[i], err = command.Output(); err != nil {
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

// train is the training as a rank.
func (c ddpCase) train(t *testing.T, x *cgotorch.Exec, g *Group) (losses []float64) {
	m := classifier(t, x, 7, c.dtype)
	defer nn.Close(m)
	values := c.values
	take := func(shape ...int64) *cgotorch.Tensor {
		count := int64(1)
		for _, n := range shape {
			count *= n
		}
		tensor := x.Reshape(cgotorch.FromSlice(x, values[:count]), shape...)
		values = values[count:]
		return tensor
	}
	for _, p := range nn.Parameters(m) {
		x.NoGrad().CopyInPlace(p, take(p.Shape()...))
	}
	if c.synchronised {
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
	n := int64(c.n)
	for range c.steps {
		images, labels := x.To(take(n, 3, 8, 8), c.dtype), x.To(take(n), cgotorch.Int64)
		first, share := g.Rank()*c.n/g.World(), c.n/g.World()
		loss := nn.CrossEntropy(x, m.Forward(x, x.Narrow(images, 0, first, share)), x.Narrow(labels, 0, first, share), nn.CrossEntropyOptions{})
		opt.ZeroGrad()
		gradients.Backward(x, loss)
		opt.Step(x)
		total := x.Clone(x.To(x.Detach(loss), cgotorch.Float64))
		g.AllReduce(x, total, Mean)
		losses = append(losses, x.Item(total))
	}
	return losses
}
