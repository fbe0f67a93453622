//go:build !windows

package distributed

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/must"
)

// Whichever rank is killed or stopped, the others end with its number and its last collective.
func TestProcesses_Lost(t *testing.T) {
	for _, c := range []struct {
		signal  syscall.Signal
		world   int
		timeout time.Duration
	}{{syscall.SIGKILL, 2, 10 * time.Second}, {syscall.SIGKILL, 3, 10 * time.Second}, {syscall.SIGSTOP, 3, 2 * time.Second}} {
		for victim := range c.world {
			t.Run(fmt.Sprintf("%v/%d of %d", c.signal, victim, c.world), func(t *testing.T) {
				t.Parallel()
				ranks := startRanks(t, "train", c.world, c.timeout)
				ranks[victim].until(t, fmt.Sprint("step ", oddStep))
				must.Do(t, ranks[victim].Process.Signal(c.signal))
				began := time.Now()
				for i, p := range ranks {
					if i == victim {
						continue
					}
					want := fmt.Sprintf("rank %d (", victim)
					if victim == 0 {
						want = "rank 0"
					}
					p.awaitError(t, i, c.timeout, want, "collective", "Gradients(float32[32 32]", "process_test.go:")
				}
				t.Logf("ended after %v", time.Since(began).Round(10*time.Millisecond))
			})
		}
	}
}

// On GPUs too the others end, eager and captured, whenever a rank is lost.
func TestProcesses_LostCUDA(t *testing.T) {
	world := severalGPUs(t)
	slots := make(chan struct{}, 8) // so many groups at a time
	for _, role := range []string{"train", "captured"} {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
			for victim := range world {
				for moment := range repetitions(1, 10) {
					if signal == syscall.SIGSTOP && moment > 2 {
						break
					}
					t.Run(fmt.Sprintf("%s/%v/%d of %d/%d", role, signal, victim, world, moment), func(t *testing.T) {
						t.Parallel()
						slots <- struct{}{}
						defer func() { <-slots }()
						timeout := 10 * time.Second
						if signal == syscall.SIGSTOP {
							timeout = 3 * time.Second
						}
						port := freePort(t)
						var ranks []*process
						for i := range world {
							env := append(rankEnv(port, i, world), "LOCAL_RANK="+strconv.Itoa(i), deviceVariable+"=cuda")
							ranks = append(ranks, startRank(t, role, timeout, env...))
						}
						ranks[victim].until(t, fmt.Sprint("step ", rand.IntN(300)))
						time.Sleep(time.Duration(rand.IntN(10_000)) * time.Microsecond)
						must.Do(t, ranks[victim].Process.Signal(signal))
						began := time.Now()
						for i, p := range ranks {
							if i == victim {
								continue
							}
							line := p.awaitError(t, i, timeout, fmt.Sprintf("rank %d", victim))
							t.Logf("rank %d ended after %v: %s", i, time.Since(began).Round(10*time.Millisecond), line)
						}
					})
				}
			}
		}
	}
}
