package cgotorch

import (
	"strings"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/seam"
)

func init() {
	seam.Ready, seam.Check, seam.Caller, seam.Waits = ready, check, caller, waits
	seam.StreamName = func(id uint64) (string, bool) {
		name, ok := streams.names.Load(id)
		if !ok {
			return "", false
		}
		return name.(string), true
	}
	seam.Device = func(device any) ct.Device { return device.(Device).c() }
	seam.Operator = func(name string) any { return &operator{name: name} }
	seam.Schema = func(op any) (string, error) { return op.(*operator).schema() }
	seam.Explain = func(x any, place, cure string) {
		e := x.(*Exec).s.err
		if e == nil || e.place != "" {
			return
		}
		if e.place = place; cure != "" {
			message, _, _ := strings.Cut(e.Message, "; ")
			e.Message = message + "; " + cure
		}
	}
	seam.Failure = func(x any) any { return x.(*Exec).s.err }
	seam.Watched = func(x any) bool { return x.(*Exec).c.Watch != nil }
	seam.Unwatched = func(x any) any {
		y := *x.(*Exec)
		y.c.Watch = nil
		return &y
	}
	seam.Core = func(x any, op string, tensors any) (ct.Exec, []*ct.Tensor) {
		return x.(*Exec).core(op, tensors.([]*Tensor))
	}
	seam.Must = func(x any, op string, status *ct.Status, tensors any) {
		x.(*Exec).must(op, status, tensors.([]*Tensor)...)
	}
	seam.Own = func(x any, h *ct.Tensor) any { return x.(*Exec).s.own(h) }
	seam.Call = func(x, op any) any { return x.(*Exec).call(op.(*operator)) }
	seam.Casts = func(x any) any { return x.(*Exec).casts }
	seam.WithCasts = func(x, casts any) any {
		y := *x.(*Exec)
		y.casts = casts
		return &y
	}
	seam.Optimized = func(t any) { t.(*Tensor).leafRole().optimized = true }
	seam.SetReducer = func(t any, r seam.Reducer, i int) {
		role := t.(*Tensor).leafRole()
		role.reducer, role.index = r, i
	}
	seam.ReducerOf = func(t any) (seam.Reducer, int) {
		if role := t.(*Tensor).role; role != nil {
			return role.reducer, role.index
		}
		return nil, 0
	}
	seam.HasGrad = func(t, grad any) bool { return t.(*Tensor).grad == grad.(*Tensor) }
	seam.WatchLeaves = func(x any) { watchLeaves(x.(*Exec)) }
	seam.StrayLeaves = func(x any) string { return strayLeaves(x.(*Exec)) }
	seam.Report = func(x any) any { return x.(*Exec).layerReport }
	seam.WithReport = func(x, report any) any {
		y := *x.(*Exec)
		y.layerReport = report
		return &y
	}
}
