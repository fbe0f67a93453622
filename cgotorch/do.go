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
// *data.Batch, is released after its Do. The result of fn may be left out. DoEach returns the
// number of batches for which fn succeeded. It ends with the first error, of the sequence or of a
// Do. To leave the epoch early, return an error of your own, and look for it with errors.Is.
func DoEach[B any, F func(x *Exec, batch B) | func(x *Exec, batch B) error](s *Stream, batches iter.Seq2[B, error], fn F) (n int, err error) {
	var each func(*Exec, B) error
	switch fn := any(fn).(type) {
	case func(*Exec, B) error:
		each = fn
	case func(*Exec, B):
		each = func(x *Exec, batch B) error { fn(x, batch); return nil }
	}
	for batch, err := range batches {
		if err != nil {
			return n, err
		}
		if err := doOne(s, batch, each); err != nil {
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

// DoValue is [Stream.Do] for a function with a result, such as a model or a number:
//
//	model, err := cgotorch.DoValue(stream, func(x *cgotorch.Exec) (*nn.Linear, error) {
//		return nn.NewLinear(x, 2, 2, nn.LinearOptions{}), nil
//	})
//
// It waits as Do does. The caller owns the result. A tensor in the result must be kept with
// [Exec.Keep]. The parameters of modules are kept already. DoValue returns the zero value if the
// Do fails. It closes nothing that fn has made: fn does so before it returns an error.
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
