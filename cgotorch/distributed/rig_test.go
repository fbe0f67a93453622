package distributed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// TestMain runs the tests, or one rank of a test that starts processes: see startRanks.
func TestMain(m *testing.M) {
	if role := roles[os.Getenv(roleVariable)]; role != nil {
		if err := asRank(role); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// LibTorch asks for the name of each address. Where no server of names answers, it would wait
	// longer than the timeouts of the tests.
	os.Setenv("RES_OPTIONS", "timeout:1 attempts:1")
	torchtest.Main(m)
}

// ports are those that freePort has returned. Tests run in parallel, and two with one port would
// join each other.
var ports sync.Map

// freePort returns a port on which nothing listens, another one at each call. It is below those
// that the kernel gives to other programs' connections.
func freePort(t testing.TB) int {
	t.Helper()
	for {
		port := 10000 + rand.IntN(20000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		l.Close()
		if _, used := ports.LoadOrStore(port, true); !used {
			return port
		}
	}
}

// environment returns the variables of one rank.
func environment(port, rank, world int) func(string) string {
	return func(name string) string {
		return map[string]string{
			"RANK": strconv.Itoa(rank), "WORLD_SIZE": strconv.Itoa(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": strconv.Itoa(port),
		}[name]
	}
}

// together runs `rank` for each rank of a group on the CPU, each with a stream of its own. Here the
// ranks are goroutines of one process.
func together(t *testing.T, world int, o Options, rank func(g *Group, s *cgotorch.Stream) error) []error {
	t.Helper()
	o.Device = "cpu"
	if o.JoinTimeout == 0 {
		o.JoinTimeout = 20 * time.Second
	}
	port := freePort(t)
	errs := make([]error, world)
	var all sync.WaitGroup
	for i := range world {
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = func() (err error) {
				g, err := join(context.Background(), o, environment(port, i, world))
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, g.Close()) }()
				s, err := cgotorch.NewStream(g.Device(), cgotorch.StreamOptions{Name: fmt.Sprint("rank ", i)})
				if err != nil {
					return err
				}
				defer s.Close()
				return rank(g, s)
			}()
		}()
	}
	all.Wait()
	return errs
}

// wantErrors fails the test unless each rank has ended with an error of this kind that contains the
// texts. Without a kind no rank may fail.
func wantErrors(t *testing.T, errs []error, kind error, texts ...string) {
	t.Helper()
	for i, err := range errs {
		has := func(text string) bool { return err != nil && strings.Contains(err.Error(), text) }
		if !errors.Is(err, kind) || slices.ContainsFunc(texts, func(text string) bool { return !has(text) }) {
			t.Errorf("rank %d: got %v, want %v with %q", i, err, kind, texts)
		}
	}
}

// succeed is together for ranks of which none fails.
func succeed(t *testing.T, world int, rank func(g *Group, x *cgotorch.Exec)) {
	t.Helper()
	wantErrors(t, together(t, world, Options{}, func(g *Group, s *cgotorch.Stream) error {
		return s.Do(func(x *cgotorch.Exec) error { rank(g, x); return nil })
	}), nil)
}
