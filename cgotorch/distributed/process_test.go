package distributed

import (
	"bufio"
	"context"
	"fmt"
	"github.com/streamtorch/streamtorch/internal/must"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/nn"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

const (
	roleVariable    = "STREAMTORCH_TEST_ROLE"
	timeoutVariable = "STREAMTORCH_TEST_TIMEOUT"
	deviceVariable  = "STREAMTORCH_TEST_DEVICE" // "cuda", or nothing for the CPU
)

// roles are what a process of a test does as a rank.
var roles = map[string]func(g *Group, s *cgotorch.Stream) error{
	"train": func(g *Group, s *cgotorch.Stream) error { return trainFor(g, s, 1<<30, nil) },
	"captured": func(g *Group, s *cgotorch.Stream) error {
		return trainWith(g, s, 1<<30, nil, 1, cgotorch.CapturedOptions{Agree: g.Agree})
	},
	"deep": func(g *Group, s *cgotorch.Stream) error {
		return trainWith(g, s, 1<<30, nil, 40, cgotorch.CapturedOptions{Eager: true})
	},
	"finish": func(g *Group, s *cgotorch.Stream) error { return trainFor(g, s, 10, nil) },
	"differ": atStep(func(g *Group, x *cgotorch.Exec) error {
		if g.Rank() == 1 {
			g.AllReduce(x, x.Zeros(cgotorch.Float32, 3), Max)
		}
		g.AllReduce(x, x.Zeros(cgotorch.Float32, 2), Max)
		return nil
	}),
	"exit": atStep(func(g *Group, x *cgotorch.Exec) error {
		if g.Rank() == 1 {
			os.Exit(7)
		}
		return nil
	}),
	"fail": atStep(func(g *Group, x *cgotorch.Exec) error {
		if g.Rank() == 1 {
			return fmt.Errorf("no more images")
		}
		return nil
	}),
	"hang": atStep(func(g *Group, x *cgotorch.Exec) error {
		if g.Rank() == 1 {
			select {}
		}
		return nil
	}),
}

// oddStep is the step at which a role does something odd. By then each rank has given a sign of
// life that tells of collectives.
const oddStep = 120

// atStep returns a role that calls fn at oddStep of a training without end.
func atStep(fn func(g *Group, x *cgotorch.Exec) error) func(g *Group, s *cgotorch.Stream) error {
	return func(g *Group, s *cgotorch.Stream) error { return trainFor(g, s, 1<<30, fn) }
}

// trainFor trains a small model. It prints a line for each step, and calls `odd` at oddStep.
func trainFor(g *Group, s *cgotorch.Stream, steps int, odd func(g *Group, x *cgotorch.Exec) error) error {
	return trainWith(g, s, steps, odd, 1, cgotorch.CapturedOptions{Eager: true})
}

// trainWith is trainFor with some layers, each of which has a bucket of its own, and a step that
// can be captured.
func trainWith(g *Group, s *cgotorch.Stream, steps int, odd func(g *Group, x *cgotorch.Exec) error, layers int, o cgotorch.CapturedOptions) error {
	var m *nn.Sequential
	var opt *optim.Optimizer
	var gradients *Gradients
	err := s.Do(func(x *cgotorch.Exec) (err error) {
		var all []nn.Module
		for range layers {
			all = append(all, nn.NewLinear(x, 32, 32, nn.LinearOptions{}))
		}
		m = nn.NewSequential(all...)
		if gradients, err = NewGradients(x, g, m, GradientsOptions{BucketBytes: 4 * 33 * 32}); err == nil {
			opt, err = optim.NewSGD(optim.SGDOptions{LR: 0.01}, optim.Group{Params: nn.Parameters(m)})
		}
		return err
	})
	if err != nil {
		return err
	}
	defer nn.Close(m)
	defer opt.Close()
	defer gradients.Close()
	step := cgotorch.NewCaptured(func(x *cgotorch.Exec, in ...*cgotorch.Tensor) []*cgotorch.Tensor {
		loss := x.Mean(x.Square(m.Forward(x, in[0])))
		opt.ZeroGrad()
		gradients.Backward(x, loss)
		opt.Step(x)
		return []*cgotorch.Tensor{loss}
	}, o)
	defer step.Close()
	for k := range steps {
		err := s.Do(func(x *cgotorch.Exec) error {
			if k == oddStep && odd != nil {
				cgotorch.Check(odd(g, x))
			}
			step.Run(x, x.Randn(cgotorch.Float32, 8, 32))
			return nil
		})
		if err != nil {
			return err
		}
		fmt.Println("step", k)
		time.Sleep(5 * time.Millisecond)
	}
	return nil
}

// asRank makes this process a rank and plays its role.
func asRank(role func(g *Group, s *cgotorch.Stream) error) error {
	if err := cgotorch.SetThreads(1); err != nil {
		return err
	}
	timeout, err := time.ParseDuration(os.Getenv(timeoutVariable))
	if err != nil {
		return err
	}
	o := Options{Device: "cpu", Timeout: timeout, JoinTimeout: 10 * time.Second}
	if os.Getenv(deviceVariable) == "cuda" {
		o.Device, o.JoinTimeout = "cuda", time.Minute
	}
	g, err := Join(context.Background(), o)
	if err != nil {
		return err
	}
	defer g.Close()
	return role(g, cgotorch.DefaultStream(g.Device()))
}

// A process is one rank.
type process struct {
	*exec.Cmd
	lines chan string // of its output
	ended chan struct{}
	last  string
}

// startRank starts a process with a role.
func startRank(t *testing.T, role string, timeout time.Duration, env ...string) *process {
	t.Helper()
	p := newRank(role, timeout, env...)
	p.start(t)
	return p
}

// newRank returns a process with a role, which has not started.
func newRank(role string, timeout time.Duration, env ...string) *process {
	p := &process{Cmd: exec.Command(os.Args[0]), lines: make(chan string, 1<<16), ended: make(chan struct{})}
	p.Env = append(os.Environ(), append(env, roleVariable+"="+role, timeoutVariable+"="+timeout.String())...)
	return p
}

func (p *process) start(t *testing.T) {
	t.Helper()
	out := cgotorch.Must(p.StdoutPipe())
	p.Stderr = p.Stdout
	must.Do(t, p.Cmd.Start())
	t.Cleanup(func() { p.Process.Kill(); p.await(t, 10*time.Second) })
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.last = scan.Text()
			select {
			case p.lines <- p.last:
			default:
			}
		}
		p.Wait()
		close(p.ended)
	}()
}

// startRanks starts the ranks of a group as processes.
func startRanks(t *testing.T, role string, world int, timeout time.Duration) []*process {
	t.Helper()
	port := freePort(t)
	var ranks []*process
	for i := range world {
		ranks = append(ranks, startRank(t, role, timeout, rankEnv(port, i, world)...))
	}
	return ranks
}

func rankEnv(port, rank, world int) []string {
	return []string{"RANK=" + strconv.Itoa(rank), "WORLD_SIZE=" + strconv.Itoa(world), "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + strconv.Itoa(port)}
}

// until waits for a line.
func (p *process) until(t *testing.T, line string) {
	t.Helper()
	for limit := time.After(time.Minute); ; {
		select {
		case l := <-p.lines:
			if l == line {
				return
			}
		case <-p.ended:
			t.Fatalf("the process ended before %q: %s", line, p.last)
		case <-limit:
			t.Fatalf("no %q within a minute", line)
		}
	}
}

// await waits for the end of the process, and returns its last line.
func (p *process) await(t *testing.T, most time.Duration) string {
	t.Helper()
	select {
	case <-p.ended:
		return p.last
	case <-time.After(most):
		t.Errorf("a rank did not end within %v; its last line: %s", most, p.last)
		return ""
	}
}

// bound is the time within which ranks end after another one is lost.
func bound(timeout time.Duration) time.Duration { return timeout + 8*time.Second }

func expect(t *testing.T, rank int, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("rank %d: %q is not in %q", rank, w, got)
		}
	}
	if len(got) > 700 {
		t.Errorf("rank %d: the message has %d characters: %s", rank, len(got), got)
	}
}

// awaitError waits for the end of a rank after another one is lost. The last line, which it
// returns, must be an error with these texts.
func (p *process) awaitError(t *testing.T, rank int, timeout time.Duration, want ...string) (line string) {
	t.Helper()
	line = p.await(t, bound(timeout))
	if p.ProcessState == nil || p.ProcessState.ExitCode() != 1 {
		t.Errorf("rank %d: %v", rank, p.ProcessState)
	}
	expect(t, rank, line, append(want, "error: ")...)
	return line
}

func TestProcesses_Finish(t *testing.T) {
	for i, p := range startRanks(t, "finish", 2, 10*time.Second) {
		p.await(t, 30*time.Second)
		if code := p.ProcessState.ExitCode(); code != 0 || p.last != "step 9" {
			t.Errorf("rank %d ended with %d: %s", i, code, p.last)
		}
	}
}

// A rank is killed while the collectives of a backward run. Those that wait in their backward name
// it, and not each other.
func TestProcesses_LostInBackward(t *testing.T) {
	const world = 3
	slots := make(chan struct{}, 4) // so many groups at a time
	for moment := range repetitions(3, 60) {
		t.Run(fmt.Sprint(moment), func(t *testing.T) {
			t.Parallel()
			slots <- struct{}{}
			defer func() { <-slots }()
			victim := moment % world
			ranks := startRanks(t, "deep", world, 10*time.Second)
			ranks[victim].until(t, fmt.Sprint("step ", 5+rand.IntN(20)))
			time.Sleep(time.Duration(rand.IntN(150_000)) * time.Microsecond)
			ranks[victim].Process.Kill()
			for i, p := range ranks {
				if i == victim {
					continue
				}
				line := p.awaitError(t, i, 10*time.Second, fmt.Sprintf("rank %d", victim))
				if strings.Contains(line, "its backward has failed") {
					t.Errorf("after a kill of rank %d, rank %d tells: %s", victim, i, line)
				}
			}
		})
	}
}

func TestProcesses_Wrong(t *testing.T) {
	for _, c := range []struct {
		role   string
		wanted [2][]string // of the last lines of rank 0 and rank 1
	}{
		{"differ", [2][]string{{"differs", "rank 0", "AllReduce Max(float32[2])", "rank 1", "AllReduce Max(float32[3])"}, {"differs", "AllReduce Max(float32[3])"}}},
		{"exit", [2][]string{{"rank 1 (", "is lost", "Gradients("}, {fmt.Sprint("step ", oddStep-1)}}},
		{"fail", [2][]string{{"rank 1 (", "has left the group", "Gradients("}, {"no more images"}}},
		{"hang", [2][]string{{"rank 1 (", "has made no collective for", "Gradients("}, {fmt.Sprint("step ", oddStep-1)}}},
	} {
		t.Run(c.role, func(t *testing.T) {
			t.Parallel()
			ranks := startRanks(t, c.role, 2, 3*time.Second)
			expect(t, 0, ranks[0].await(t, 30*time.Second), c.wanted[0]...)
			if c.role == "hang" {
				ranks[1].Process.Kill()
			}
			expect(t, 1, ranks[1].await(t, 30*time.Second), c.wanted[1]...)
		})
	}
}

// Ranks that cannot meet end with the reason.
func TestProcesses_CannotJoin(t *testing.T) {
	t.Run("ranks missing", func(t *testing.T) {
		t.Parallel()
		port := freePort(t)
		p := startRank(t, "finish", time.Second, rankEnv(port, 0, 3)...)
		expect(t, 0, p.await(t, 30*time.Second), "rank 0 of 3", "of 3 ranks these have not joined: 1, 2")
	})
	t.Run("no rank 0", func(t *testing.T) {
		t.Parallel()
		p := startRank(t, "finish", time.Second, rankEnv(freePort(t), 1, 2)...)
		expect(t, 1, p.await(t, 30*time.Second), "rank 1 of 2", "does not answer", "rank 0 serves it")
	})
	t.Run("port taken", func(t *testing.T) {
		t.Parallel()
		l := cgotorch.Must(net.Listen("tcp", "127.0.0.1:0"))
		defer l.Close()
		p := startRank(t, "finish", time.Second, rankEnv(l.Addr().(*net.TCPAddr).Port, 0, 2)...)
		expect(t, 0, p.await(t, 30*time.Second), "another program listens there", "MASTER_PORT")
	})
	t.Run("address of another machine", func(t *testing.T) {
		t.Parallel()
		env := rankEnv(freePort(t), 0, 2)
		env[2] = "MASTER_ADDR=192.0.2.1"
		p := startRank(t, "finish", time.Second, env...)
		expect(t, 0, p.await(t, 30*time.Second), "no address of this machine", "MASTER_ADDR")
	})
	t.Run("another world", func(t *testing.T) {
		t.Parallel()
		port := freePort(t)
		p := startRank(t, "finish", time.Second, rankEnv(port, 0, 2)...)
		q := startRank(t, "finish", time.Second, rankEnv(port, 1, 3)...)
		expect(t, 0, p.await(t, 30*time.Second), "WORLD_SIZE must be equal")
		q.await(t, 30*time.Second)
	})
}

// What strangers send to the store disturbs nobody.
func TestProcesses_Strangers(t *testing.T) {
	port := freePort(t)
	var ranks []*process
	for i := range 2 {
		ranks = append(ranks, startRank(t, "train", 5*time.Second, rankEnv(port, i, 2)...))
	}
	ranks[0].until(t, "step 3")
	magic := string([]byte{0, 0xce, 0xf7, 0x85, 0x3c}) // begins a conversation of c10d
	var all sync.WaitGroup
	for i, bytes := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", strings.Repeat("\xff", 1<<16), strings.Repeat("\x00", 1<<16), "", "\x16\x03\x01",
		magic, magic + "\x01\xff\xff\xff\xff\xff\xff\xff\x7f", magic + "\x01\x00\x00\x00\xff\x00\x00\x00\x00x", magic + strings.Repeat("\xfe", 1000),
		magic + "\x03\x05\x00\x00\x00\x00\x00\x00\x00", "<" + strings.Repeat("A", 100),
	} {
		all.Add(1)
		go func() {
			defer all.Done()
			for range 5 {
				c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
				if err != nil {
					t.Errorf("%d: %v", i, err)
					return
				}
				io.WriteString(c, bytes)
				c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				io.Copy(io.Discard, c)
				c.Close()
			}
		}()
	}
	all.Wait()
	for len(ranks[0].lines) > 0 {
		<-ranks[0].lines
	}
	for range 10 { // ten more steps
		select {
		case <-ranks[0].lines:
		case <-time.After(10 * time.Second):
			t.Fatalf("the training stands still: %s, %s", ranks[0].last, ranks[1].last)
		}
	}
}
