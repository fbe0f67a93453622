package distributed

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Open MPI starts the ranks, which find their places by its variables.
func TestOpenMPI(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("no mpirun: install openmpi-bin")
	}
	launched(t, exec.Command("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2", os.Args[0]))
}

// Slurm on one node of loopback starts the ranks. SLURM_CONF names the configuration of a Slurm
// that runs here.
func TestSlurm(t *testing.T) {
	if os.Getenv("SLURM_CONF") == "" {
		t.Skip("no Slurm: set SLURM_CONF to the configuration of one that runs here")
	}
	launched(t, exec.Command("srun", "-n", "2", "--overcommit", os.Args[0]))
}

// launched runs a command that starts two ranks with the role "finish".
func launched(t *testing.T, c *exec.Cmd) {
	t.Helper()
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "MASTER_ADDR" && name != "MASTER_PORT" && name != "RANK" && name != "WORLD_SIZE" {
			c.Env = append(c.Env, v)
		}
	}
	c.Env = append(c.Env, roleVariable+"=finish", timeoutVariable+"=20s", "OMP_NUM_THREADS=1")
	timer := time.AfterFunc(time.Minute, func() { c.Process.Kill() })
	defer timer.Stop()
	out, err := c.CombinedOutput()
	if err != nil || strings.Count(string(out), "step 9\n") != 2 {
		t.Errorf("%s: %v\n%s", filepath.Base(c.Path), err, out)
	}
}

// The variables that Kubeflow's operator gives to the pods of examples/train/deploy join two ranks.
// Each pod is alone on its machine, so both have the local rank 0.
func TestJoin_PyTorchJob(t *testing.T) {
	port := strconv.Itoa(freePort(t))
	var ranks []*process
	for i := range 2 {
		ranks = append(ranks, startRank(t, "finish", 10*time.Second,
			"PYTHONUNBUFFERED=1", "MASTER_ADDR=localhost", "MASTER_PORT="+port, "WORLD_SIZE=2", "RANK="+strconv.Itoa(i), "LOCAL_RANK=",
			"PET_NNODES=2", "PET_NPROC_PER_NODE=auto", "PET_NODE_RANK="+strconv.Itoa(i), "PET_MASTER_ADDR=localhost", "PET_MASTER_PORT="+port))
	}
	for i, p := range ranks {
		expect(t, i, p.await(t, 30*time.Second), "step 9")
	}
}
