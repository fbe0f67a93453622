package cgotorch_test

import (
	. "github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/must"
	"slices"
	"testing"
	"time"

	"github.com/streamtorch/streamtorch/internal/torchtest"
)

func TestReadAsync(t *testing.T) {
	torchtest.OnEachDevice(t, func(t *testing.T, d Device) {
		var sum, matrix, nothing *HostRead
		s := torchtest.NewStream(t, d)
		read := func() {
			torchtest.DoOn(t, s, func(x *Exec) {
				a := FromSlice(x, []float32{1, 2, 3, 4, 5, 6}, 2, 3)
				torchtest.Sleep(x, 100*time.Millisecond)
				sum = x.ReadAsync(x.Sum(x.Transpose(a, 0, 1)))
				matrix = x.ReadAsync(x.Transpose(a, 0, 1))
				nothing = x.ReadAsync(x.Empty(Float32, 0))
				x.MulInPlace(a, a) // must not change what the copies have read

			})
		}
		read()
		must.Do(t, s.Synchronize())
		for _, r := range []*HostRead{sum, matrix, nothing} { // after Close, the second call of `read` uses the memory of these reads
			r.Close()
		}
		read()
		if d.IsCUDA() && isClosed(sum.Done()) {
			t.Error("it waited for the device")
		}
		<-sum.Done()
		if v, err := sum.Item(); v != 21 || err != nil {
			t.Errorf("the sum is %v, %v", v, err)
		}
		if v, err := Elements[float32](matrix); !slices.Equal(v, []float32{1, 4, 2, 5, 3, 6}) || err != nil {
			t.Errorf("the elements are %v, %v", v, err)
		}
		if v, err := Elements[float32](nothing); len(v) != 0 || err != nil {
			t.Errorf("no elements are %v, %v", v, err)
		}
		if v, err := sum.Bytes(); !slices.Equal(v, []byte{0, 0, 0xa8, 0x41}) || err != nil {
			t.Errorf("the bytes are %v, %v", v, err)
		}
		_, err := Elements[int64](matrix)
		wantError(t, err, ErrInvalidArgument, "Elements", "float32[3 2]", "hostread_test.go")
		_, err = matrix.Item()
		wantError(t, err, ErrInvalidArgument, "HostRead.Item")
		for _, r := range []*HostRead{sum, matrix, nothing} {
			r.Close()
			r.Close()
		}
		_, err = sum.Item()
		wantError(t, err, ErrClosed, "HostRead.Item")
		_, err = Elements[float32](matrix)
		wantError(t, err, ErrClosed, "Elements")
		if !isClosed(sum.Done()) {
			t.Error("a closed read is not done")
		}
	})
}

// Close does not free memory while another call reads the memory.
func TestHostRead_CloseWaitsForReads(t *testing.T) {
	torchtest.CheckLeaks(t)
	var r *HostRead
	torchtest.Do(t, CPU, func(x *Exec) { r = x.ReadAsync(x.Ones(Float32, 1)) })
	reading, closed := make(chan bool), make(chan struct{})
	must.Do(t, ReadWithin(r, "test", func(host *Tensor) error {
		go func() {
			close(reading)
			r.Close()
			close(closed)
		}()
		<-reading
		time.Sleep(20 * time.Millisecond) // Close most likely waits by then; the test also passes if Close has not begun
		if host.Closed() || isClosed(closed) {
			t.Error("closed under a read")
		}
		return nil
	}))
	<-closed
}
