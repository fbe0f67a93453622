package distributed

import (
	"strings"
	"testing"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestPlaceOf(t *testing.T) {
	torchrun := "RANK=3 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=10.0.0.1 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_USE_AGENT_STORE=True"
	slurm := "SLURM_JOB_ID=77 SLURM_STEP_ID=1 SLURM_PROCID=5 SLURM_LOCALID=1 SLURM_STEP_NUM_TASKS=8 SLURM_NTASKS=16 SLURM_STEP_NODELIST=gpu[03-05,9],cpu1"
	for _, c := range []struct {
		name, env string
		want      place
		fails     string
	}{
		{"nothing", "", place{alone: true, world: 1}, ""},
		{"torchrun", torchrun, place{launcher: "torchrun", rank: 3, world: 8, local: 1, host: "10.0.0.1", port: "29400", served: true, attempt: "2"}, ""},
		{"PyTorchJob", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_NNODES=2", place{launcher: "RANK", rank: 1, world: 2, host: "job-master-0", port: "23456"}, ""},
		{"one rank of one", "RANK=0 WORLD_SIZE=1", place{launcher: "RANK", world: 1, alone: true}, ""},
		{"srun", slurm, place{launcher: "srun", rank: 5, world: 8, local: 1, host: "gpu03", port: "21233"}, ""},
		{"torchrun inside srun", torchrun + " " + slurm, place{launcher: "torchrun", rank: 3, world: 8, local: 1, host: "10.0.0.1", port: "29400", served: true, attempt: "2"}, ""},
		{"sbatch without srun", "SLURM_JOB_ID=77 SLURM_PROCID=0 SLURM_NTASKS=8", place{alone: true, world: 1}, ""},
		{"Open MPI", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2", place{launcher: "mpirun", rank: 1, world: 2, local: 1, host: "127.0.0.1", port: "29500"}, ""},
		{"Open MPI on two machines", "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1", place{}, "MASTER_ADDR is not set"},
		{"no rank", "WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", place{}, "WORLD_SIZE is set and RANK is not"},
		{"no world", "RANK=1 MASTER_ADDR=a MASTER_PORT=1", place{}, "RANK is set and WORLD_SIZE is not"},
		{"no address", "RANK=1 WORLD_SIZE=2 MASTER_PORT=1", place{}, "MASTER_ADDR is not set"},
		{"no port", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", place{}, "MASTER_PORT is not set"},
		{"rank too high", "RANK=2 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", place{}, "RANK=2 and WORLD_SIZE=2: ranks are 0 to 1"},
		{"rank below 0", "RANK=-1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", place{}, `RANK="-1" is not a number from 0 up`},
		{"no number", "RANK=one WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=1", place{}, `RANK="one" is not a number`},
		{"port", "RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=70000", place{}, `MASTER_PORT="70000" is not a port`},
		{"local rank", "RANK=1 WORLD_SIZE=2 LOCAL_RANK=x MASTER_ADDR=a MASTER_PORT=1", place{}, `LOCAL_RANK="x" is not a number`},
	} {
		env := map[string]string{}
		for _, v := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(v, "=")
			env[name] = value
		}
		got, err := placeOf(func(name string) string { return env[name] })
		if c.fails != "" {
			torchtest.WantError(t, err, nil, c.fails)
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v, want %+v", c.name, got, err, c.want)
		}
	}
}

func TestFirstNode(t *testing.T) {
	for list, want := range map[string]string{
		"a": "a", "a,b": "a", "gpu[03-05,9],cpu1": "gpu03", "gpu[7]": "gpu7", "b,gpu[1-2]": "b", "r[1-2]n[05-06]": "r1n05", "n[1-2].example.org,m": "n1.example.org", "": "",
	} {
		if got := firstNode(list); got != want {
			t.Errorf("%q: got %q, want %q", list, got, want)
		}
	}
}
