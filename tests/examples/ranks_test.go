//go:build !windows

package examples

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch/safetensors"
	"github.com/streamtorch/streamtorch/internal/must"
)

// longVariable is an environment variable. When it is set, the tests of several ranks take their
// time.
const longVariable = "STREAMTORCH_TEST_RANKS"

// some returns the first case, and all of them when longVariable is set.
func some[T any](cases ...T) []T {
	if os.Getenv(longVariable) == "" {
		return cases[:1]
	}
	return cases
}

// A rank is one process of examples/train.
type rank struct {
	*exec.Cmd
	out    bytes.Buffer // standard error
	stdout bytes.Buffer
	ended  chan struct{}
}

// startRanks starts examples/train as ranks of one group. `more` are flags of the last rank alone.
func startRanks(t *testing.T, world int, args []string, more ...string) []*rank {
	t.Helper()
	port := freePort(t)
	var ranks []*rank
	for i := range world {
		if i == world-1 {
			args = append(args[:len(args):len(args)], more...)
		}
		r := &rank{Cmd: exec.Command(filepath.Join(bin, "train"), args...), ended: make(chan struct{})}
		r.Env = append(os.Environ(), "RANK="+strconv.Itoa(i), "WORLD_SIZE="+strconv.Itoa(world), "MASTER_ADDR=127.0.0.1", "MASTER_PORT="+port)
		r.Stdout, r.Stderr = &r.stdout, &r.out
		must.Do(t, r.Start())
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

// await waits for the end of the rank. It returns its exit status and the last line of its standard
// error.
func (r *rank) await(t *testing.T, most time.Duration) (status int, last string) {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(most):
		t.Errorf("rank with %v has not ended after %v", r.Env[len(r.Env)-4], most)
		r.Process.Kill()
		<-r.ended
		return -1, ""
	}
	lines := strings.Split(strings.TrimSpace(r.out.String()), "\n")
	return r.ProcessState.ExitCode(), lines[len(lines)-1]
}

// succeedRanks runs the ranks to their end. It returns the standard output of rank 0.
func succeedRanks(t *testing.T, world int, args []string) (stdout string) {
	t.Helper()
	ranks := startRanks(t, world, args)
	for i, r := range ranks {
		if status, last := r.await(t, 2*time.Minute); status != 0 {
			t.Fatalf("rank %d ended with %d: %s", i, status, last)
		}
	}
	return ranks[0].stdout.String()
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

// Two ranks test the model that rank 0 saves: -evaluate of the checkpoint has the logged result.
// Skipped images are those of both ranks. Standard output has the documented lines alone.
func TestTrainRanks_Evaluate(t *testing.T) {
	n := 0
	data := part(t, 96, 64, func(_ string, data []byte) []byte {
		if n++; n%16 == 0 {
			return data[:len(data)-200]
		}
		return data
	})
	type result struct {
		Skipped  int
		Images   int
		Top1     float64
		TestLoss float64 `json:"test_loss"`
	}
	resultOf := func(stdout string) (r result) {
		t.Helper()
		lines := strings.Split(strings.TrimSpace(stdout), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &r); err != nil || len(lines) != 2 {
			t.Fatalf("standard output is %q: %v", stdout, err)
		}
		return r
	}
	out := filepath.Join(t.TempDir(), "run")
	trained := resultOf(succeedRanks(t, 2, trainArgs(data, out, "-model", "resnet20", "-epochs", "1", "-batch", "31", "-skip-rate", "0.3"))) // 31: each takes 16
	evaluate := []string{"-evaluate", filepath.Join(out, "checkpoint.safetensors"), "-device", "cpu"}
	one := resultOf(mustRun(t, "train", evaluate...))
	two := resultOf(succeedRanks(t, 2, evaluate))
	t.Logf("trained %+v, one rank %+v, two ranks %+v", trained, one, two)
	if trained.Skipped+one.Skipped != 10 || one.Skipped == 0 || one.Images+one.Skipped != 64 {
		t.Errorf("%d images skipped in training and %d in the test of %d, want 10 of 160 together", trained.Skipped, one.Skipped, one.Images)
	}
	for _, got := range []result{trained, two} {
		if got.Top1 != one.Top1 || math.Abs(got.TestLoss-one.TestLoss) > 1e-5 {
			t.Errorf("got %+v, want the results of %+v", got, one)
		}
	}
	if two.Skipped != one.Skipped || two.Images != one.Images {
		t.Errorf("two ranks: got %+v, want %+v", two, one)
	}
}

// The Makefile starts two ranks, which train and end.
func TestTrainRanks_Make(t *testing.T) {
	out := t.TempDir()
	cmd := exec.Command("make", "-C", "../..", "train-ddp", "ARGS=-epochs 1 -limit 512 -out "+out)
	cmd.Env = append(os.Environ(), "MASTER_PORT="+freePort(t))
	if text, err := cmd.CombinedOutput(); err != nil || !whole(t, out) {
		t.Errorf("%v\n%s", err, text)
	}
}

// Whichever rank is killed at whichever moment, the others end and name it, and the checkpoint is
// whole. A moment of the join lets them wait for 30 s, so the short test waits for the first steps.
func TestTrainRanks_Killed(t *testing.T) {
	t.Parallel() // the ranks mostly wait
	data := part(t, 400, 64, nil)
	long := os.Getenv(longVariable) != ""
	worlds, moments := []int{2}, 1
	if long {
		worlds, moments = []int{2, 4}, 20
	}
	for _, world := range worlds {
		for victim := range world {
			t.Run(fmt.Sprintf("%d of %d", victim, world), func(t *testing.T) {
				t.Parallel()
				longest, saved, joining := time.Duration(0), 0, 0
				for range moments {
					out := filepath.Join(t.TempDir(), "run")
					ranks := startRanks(t, world, trainArgs(data, out, "-epochs", "1000"))
					moment := time.Duration(rand.Int63n(int64(6 * time.Second)))
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
						for _, text := range []string{"have not joined", "does not answer (rank 0 serves it", "does not answer: rank 0 has stopped or ended"} {
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

// Rank 0 is killed while it writes its checkpoint. The earlier one stays whole, and rank 1 ends.
func TestTrainRanks_KilledInCheckpoint(t *testing.T) {
	t.Parallel()
	data := part(t, 200, 32, nil)
	moments := 1
	if os.Getenv(longVariable) != "" {
		moments = 10
	}
	for range moments {
		out := filepath.Join(t.TempDir(), "run")
		ranks := startRanks(t, 2, trainArgs(data, out, "-epochs", "1000"))
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
			_, err := os.Stat(filepath.Join(out, "checkpoint.safetensors"))
			if written, _ := filepath.Glob(filepath.Join(out, "*.new-*")); err == nil && len(written) > 0 {
				break
			}
		}
		ranks[0].Process.Kill()
		if status, last := ranks[1].await(t, 38*time.Second); status != 1 || !strings.Contains(last, "rank 0") {
			t.Errorf("rank 1: status %d, %s", status, last)
		}
		left, _ := filepath.Glob(filepath.Join(out, "*.new-*"))
		t.Logf("%d unfinished files", len(left))
		if !whole(t, out) {
			t.Error("there is no checkpoint")
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

// A signal to one rank stops all after the same step. The ranks that resume have the losses of a
// run without an interruption, whichever rank got the signal.
func TestTrainRanks_Interrupted(t *testing.T) {
	data := part(t, 600, 64, nil)
	undisturbed := filepath.Join(t.TempDir(), "run")
	succeedRanks(t, 2, trainArgs(data, undisturbed))
	want := losses(t, undisturbed)
	for _, victim := range some(1, 0) {
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
		succeedRanks(t, 2, []string{"-out", out, "-resume", "-log-steps", "-device", "cpu"})
		sameLosses(t, out, want)
	}
}

// Ranks with other settings than rank 0 are refused before the first step, with the setting.
func TestTrainRanks_Differ(t *testing.T) {
	data := part(t, 200, 64, nil)
	type differs struct {
		more []string
		want string
	}
	for _, c := range some(
		differs{[]string{"-batch", "64"}, "batch is 32 there and 64 here"},
		differs{[]string{"-model", "resnet20"}, "different models"},
		differs{[]string{"-dtype", "bfloat16"}, "dtype is float32 there and bfloat16 here"},
		differs{[]string{"-limit", "100"}, "limit"},
	) {
		ranks := startRanks(t, 2, trainArgs(data, filepath.Join(t.TempDir(), "run")), c.more...)
		for i, r := range ranks {
			status, last := r.await(t, 30*time.Second)
			if want := []string{"see its error", c.want}[i]; status != 1 || !strings.Contains(last, want) {
				t.Errorf("%v: rank %d: status %d, %q is not in %q", c.more, i, status, want, last)
			}
		}
	}
}

// The traces of all ranks become one file.
func TestTrainRanks_Trace(t *testing.T) {
	data := part(t, 200, 64, nil)
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace.json")
	succeedRanks(t, 2, trainArgs(data, filepath.Join(folder, "run"), "-epochs", "1", "-trace", trace))
	text, err := os.ReadFile(trace)
	for rank := range 2 {
		if want := fmt.Sprintf(`"name":"rank %d: `, rank); !strings.Contains(string(text), want) {
			t.Errorf("%v: the trace has no %s", err, want)
		}
	}
	if entries, _ := os.ReadDir(folder); len(entries) != 2 {
		t.Errorf("%d files, want the trace and the run", len(entries))
	}
}

// A rank that fails while its steps are traced ends at once. It does not wait until the others have
// written their traces.
func TestTrainRanks_FailedInTrace(t *testing.T) {
	t.Parallel()
	n := 0
	bad := part(t, 400, 64, func(_ string, data []byte) []byte {
		if n++; n == 100 { // rank 1 has it in its 6th batch of 13
			return data[:len(data)-200]
		}
		return data
	})
	folder := t.TempDir()
	trace := filepath.Join(folder, "trace.json")
	ranks := startRanks(t, 2, trainArgs(part(t, 400, 64, nil), filepath.Join(folder, "run"), "-trace", trace), "-data", bad)
	for i, r := range ranks {
		status, last := r.await(t, 15*time.Second)
		if status != 1 || i == 1 && !strings.Contains(last, ".jpg") {
			t.Errorf("rank %d: status %d, %s", i, status, last)
		}
	}
	if _, err := os.Stat(trace + ".rank1"); err != nil {
		t.Errorf("the trace of the rank that failed: %v", err)
	}
}

// interruptRanks starts ranks, and stops them all by a signal to the last one, after some lines of
// the log.
func interruptRanks(t *testing.T, world, lines int, out string, args []string) {
	t.Helper()
	ranks := startRanks(t, world, args)
	awaitLog(out, lines)
	ranks[world-1].Process.Signal(syscall.SIGTERM)
	for i, r := range ranks {
		if status, last := r.await(t, 30*time.Second); status != 143 {
			t.Fatalf("rank %d ended with %d: %s", i, status, last)
		}
	}
}

// epochs reads the lines of the epochs from the log in the folder `out`.
func epochs(t *testing.T, out string) (all []epoch) {
	t.Helper()
	text := must.Get(os.ReadFile(filepath.Join(out, "log.jsonl")))(t)
	for line := range bytes.Lines(text) {
		var e struct {
			Epoch, Step     int
			LR              float64
			ImagesPerSecond float64 `json:"images_per_second"`
			Seconds         float64
		}
		if json.Unmarshal(line, &e) == nil && e.Epoch > 0 {
			all = append(all, epoch{e.Epoch, e.Step, int(math.Round(e.ImagesPerSecond * e.Seconds)), e.LR})
		}
	}
	return all
}

type epoch struct {
	number, step, images int
	lr                   float64
}

// A run goes on with fewer ranks in the middle of an epoch. Images, steps and learning rates of
// each epoch are those of one rank.
func TestTrainRanks_FewerRanks(t *testing.T) {
	data := part(t, 600, 64, nil)
	one, out := filepath.Join(t.TempDir(), "run"), filepath.Join(t.TempDir(), "run")
	mustRun(t, "train", trainArgs(data, one)...)
	resume := []string{"-out", out, "-resume", "-log-steps", "-device", "cpu"}
	interruptRanks(t, 4, 4, out, trainArgs(data, out))
	first := len(losses(t, out))
	interruptRanks(t, 2, first+6, out, resume)
	second := len(losses(t, out))
	succeedRanks(t, 1, resume)
	if first < 1 || second <= first || second >= 57 {
		t.Errorf("4 ranks made %d steps, and 2 ranks then %d", first, second-first)
	}
	t.Logf("4 ranks made %d steps, 2 ranks %d and one rank the others", first, second-first)
	if got, want := epochs(t, out), epochs(t, one); len(want) != 3 || want[0].images != 600 || !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := len(losses(t, out)); got != 57 {
		t.Errorf("the log has %d steps, want 57", got)
	}
}

// torchrun starts all ranks again when one is killed. They begin anew if the folder has the
// checkpoint of another run, and go on from their own one.
func TestTrainRanks_StartedAgain(t *testing.T) {
	python := os.Getenv("PEER_PYTHON")
	if cache, err := os.UserCacheDir(); err == nil && python == "" {
		if found, _ := filepath.Glob(filepath.Join(cache, "streamtorch", "peer-*", "bin", "python")); len(found) > 0 {
			python = found[0]
		}
	}
	if err := exec.Command(python, "-c", "import torch.distributed.run").Run(); err != nil {
		t.Skip("no Python with PyTorch: set PEER_PYTHON, or run bench/environment.sh")
	}
	data, out := part(t, 1000, 64, nil), filepath.Join(t.TempDir(), "run")
	succeedRanks(t, 2, trainArgs(data, out))
	want := losses(t, out)
	for _, flags := range some([]string{"--master-addr", "127.0.0.1", "--master-port", freePort(t)}, []string{"--standalone"}) {
		var output bytes.Buffer
		args := append([]string{"-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--max-restarts", "2"}, flags...)
		c := exec.Command(python, append(append(args, filepath.Join(bin, "train")), trainArgs(data, out)...)...)
		c.Stdout, c.Stderr = &output, &output
		os.Remove(filepath.Join(out, "log.jsonl")) // the checkpoint of the other run stays
		must.Do(t, c.Start())
		t.Cleanup(func() { c.Process.Kill() })
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		for _, lines := range []int{5, 40} { // an epoch has 32 steps
			awaitLog(out, lines)
			kill(t, c.Process.Pid)
			time.Sleep(500 * time.Millisecond)
			awaitShorter(out, lines)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatalf("%v\n%s", err, output.String())
			}
		case <-time.After(2 * time.Minute):
			t.Fatalf("torchrun has not ended\n%s", output.String())
		}
		sameLosses(t, out, want)
		text, _ := os.ReadFile(filepath.Join(out, "log.jsonl"))
		if starts := bytes.Count(text, []byte(`{"config"`)); starts != 2 { // that of the second start, and that of the third
			t.Errorf("%v: the log has the settings of %d starts, want 2\n%s", flags, starts, output.String())
		}
	}
}

// kill kills the youngest child of a process.
func kill(t *testing.T, parent int) {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	var children []string
	for _, path := range tasks {
		text, _ := os.ReadFile(path)
		children = append(children, strings.Fields(string(text))...)
	}
	for _, child := range slices.Backward(children) {
		if exe, err := os.Readlink("/proc/" + child + "/exe"); err == nil && filepath.Base(exe) == "train" {
			pid, _ := strconv.Atoi(child)
			syscall.Kill(pid, syscall.SIGKILL)
			return
		}
	}
	t.Fatalf("torchrun has no rank among its children %v", children)
}

// awaitShorter waits until a new start has shortened the log to fewer than some lines, or for a
// minute.
func awaitShorter(out string, lines int) {
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if text, err := os.ReadFile(filepath.Join(out, "log.jsonl")); err == nil && bytes.Count(text, []byte("\n")) < lines {
			return
		}
	}
}

// freePort returns a port on which nothing listens. It is below those that the kernel gives to
// other programs' connections.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		port := strconv.Itoa(10000 + rand.Intn(20000))
		if l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port)); err == nil {
			l.Close()
			return port
		}
	}
}
