package text

import (
	"errors"

	"github.com/streamtorch/streamtorch/cgotorch"
)

// results is the memory in which steps tell their tokens. Two tensors take turns, and are copied to
// the host on a stream of their own. So the next step does not wait for the copy.
type results struct {
	all    [2]*cgotorch.Tensor // Float64 [rows, 2+2*mostRanked]: the token, its log probability, and ranked ones
	copied [2]*cgotorch.Event  // the end of the last copy of each
	last   int                 // the one that the last step took
	stream *cgotorch.Stream
}

func newResults(x *cgotorch.Exec, rows int) *results {
	r := &results{}
	for i := range r.all {
		r.all[i] = x.Zeros(cgotorch.Float64, int64(rows), 2+2*mostRanked)
	}
	r.stream = cgotorch.Must(cgotorch.NewStream(x.Device(), cgotorch.StreamOptions{Name: "results of text"}))
	return r
}

// next returns the tensor of the next step. The step runs behind the tensor's last copy.
func (r *results) next(x *cgotorch.Exec) *cgotorch.Tensor {
	r.last = 1 - r.last
	x.Wait(r.copied[r.last]) //edge:results-wait-for-copy TestConversation_ResultsTakeTurns checked
	r.copied[r.last].Close()
	r.copied[r.last] = nil
	return r.all[r.last]
}

// read enqueues a copy of the last step's result to the host, behind the step. It does not wait.
func (r *results) read(x *cgotorch.Exec) *cgotorch.HostRead {
	told := x.Record()
	defer told.Close()
	y := x.On(r.stream)
	y.Wait(told) //edge:results-are-told TestConversation_ResultsTakeTurns checked
	read := y.ReadAsync(r.all[r.last])
	recorded := false
	defer func() {
		if !recorded {
			read.Close()
		}
	}()
	r.copied[r.last] = y.Record()
	recorded = true
	return read
}

func (r *results) close() error {
	return errors.Join(r.stream.Close(), r.copied[0].Close(), r.copied[1].Close(), r.all[0].Close(), r.all[1].Close())
}
