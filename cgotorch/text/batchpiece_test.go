package text_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/streamtorch/streamtorch/cgotorch/text"
	"github.com/streamtorch/streamtorch/internal/must"
	"github.com/streamtorch/streamtorch/internal/torchtest"
)

// Pieces of prompts that are padded to captured sizes give the answers of others.
func TestBatcher_CapturedPieces(t *testing.T) {
	for name := range configs {
		t.Run(name, func(t *testing.T) {
			m := openServed(t, name, text.Options{Context: 600, CacheTokens: 4000})
			own, other := batcherOf(t, m, text.BatcherOptions{MaxBatch: 3, Piece: 96}), batcherOf(t, m, text.BatcherOptions{MaxBatch: 3, Piece: 96})
			if other.CapturePieces(false); !own.CapturePieces(true) {
				t.Skip("its pieces are not captured")
			}
			r := rand.New(rand.NewPCG(5, 6))
			near := 1e-4
			if torchtest.Device().IsCUDA() {
				near = 0.05
			}
			for i, n := range []int{1, 63, 64, 65, 200, 501, 1, 63, 64, 65, 200, 501, 1, 63, 64, 65, 200, 501} {
				prompt := randomTokens(r, n)
				o := text.GenerateOptions{Greedy: true, MaxTokens: 1, IgnoreEnd: true}
				var ids [2][]int64
				var logs [2][]float64
				for k, b := range []*text.Batcher{own, other} {
					var err error
					if ids[k], logs[k], err = answerOf(t.Context(), b, prompt, o); err != nil {
						t.Fatal(err)
					}
				}
				far := math.Abs(logs[0][0] - logs[1][0])
				if !(far <= near) || !torchtest.Device().IsCUDA() && ids[0][0] != ids[1][0] {
					t.Errorf("prompt %d of %d tokens: got %v (%v), want %v (%v)", i, n, ids[0], logs[0], ids[1], logs[1])
				}
			}
			if s := own.PieceStats(); torchtest.Device().IsCUDA() && (s.Launches < 6 || s.Why != "") {
				t.Errorf("%d launches, %d eager: %s", s.Launches, s.Eager, s.Why)
			}
		})
	}
}

// A prompt beside an answer takes as many steps as it has pieces: no pass for what is left of one.
func TestBatcher_Passes(t *testing.T) {
	m := openServed(t, "llama", text.Options{Context: 4000, CacheTokens: 8000})
	b := batcherOf(t, m, text.BatcherOptions{MaxBatch: 2})
	b.CapturePieces(true)
	ctx, cancel := context.WithCancel(t.Context())
	began, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		made := 0
		for range b.Generate(ctx, []int64{1, 2, 3}, text.GenerateOptions{Greedy: true, MaxTokens: 3900, IgnoreEnd: true}) {
			if made++; made == 1 {
				close(began)
			}
		}
	}()
	<-began
	before := b.StepsBeside()
	_, _, err := answerOf(t.Context(), b, randomTokens(rand.New(rand.NewPCG(9, 9)), 1000), text.GenerateOptions{Greedy: true, MaxTokens: 1})
	must.Do(t, err)
	if passes := b.StepsBeside() - before; passes != 4 || b.PieceStats().Eager+b.PieceStats().Launches != 1 {
		t.Errorf("a prompt of 1,000 tokens took %d steps, want 4 and no pass of its own", passes)
	}
	cancel()
	<-ended
}
