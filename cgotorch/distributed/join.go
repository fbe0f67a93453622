package distributed

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// Options are the options of [Join].
type Options struct {
	// Device is this rank's device: "auto", "cpu", "cuda" or "cuda:N". "auto" and "" mean
	// cuda:LOCAL_RANK, and the CPU on a machine without CUDA. "cuda" means cuda:LOCAL_RANK alone.
	Device string
	// Timeout bounds how long the ranks wait for one that makes no collective or gives no sign of
	// life. Then they fail. 0 means 30 s. Choose it longer than a rank may be busy alone, such as
	// with a test or with a checkpoint.
	Timeout time.Duration
	// JoinTimeout bounds how long Join waits for the other ranks, and then once more how long it
	// takes to connect them. 0 means Timeout.
	JoinTimeout time.Duration
}

// Note [One rank a GPU]
//
// A rank uses cuda:LOCAL_RANK. PyTorchJob of Kubernetes and a shell give no LOCAL_RANK. It is then
// 0, because each pod usually sees its own GPUs alone. If two ranks of a machine then have the same
// GPU, Join refuses them, since NCCL would hang.

// Join makes this process a rank of the group that the launcher has started. It waits for the other
// ranks. Without a launcher it returns a group of one rank and waits for nothing.
//
// The launcher is found by its variables: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and
// LOCAL_RANK if it is there, which torchrun, PyTorchJob and a shell set; else those of srun; else
// those of Open MPI. Rank 0 serves the store of the run on MASTER_ADDR's interface, unless torchrun
// does.
//
// Join fails if a variable is missing or wrong, if the store cannot be reached, if ranks are
// missing after JoinTimeout, if two ranks have different versions of LibTorch, and if two ranks use
// one GPU. When ctx ends it fails with its cause. The caller must Close the group.
func Join(ctx context.Context, o Options) (*Group, error) {
	g, err := join(ctx, o, os.Getenv)
	if err != nil {
		return nil, fmt.Errorf("distributed: %w", err)
	}
	return g, nil
}

func join(ctx context.Context, o Options, env func(string) string) (*Group, error) {
	if err := inside.Core.Ready(); err != nil {
		return nil, err
	}
	p, err := placeOf(env)
	if err != nil {
		return nil, err
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	if o.JoinTimeout <= 0 {
		o.JoinTimeout = o.Timeout
	}
	g := &Group{rank: p.rank, world: p.world, local: p.local, localWorld: 1, timeout: o.Timeout, failed: make(chan struct{})}
	if g.device, err = deviceOf(p, o); err != nil {
		return nil, err
	}
	if g.alone = p.alone; g.alone {
		return g, nil
	}
	waiting, cancel := context.WithTimeoutCause(ctx, o.JoinTimeout, fmt.Errorf("after %v", o.JoinTimeout))
	defer cancel()
	if g.store, err = openStore(waiting, p, o.JoinTimeout); err != nil {
		return nil, fmt.Errorf("rank %d of %d: %w", p.rank, p.world, err)
	}
	if err = g.meet(ctx, waiting, p, o); err != nil {
		g.fail("it could not join: %v", err)
		g.Close()
		return nil, fmt.Errorf("rank %d of %d: %w", p.rank, p.world, err)
	}
	return g, nil
}

func deviceOf(p place, o Options) (cgotorch.Device, error) {
	n, _ := cgotorch.CUDACount()
	if own := o.Device == "" || o.Device == "auto" || o.Device == "cuda"; !own || n == 0 {
		device, err := cgotorch.ParseDevice(cmp.Or(o.Device, "auto"))
		if err != nil {
			return device, err
		}
		return device, device.Check()
	}
	if p.local >= n {
		return cgotorch.CPU, fmt.Errorf("rank %d has LOCAL_RANK %d, and this process sees %d GPUs: let each process see all GPUs of its machine (srun: --gpus-per-node), and start one a GPU: %w", p.rank, p.local, n, cgotorch.ErrNoDevice)
	}
	return cgotorch.CUDA(p.local), nil
}

// info is what a rank tells of itself.
type info struct {
	LibTorch string
	Host     string
	Boot     string // tells two machines with one host name apart
	PID      int
	Device   string
	Visible  string // CUDA_VISIBLE_DEVICES, which gives the device its number
	Files    string // the mount namespace: two containers of a machine may give one number to two devices
	World    int
	foreign  bool
}

func (i info) String() string {
	if i.foreign {
		return "Python"
	}
	return fmt.Sprintf("%s, process %d", i.Host, i.PID)
}

// meet waits for the other ranks while `waiting` lasts. It compares the ranks, and makes the group
// of NCCL or Gloo. To connect has JoinTimeout once more. The monitor runs by then, and notices a
// lost rank.
func (g *Group) meet(ctx, waiting context.Context, p place, o Options) error {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty on a system without it
	files, _ := os.Readlink("/proc/self/ns/mnt")
	own := info{LibTorch: cgotorch.LibTorchVersion(), Host: host, Boot: string(boot), PID: os.Getpid(), Device: g.device.String(), Visible: os.Getenv("CUDA_VISIBLE_DEVICES"), Files: files, World: g.world}
	text, err := json.Marshal(own)
	if err != nil {
		return err
	}
	key := fmt.Sprint("rank/", g.rank)
	if other, taken, err := g.store.get(waiting, key); err != nil {
		return err
	} else if taken {
		return fmt.Errorf("another process has joined as rank %d already (%.200s): give each process its own RANK: %w", g.rank, other, cgotorch.ErrInvalidArgument)
	}
	if err := g.store.set(waiting, key, string(text)); err != nil {
		return err
	}
	ranks, err := g.arrivals(waiting, own, p.host)
	if err != nil {
		return err
	}
	for i, r := range ranks {
		g.names = append(g.names, fmt.Sprintf("rank %d (%v)", i, r))
		g.foreign = append(g.foreign, r.foreign)
	}
	g.localWorld = 0
	for _, r := range ranks {
		if r.Host == own.Host && r.Boot == own.Boot {
			g.localWorld++
		}
	}
	if err := compatible(ranks, g.names); err != nil {
		return err
	}
	if err := g.monitor.start(waiting, g, p, min(o.Timeout, o.JoinTimeout)/2); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.JoinTimeout, fmt.Errorf("after %v", o.JoinTimeout))
	defer cancel()
	ctx, done := g.whileWell(ctx)
	defer done()
	connect := g.joinGloo
	if g.device.IsCUDA() {
		connect = g.joinNCCL
	}
	if err := connect(ctx); err != nil {
		return err
	}
	return g.allConnected(ctx)
}

// arrivals waits for all ranks. The store is at `host`.
func (g *Group) arrivals(ctx context.Context, own info, host string) ([]info, error) {
	ranks := make([]info, g.world)
	for i := range ranks {
		text, err := g.store.await(ctx, fmt.Sprint("rank/", i))
		if err != nil {
			if ctx.Err() == nil {
				return nil, fmt.Errorf("%s, which serves the store of the run, is gone: rank %d had not joined: %w", g.store.server, i, err)
			}
			brief, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			var missing []string
			for k := i; k < g.world && len(missing) < 8; k++ {
				if _, found, err := g.store.get(brief, fmt.Sprint("rank/", k)); err == nil && !found {
					missing = append(missing, fmt.Sprint(k))
				}
			}
			if len(missing) == 0 {
				return nil, fmt.Errorf("%s, which serves the store of the run, does not answer any more: rank %d had not joined: %w", g.store.server, i, err)
			}
			reach := ""
			if here := loopback(brief, host); here != "" {
				reach = fmt.Sprintf(" (if they are on other machines: %s is %s here, which only this machine reaches; set MASTER_ADDR to another address)", host, here)
			}
			return nil, fmt.Errorf("of %d ranks these have not joined: %s: start them too, or set WORLD_SIZE to the number of processes%s: %w", g.world, strings.Join(missing, ", "), reach, err)
		}
		if !strings.HasPrefix(text, "{") { // a process with torch.distributed tells its version alone
			ranks[i] = info{LibTorch: text, World: g.world, Device: own.Device, foreign: true}
		} else if err := json.Unmarshal([]byte(text), &ranks[i]); err != nil {
			return nil, fmt.Errorf("rank %d has told %.60q of itself: %w", i, text, err)
		}
	}
	return ranks, nil
}

// compatible refuses ranks that cannot work together.
func compatible(ranks []info, names []string) error {
	release := func(version string) string { before, _, _ := strings.Cut(version, "+"); return before }
	gpus := map[string]int{}
	for i, r := range ranks {
		switch first := ranks[0]; {
		case release(r.LibTorch) != release(first.LibTorch):
			return fmt.Errorf("%s has LibTorch %s and %s has %s: all ranks need the same version", names[0], first.LibTorch, names[i], r.LibTorch)
		case r.World != first.World:
			return fmt.Errorf("%s was started as one of %d ranks and %s as one of %d: WORLD_SIZE must be equal", names[0], first.World, names[i], r.World)
		case r.foreign && strings.HasPrefix(r.Device, "cuda"):
			return fmt.Errorf("%s has torch.distributed, which can join over Gloo alone: set Options.Device to cpu on the ranks of Go: %w", names[i], cgotorch.ErrUnsupported)
		case strings.HasPrefix(r.Device, "cuda") != strings.HasPrefix(first.Device, "cuda"):
			return fmt.Errorf("%s is on %s and %s on %s: all ranks must be on GPUs, or all on CPUs (Options.Device)", names[0], first.Device, names[i], r.Device)
		}
		if strings.HasPrefix(r.Device, "cuda") {
			gpu := fmt.Sprint(r.Host, " ", r.Boot, " ", r.Files, " ", r.Visible, " ", r.Device) // of two containers with one GPU, NCCL tells
			if other, taken := gpus[gpu]; taken {
				return fmt.Errorf("%s and %s both use %s: give each its own LOCAL_RANK or CUDA_VISIBLE_DEVICES, or start one process a GPU: %w", names[other], names[i], r.Device, cgotorch.ErrInvalidArgument)
			}
			gpus[gpu] = i
		}
	}
	return nil
}
