package distributed

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// place is a rank's place in the run, as the launcher has put it into the environment.
type place struct {
	launcher    string // for messages
	rank, world int
	local       int // the number of the rank on its machine
	host, port  string
	served      bool   // the launcher itself serves the store
	attempt     string // the number of the run's start, after failures
	alone       bool   // there is no launcher
}

const defaultPort = "29500"

// placeOf reads the environment. Several launchers may have left variables: the innermost counts.
func placeOf(env func(string) string) (place, error) {
	switch {
	case env("RANK") != "" || env("WORLD_SIZE") != "":
		return placeOfTorch(env)
	case env("SLURM_STEP_ID") != "" && env("SLURM_PROCID") != "":
		return placeOfSlurm(env)
	case env("OMPI_COMM_WORLD_RANK") != "":
		return placeOfOpenMPI(env)
	}
	for _, name := range []string{"LOCAL_RANK", "MASTER_ADDR"} {
		if env(name) != "" {
			return place{}, fmt.Errorf("%s is set, and RANK and WORLD_SIZE are not: set them too, or unset it for a process alone", name)
		}
	}
	return place{alone: true, world: 1}, nil
}

// placeOfTorch reads the variables of torchrun. PyTorchJob of Kubernetes sets the same ones,
// without LOCAL_RANK.
func placeOfTorch(env func(string) string) (place, error) {
	p := place{launcher: "RANK", host: env("MASTER_ADDR"), port: env("MASTER_PORT")}
	if env("TORCHELASTIC_RUN_ID") != "" {
		p.launcher = "torchrun"
		p.attempt = env("TORCHELASTIC_RESTART_COUNT")
		p.served = env("TORCHELASTIC_USE_AGENT_STORE") == "True"
	}
	if err := p.numbers(env, "RANK", "WORLD_SIZE", "LOCAL_RANK"); err != nil {
		return p, err
	}
	return p.checked()
}

func placeOfSlurm(env func(string) string) (place, error) {
	p := place{launcher: "srun", host: env("MASTER_ADDR"), port: env("MASTER_PORT")}
	tasks := "SLURM_STEP_NUM_TASKS"
	if env(tasks) == "" {
		tasks = "SLURM_NTASKS"
	}
	if err := p.numbers(env, "SLURM_PROCID", tasks, "SLURM_LOCALID"); err != nil {
		return p, err
	}
	if p.host == "" {
		nodes := env("SLURM_STEP_NODELIST")
		if nodes == "" {
			nodes = env("SLURM_JOB_NODELIST")
		}
		if p.host = firstNode(nodes); p.host == "" {
			return p, fmt.Errorf("SLURM_STEP_NODELIST=%.60q names no node: set MASTER_ADDR to the address of rank 0", nodes)
		}
	}
	if p.port == "" {
		// All tasks know the numbers of their job and step, and two of them seldom meet on a port.
		job, _ := strconv.ParseUint(env("SLURM_JOB_ID"), 10, 64)
		step, _ := strconv.ParseUint(env("SLURM_STEP_ID"), 10, 64)
		p.port = strconv.FormatUint(20000+(job*16+step%16)%10000, 10)
	}
	return p.checked()
}

func placeOfOpenMPI(env func(string) string) (place, error) {
	p := place{launcher: "mpirun", host: env("MASTER_ADDR"), port: env("MASTER_PORT")}
	if err := p.numbers(env, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"); err != nil {
		return p, err
	}
	if p.host == "" && env("OMPI_COMM_WORLD_LOCAL_SIZE") == env("OMPI_COMM_WORLD_SIZE") {
		p.host = "127.0.0.1"
	}
	if p.port == "" {
		p.port = defaultPort
	}
	return p.checked()
}

// numbers reads rank, world and the rank on the machine. The last is 0 if there is no variable for
// it: see Note [One rank a GPU].
func (p *place) numbers(env func(string) string, rank, world, local string) error {
	read := func(name string, least int, to *int) error {
		n, err := strconv.Atoi(env(name))
		if err != nil || n < least {
			if env(name) == "" {
				return fmt.Errorf("%s is set by %s, and %s is not: set both", p.launcher, p.launcher, name)
			}
			return fmt.Errorf("%s=%.40q is not a number from %d up", name, env(name), least)
		}
		*to = n
		return nil
	}
	if env(rank) == "" {
		return fmt.Errorf("%s is set and %s is not: each process needs its own %s, from 0 to %s-1", world, rank, rank, world)
	}
	if env(world) == "" {
		return fmt.Errorf("%s is set and %s is not: it is the number of processes", rank, world)
	}
	if err := read(rank, 0, &p.rank); err != nil {
		return err
	}
	if err := read(world, 1, &p.world); err != nil {
		return err
	}
	if p.rank >= p.world {
		return fmt.Errorf("%s=%d and %s=%d: ranks are 0 to %d", rank, p.rank, world, p.world, p.world-1)
	}
	if env(local) != "" {
		return read(local, 0, &p.local)
	}
	return nil
}

// checked fills in and checks the address of the store.
func (p place) checked() (place, error) {
	if p.host == "" && p.world == 1 {
		p.alone = true
		return p, nil
	}
	if p.host == "" {
		return p, fmt.Errorf("MASTER_ADDR is not set: it is the address of rank 0, which all %d processes share", p.world)
	}
	if p.port == "" {
		return p, fmt.Errorf("MASTER_PORT is not set: it is a free port of %.60s, which all %d processes share", p.host, p.world)
	}
	if n, err := strconv.Atoi(p.port); err != nil || n < 1 || n > 65535 {
		return p, fmt.Errorf("MASTER_PORT=%.40q is not a port from 1 to 65535", p.port)
	}
	return p, nil
}

func (p place) address() string { return net.JoinHostPort(p.host, p.port) }

// firstNode returns the first name in a list of Slurm's, such as "gpu[03-05,9],cpu1".
func firstNode(list string) string {
	name, rest, ranges := strings.Cut(list, "[")
	if comma := strings.IndexByte(name, ','); comma >= 0 {
		return name[:comma]
	}
	if !ranges {
		return name
	}
	numbers, after, _ := strings.Cut(rest, "]")
	first, _, _ := strings.Cut(numbers, ",")
	first, _, _ = strings.Cut(first, "-")
	after, _, _ = strings.Cut(after, ",")
	if strings.Contains(after, "[") { // a second range in the same name
		return name + first + firstNode(after)
	}
	return name + first + after
}
