package text

import (
	"context"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// Driven is a Batcher whose turns a test makes, one by one.
type Driven struct{ *Batcher }

// DrivenRequest is a request of a Driven.
type DrivenRequest struct {
	r   *request
	all []Token
}

// NewDriven makes a Batcher without a loop. With `early` it steps before it has read the last
// tokens, on the CPU too.
func (m *Model) NewDriven(o BatcherOptions, early bool) (Driven, error) {
	b, err := m.newBatcher(o, early)
	return Driven{b}, err
}

// Ask lets a request wait.
func (d Driven) Ask(ctx context.Context, prompt []int64, o GenerateOptions) (*DrivenRequest, error) {
	r, err := d.submit(ctx, prompt, o)
	return &DrivenRequest{r: r}, err
}

// Turn makes a turn, and reports whether anything was done.
func (d Driven) Turn() bool { return d.turn() }

// Close ends the requests.
func (d Driven) Close() error {
	go d.loop()
	return d.Batcher.Close()
}

// Tokens returns the tokens so far, and the error behind them.
func (r *DrivenRequest) Tokens() ([]Token, error) {
	made, err := r.r.take()
	r.all = append(r.all, made...)
	return r.all, err
}

// Stay lets a running request give its pages up in a turn that has none of its tokens to read.
func (r *DrivenRequest) Stay() { r.r.yields = r.r.running }

// GiveUp takes the request out of its seat, behind a turn that has read its tokens.
func (r *DrivenRequest) GiveUp(d Driven) { d.preempt(r.r) }

// Leave tells that nobody reads the request's tokens any more.
func (r *DrivenRequest) Leave() { r.r.left.Store(true) }

// Seat returns the request's seat, or -1.
func (r *DrivenRequest) Seat() int { return r.r.seat }

// Break makes all work of the model fail, behind its layers. The result mends it.
func (m *Model) Break() (mend func()) {
	m.lane.mu.Lock()
	defer m.lane.mu.Unlock()
	norm := m.d.norm
	m.d.norm = m.d.embed
	return func() {
		m.lane.mu.Lock()
		defer m.lane.mu.Unlock()
		m.d.norm = norm
	}
}

// Captures returns how many kinds of steps are captured.
func (d Driven) Captures() int { return len(d.b.steps) }

// Positions returns those of the seats, as the host knows them and as they lie on the device.
func (d Driven) Positions() (host, device []int64, err error) {
	if err := d.b.upload(d.m.stream); err != nil {
		return nil, nil, err
	}
	err = d.m.stream.Do(func(x *cgotorch.Exec) error {
		device = cgotorch.ToSlice[int64](x, d.b.seats.positions)
		return nil
	})
	return slices.Clone(d.b.positions), device, err
}
