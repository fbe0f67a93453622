package cgotorch

import "iter"

// DoEach runs [Stream.Do] once for each batch of an epoch, and calls fn in it:
//
//	step := func(x *cgotorch.Exec, batch *prefetcher.Batch) error {
//		images, labels := batch.Use(x)
//		…
//	}
//	n, err := cgotorch.DoEach(stream, ahead.Epoch(ctx), step)
//
// It waits for each batch, but not for the device. A batch with a method Release, such as a
// *data.Batch, is released after its Do. DoEach returns the number of batches for which fn
// succeeded. It ends with the first error, of the sequence or of a Do.
func DoEach[B any](s *Stream, batches iter.Seq2[B, error], fn func(x *Exec, batch B) error) (n int, err error) {
	for batch, err := range batches {
		if err != nil {
			return n, err
		}
		if err := doOne(s, batch, fn); err != nil {
			return n, err
		}
		n++
	}
	return n, nil
}

func doOne[B any](s *Stream, batch B, fn func(x *Exec, batch B) error) error {
	if b, ok := any(batch).(interface{ Release() }); ok {
		defer b.Release()
	}
	return s.Do(func(x *Exec) error { return fn(x, batch) })
}

// DoValue is [Stream.Do] for a function with a result, such as a model or a number. It returns
// the zero value if the Do fails. A tensor in the result must be kept with [Exec.Keep]. The
// parameters of modules are kept already.
func DoValue[T any](s *Stream, fn func(x *Exec) (T, error)) (T, error) {
	var value T
	err := s.Do(func(x *Exec) (err error) {
		value, err = fn(x)
		return err
	})
	if err != nil {
		value = *new(T)
	}
	return value, err
}
