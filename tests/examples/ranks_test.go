package examples

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
)

// longVariable is an environment variable. When it is set, the tests of several ranks take their time.
const longVariable = "STREAMTORCH_TEST_RANKS"

// A rank is one process of examples/train.
type rank struct {
	*exec.Cmd
	out   bytes.Buffer // standard output and standard error
	ended chan struct{}
}

// startRanks starts examples/train as ranks of one group. `more` are flags of the last rank alone.
func startRanks(t *testing.T, world int, args []string, more ...string) []*rank {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	l.Close()
	var ranks []*rank
	for i := range world {
		if i == world-1 {
			args = append(args[:len(args):len(args)], more...)
		}
		r := &rank{Cmd: exec.Command(filepath.Join(bin, "train"), args...), ended: make(chan struct{})}
		r.Env = append(os.Environ(), "RANK="+strconv.Itoa(i), "WORLD_SIZE="+strconv.Itoa(world), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port, "OMP_NUM_THREADS=1")
		r.Stdout, r.Stderr = &r.out, &r.out
		if err := r.Start(); err != nil {
			t.Fatal(err)
		}
		go func() {
			r.Wait()
			close(r.ended)
		}()
		t.Cleanup(func() {
			r.Process.Kill()
			<-r.ended
		})
		ranks = append(ranks, r)
	}
	return ranks
}

// The method `await` waits for the end of the rank. It returns its exit status and its last line.
func (r *rank) await(t *testing.T, most time.Duration) (status int, last string) {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(most):
		t.Errorf("rank with %v has not ended after %v", r.Env[len(r.Env)-5], most)
		r.Process.Kill()
		<-r.ended
		return -1, ""
	}
	lines := strings.Split(strings.TrimSpace(r.out.String()), "\n")
	return r.ProcessState.ExitCode(), lines[len(lines)-1]
}

// succeedRanks runs the ranks to their end.
func succeedRanks(t *testing.T, world int, args []string) {
	t.Helper()
	for i, r := range startRanks(t, world, args) {
		if status, last := r.await(t, 2*time.Minute); status != 0 {
			t.Fatalf("rank %d ended with %d: %s", i, status, last)
		}
	}
}

// whole fails unless the checkpoint can be read to its end. It reports whether it is there.
func whole(t *testing.T, out string) bool {
	t.Helper()
	path := filepath.Join(out, "checkpoint.safetensors")
	f, err := safetensors.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		t.Errorf("the checkpoint: %v", err)
		return false
	}
	defer f.Close()
	for _, info := range f.Tensors() {
		if _, err := f.Read(info.Name); err != nil {
			t.Errorf("the checkpoint: %v", err)
		}
	}
	return true
}

// Whichever rank is killed at whichever moment, the others end and name it, and the checkpoint is
// whole. A moment of the join lets them wait for 30 s, so the short test waits for the first steps.
func TestTrainRanks_Killed(t *testing.T) {
	data := part(t, 400, 64, nil)
	long := os.Getenv(longVariable) != ""
	worlds, moments := []int{2}, 1
	if long {
		worlds, moments = []int{2, 4}, 20
	}
	random := rand.New(rand.NewSource(24))
	for _, world := range worlds {
		for victim := range world {
			t.Run(fmt.Sprintf("%d of %d", victim, world), func(t *testing.T) {
				if long {
					t.Parallel()
				}
				longest, saved, joining := time.Duration(0), 0, 0
				for range moments {
					out := filepath.Join(t.TempDir(), "run")
					ranks := startRanks(t, world, trainArgs(data, out, "-epochs", "1000"))
					moment := time.Duration(random.Int63n(int64(6 * time.Second)))
					if !long {
						awaitLog(out, 5)
						moment /= 10
					}
					time.Sleep(moment)
					ranks[victim].Process.Kill()
					began := time.Now()
					for i, r := range ranks {
						status, last := r.await(t, 45*time.Second)
						if i == victim {
							continue
						}
						longest = max(longest, time.Since(began))
						joined := true
						for _, text := range []string{"have not joined", "does not answer (rank 0 serves it"} {
							joined = joined && !strings.Contains(last, text)
						}
						if !joined {
							joining++
						}
						if status != 1 || joined && !strings.Contains(last, fmt.Sprint("rank ", victim)) {
							t.Errorf("rank %d of %d, after a kill of %d at %v: status %d\n%s", i, world, victim, moment, status, r.out.String())
						}
					}
					if whole(t, out) {
						saved++
					}
				}
				t.Logf("%d moments: the others ended within %v; %d left a checkpoint, %d ranks ended in the join", moments, longest.Round(time.Millisecond), saved, joining)
			})
		}
	}
}

// awaitLog waits until the log in the folder `out` has some lines, or for a minute.
func awaitLog(out string, lines int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if text, _ := os.ReadFile(filepath.Join(out, "log.jsonl")); bytes.Count(text, []byte("\n")) >= lines {
			return
		}
	}
}

// A signal to one rank stops all after the same step. The ranks that resume have the losses of a run
// without an interruption, whichever rank got the signal.
func TestTrainRanks_Interrupted(t *testing.T) {
	data := part(t, 600, 64, nil)
	undisturbed := filepath.Join(t.TempDir(), "run")
	succeedRanks(t, 2, trainArgs(data, undisturbed))
	want := losses(t, undisturbed)
	for victim := range 2 {
		out := filepath.Join(t.TempDir(), "run")
		ranks := startRanks(t, 2, trainArgs(data, out))
		awaitLog(out, 10)
		ranks[victim].Process.Signal(syscall.SIGINT)
		for i, r := range ranks {
			status, last := r.await(t, 30*time.Second)
			if expected := map[bool]int{true: 130, false: 143}[i == victim]; status != expected || !strings.Contains(last, "continue with -resume") {
				t.Errorf("rank %d, after a signal to %d: status %d, want %d\n%s", i, victim, status, expected, r.out.String())
			}
		}
		if had := len(losses(t, out)); had >= len(want) {
			t.Fatal("the run was over before it could be interrupted")
		}
		succeedRanks(t, 2, []string{"-out", out, "-resume", "-log-steps"})
		sameLosses(t, out, want)
	}
}

// Ranks with other settings than rank 0 are refused before the first step, with the setting.
func TestTrainRanks_Differ(t *testing.T) {
	data := part(t, 200, 64, nil)
	for _, c := range []struct {
		more []string
		want string
	}{
		{[]string{"-batch", "64"}, "batch is 32 there and 64 here"},
		{[]string{"-model", "resnet20"}, "different models"},
		{[]string{"-dtype", "bfloat16"}, "dtype is float32 there and bfloat16 here"},
		{[]string{"-limit", "100"}, "limit"},
	} {
		ranks := startRanks(t, 2, trainArgs(data, filepath.Join(t.TempDir(), "run")), c.more...)
		for i, r := range ranks {
			status, last := r.await(t, 30*time.Second)
			if want := []string{"see its error", c.want}[i]; status != 1 || !strings.Contains(last, want) {
				t.Errorf("%v: rank %d: status %d, %q is not in %q", c.more, i, status, want, last)
			}
		}
	}
}
