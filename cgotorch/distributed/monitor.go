package distributed

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/inside"
)

// beat is the sign of life that a rank puts into the store again and again.
type beat struct {
	N      int64  // counts the beats
	Count  int64  // collectives so far
	Hash   uint64 // over all of them
	Last   string // describes the last one
	Failed string `json:",omitempty"` // why the rank's group has failed
	Left   bool   `json:",omitempty"` // the rank has closed its group
}

// seen is what a rank knows of another one.
type seen struct {
	beat
	moved    time.Time // when N last grew
	advanced time.Time // when Count last grew
}

// A monitor is a goroutine that watches the other ranks of a group.
type monitor struct {
	interval  time.Duration
	store     *store
	cancel    context.CancelFunc
	done      sync.WaitGroup
	joining   time.Duration // bounds a rank's silence until all have connected
	connected atomic.Bool   // all ranks have connected
	trouble   atomic.Bool   // a collective has failed, so a rank that is silent for a short time is lost
	others    []seen
	beats     int64
	mine      time.Time // when this rank's count last grew
	count     int64
	accused   map[int]bool // ranks whose hash differs
}

func beatKey(rank int) string    { return fmt.Sprint("beat/", rank) }
func historyKey(rank int) string { return fmt.Sprint("history/", rank) }

// start starts the monitor. `joining` bounds the silence of a rank until all have connected.
func (m *monitor) start(ctx context.Context, g *Group, p place, joining time.Duration) error {
	m.joining = joining
	// Each rank asks the store for each other one, and the store answers some 10,000 times a second.
	usual := max(time.Second/2, time.Duration(g.world*g.world)*100*time.Microsecond)
	m.interval = min(usual, max(g.timeout/10, 10*time.Millisecond))
	var err error
	if m.store, err = g.store.again(ctx, p, g.timeout); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m.cancel, m.others, m.accused = cancel, make([]seen, g.world), map[int]bool{}
	now := time.Now()
	for i := range m.others {
		m.others[i].moved, m.others[i].advanced = now, now
	}
	m.mine = now
	m.done.Add(1)
	go func() {
		defer m.done.Done()
		m.run(ctx, g)
	}()
	return nil
}

// stop tells the other ranks that this one leaves. If this one serves the store, it waits for them.
// It then returns an error if a rank has not left, or has made another number of collectives.
func (m *monitor) stop(g *Group) error {
	if m.cancel == nil {
		return nil
	}
	m.cancel()
	m.done.Wait()
	defer m.store.close()
	most := g.timeout
	if g.Err() != nil {
		most = 2 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if m.tell(ctx, g, true) != nil || g.rank != 0 {
		return nil
	}
	if g.Err() != nil { // the others know of the failure, and do not come back
		time.Sleep(2 * m.interval)
	}
	why := m.await(ctx, g, most)
	if why == nil || g.Err() != nil { // a failure of the group is known already
		return nil
	}
	return fmt.Errorf("distributed: Close: %w: %w", why, cgotorch.ErrGroupFailed)
}

// await waits until the other ranks have left. It returns why one of them has not, or that one has
// made another number of collectives.
func (m *monitor) await(ctx context.Context, g *Group, most time.Duration) error {
	var differs error // of a rank that has failed; others may yet read why
	for ; ; time.Sleep(min(m.interval/4, 50*time.Millisecond)) {
		left, lost := true, ""
		for i := range m.others {
			if i == g.rank || g.foreign[i] {
				continue
			}
			b, found, err := m.read(ctx, i)
			if err != nil {
				return fmt.Errorf("%s has not left within %v", g.names[i], most)
			}
			if (b.Left || b.Failed != "") && b.Count != m.count {
				why := fmt.Errorf("%s has made %d collectives and %s %d: the last of the first is %s, and of the other %s", g.names[i], b.Count, g.self(), m.count, b.Last, g.lockstep.last())
				if b.Failed == "" {
					return why
				}
				differs = why // it has made more, and has seen this one leave
			}
			silent := !found || b.N == m.others[i].N
			if !silent {
				m.others[i].N, m.others[i].moved = b.N, time.Now()
			}
			if !b.Left && b.Failed == "" {
				left = left && silent && time.Since(m.others[i].moved) > 4*m.interval
				lost = g.names[i]
			}
		}
		if left && lost != "" {
			return fmt.Errorf("%s has ended without leaving the group: its output says why", lost)
		} else if left {
			return differs
		}
	}
}

// tell puts this rank's beat into the store.
func (m *monitor) tell(ctx context.Context, g *Group, left bool) error {
	m.beats++
	b := beat{N: m.beats, Last: g.lockstep.last(), Left: left}
	b.Count, b.Hash = g.lockstep.now()
	if b.Count != m.count {
		m.count, m.mine = b.Count, time.Now()
	}
	if err := g.Err(); err != nil {
		b.Failed = reason(err)
	}
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return m.store.set(ctx, beatKey(g.rank), string(text))
}

func (m *monitor) read(ctx context.Context, rank int) (b beat, found bool, err error) {
	text, found, err := m.store.get(ctx, beatKey(rank))
	if err == nil && found {
		err = json.Unmarshal([]byte(text), &b)
	}
	return b, found, err
}

func (m *monitor) run(ctx context.Context, g *Group) {
	tick := time.NewTicker(m.interval)
	defer tick.Stop()
	for {
		if err := m.look(ctx, g); err != nil {
			if ctx.Err() != nil { // the group is being closed
				return
			}
			who := m.store.server + ", which serves the store of the run, is gone or does not answer"
			if g.rank == 0 && m.store.server == "rank 0" {
				who = "the store of the run, which rank 0 serves, does not answer"
			}
			g.fail("%s: %v; the last collective of %s is %s", who, err, g.self(), g.lockstep.last())
			return
		}
		if g.Err() != nil {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			_ = m.tell(short, g, false)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-g.failed:
		case <-tick.C:
		}
	}
}

// look tells the other ranks of this one, and looks at each of them.
func (m *monitor) look(ctx context.Context, g *Group) error {
	ctx, cancel := context.WithTimeoutCause(ctx, g.timeout, fmt.Errorf("no answer for %v", g.timeout))
	defer cancel()
	if err := m.tell(ctx, g, false); err != nil {
		return err
	}
	if g.Err() != nil {
		return nil
	}
	if m.connected.Load() { // NCCL notices a broken connection after the call that made the collective
		var ready int32
		if err := inside.Core.Check("distributed.Group", ct.GroupReady(g.h, &ready)); err != nil {
			m.trouble.Store(true)
			g.fail("%s; the last collective of %s is %s", reason(err), g.self(), g.lockstep.last())
			return nil
		}
	}
	now := time.Now()
	for i := range m.others {
		if i == g.rank || g.foreign[i] {
			continue
		}
		b, found, err := m.read(ctx, i)
		if err != nil {
			return err
		}
		s := &m.others[i]
		if found && b.N != s.N {
			if b.Count != s.Count {
				s.advanced = now
			}
			s.beat, s.moved = b, now
		}
		if m.judge(ctx, g, i, s, now) {
			return nil
		}
	}
	return nil
}

// judge fails the group if there is something wrong with a rank. It reports whether it has.
func (m *monitor) judge(ctx context.Context, g *Group, rank int, s *seen, now time.Time) bool {
	name := g.names[rank]
	silent, bound := now.Sub(s.moved), g.timeout
	if !m.connected.Load() {
		bound = m.joining
	}
	if m.trouble.Load() {
		bound = 3 * m.interval
	}
	last := s.Last
	if s.Count == 0 {
		last = "not known"
	}
	switch {
	case s.Failed != "":
		g.fail("%s has failed: %s", name, s.Failed)
	case s.Left && (m.trouble.Load() || s.Count < m.count):
		g.fail("%s has left the group: its output says why; its last collective is %s, and that of %s is %s", name, last, g.self(), g.lockstep.last())
	case s.Left:
		return false
	case m.differs(ctx, g, rank, s):
	case silent > bound:
		g.fail("%s is lost: it has given no sign of life for %v, and its last collective is %s", name, silent.Round(100*time.Millisecond), last)
	case s.Count < m.count && now.Sub(s.advanced) > g.timeout && now.Sub(m.mine) > g.timeout-2*m.interval:
		g.fail("%s has made no collective for %v: its last is %s, and %s waits in %s", name, now.Sub(s.advanced).Round(100*time.Millisecond), last, g.self(), g.lockstep.last())
	default:
		return false
	}
	return g.Err() != nil
}

// differs reports whether a rank has made other collectives. It then fails the group.
func (m *monitor) differs(ctx context.Context, g *Group, rank int, s *seen) bool {
	mine, known := g.lockstep.at(s.Count)
	if known && mine == s.Hash {
		return false
	}
	// A rank that sees a difference tells its history, also to ranks that have not got there yet.
	if _, told, _ := m.store.get(ctx, historyKey(rank)); !known && !told {
		return false
	}
	if !m.accused[rank] {
		m.accused[rank] = true
		if text, err := json.Marshal(g.lockstep.history()); err == nil {
			_ = m.store.set(ctx, historyKey(g.rank), string(text))
		}
	}
	for end := time.Now().Add(3*m.interval + time.Second); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(m.interval / 10) {
		text, found, err := m.store.get(ctx, historyKey(rank))
		if err != nil {
			return false
		}
		if !found {
			_ = m.tell(ctx, g, false)
			continue
		}
		var other []made
		if err := json.Unmarshal([]byte(text), &other); err != nil {
			return false
		}
		a, b, nameA, nameB := g.lockstep.history(), other, g.names[g.rank], g.names[rank]
		if rank < g.rank {
			a, b, nameA, nameB = b, a, nameB, nameA
		}
		if what := difference(a, b, nameA, nameB); what != "" {
			g.fail("%s", what)
			return true
		}
		return false
	}
	g.fail("%s makes other collectives than %s: after %d its last is %s", g.names[rank], g.self(), s.Count, s.Last)
	return true
}
