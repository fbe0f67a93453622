package distributed

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestCompatible(t *testing.T) {
	gpu := info{LibTorch: "2.11.0+cu130", Host: "a", Device: "cuda:0", World: 2}
	with := func(change func(*info)) info { i := gpu; change(&i); return i }
	for name, c := range map[string]struct {
		other info
		fails string
	}{
		"another GPU":               {with(func(i *info) { i.Device = "cuda:1" }), ""},
		"another machine":           {with(func(i *info) { i.Host = "b" }), ""},
		"another with that name":    {with(func(i *info) { i.Boot = "2" }), ""},
		"another pod of a machine":  {with(func(i *info) { i.Visible = "GPU-2" }), ""},
		"another container":         {with(func(i *info) { i.Files = "mnt:[2]" }), ""},
		"another build":             {with(func(i *info) { i.Device, i.LibTorch = "cuda:1", "2.11.0" }), ""},
		"the same GPU":              {gpu, "zero and one both use cuda:0"},
		"another version":           {with(func(i *info) { i.LibTorch = "2.10.0+cu130" }), "zero has LibTorch 2.11.0+cu130 and one has 2.10.0+cu130"},
		"another number of ranks":   {with(func(i *info) { i.World = 3 }), "WORLD_SIZE must be equal"},
		"a CPU":                     {with(func(i *info) { i.Device = "cpu" }), "all ranks must be on GPUs, or all on CPUs"},
		"Python":                    {info{LibTorch: "2.11.0+cpu", Device: "cuda:1", World: 2, foreign: true}, "set Options.Device to cpu"},
		"Python of another version": {info{LibTorch: "2.9.1+cpu", Device: "cuda:1", World: 2, foreign: true}, "one has 2.9.1+cpu"},
	} {
		err := compatible([]info{gpu, c.other}, []string{"zero", "one"})
		if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: got %v, want %q", name, err, c.fails)
		}
	}
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]string{"localhost": "", "127.0.0.1": "", "10.0.0.7": "", "none.invalid": "", "LocalHost": "127.0.0.1 or ::1"} {
		if got := loopback(context.Background(), host); (got == "") != (want == "") {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
}

// A program that takes connections and never answers is no store.
func TestJoin_SilentStore(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began := time.Now()
	_, err = join(ctx, Options{Device: "cpu", JoinTimeout: time.Minute}, environment(l.Addr().(*net.TCPAddr).Port, 1, 2))
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "does not answer") || time.Since(began) > 20*time.Second {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

// A context that has ended says so.
func TestJoin_EndedContext(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped by the user"))
	_, err := join(ctx, Options{Device: "cpu"}, environment(freePort(t), 1, 2))
	if err == nil || !strings.Contains(err.Error(), "stopped by the user") || strings.Contains(err.Error(), "nil") {
		t.Errorf("got %v", err)
	}
}

// The store listens on the address of rank 0 alone.
func TestStore_ListensOnOneAddress(t *testing.T) {
	port := freePort(t)
	var ranks []*process
	for i := range 2 {
		ranks = append(ranks, startRank(t, "train", 10e9, rankEnv(port, i, 2)...))
	}
	ranks[1].until(t, "step 1")
	if c, err := net.Dial("tcp", net.JoinHostPort("127.0.0.2", strconv.Itoa(port))); err == nil {
		c.Close()
		t.Error("the store listens on 127.0.0.2 too")
	}
}
