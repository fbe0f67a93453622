package cgotorch

// A lending says how the results of a Captured reach the Do of a Run. The zero value copies them.
type lending struct {
	inPlace bool // the Do gets handles of the graph's own results
}

const whoseResults = "a captured function with CapturedOptions.InPlace, whose next Run writes there"

// launched returns what a Run returns for the results ts of a graph. x's Do owns it.
func (l lending) launched(x *Exec, s *capturedShape, ts, in []*Tensor) []*Tensor {
	out := make([]*Tensor, len(ts))
	for i, t := range ts {
		if l.inPlace {
			out[i] = s.cut(x, x.Lend(t, whoseResults), firstOf(in))
		} else {
			out[i] = x.Clone(s.cut(x, t, firstOf(in)))
		}
	}
	return out
}

// eager returns what a Run returns for the results ts of an eager call. x's Do owns ts.
func (l lending) eager(x *Exec, ts []*Tensor) []*Tensor {
	if !l.inPlace {
		return ts
	}
	out := make([]*Tensor, len(ts))
	for i, t := range ts {
		out[i] = x.Lend(t, whoseResults)
	}
	return out
}

// untilEnd makes the pool's later work wait until x's Do has ended, because the Do may read lent
// results.
func (l lending) untilEnd(x *Exec, pool *graphPool) {
	if !l.inPlace {
		return
	}
	x.AtEnd(func() {
		pool.mu.Lock()
		defer pool.mu.Unlock()
		if !pool.ended {
			pool.used(x)
		}
	})
}
