package trace

import (
	"cmp"
	"github.com/streamtorch/streamtorch/cgotorch"
	"slices"
	"time"
)

// CopyHidden returns how much of the copying to devices ran at the same time as kernels. `total`
// is the sum of the times of all copies from host to device. `hidden` is the part of `total`
// during which a stream other than the copy's stream ran a kernel on the device. `share` is
// hidden/total, or 1 if there were no copies from host to device.
func (r *Records) CopyHidden() (share float64, hidden, total time.Duration) {
	for _, d := range r.devices() {
		for _, stream := range r.streams(d) {
			h, t := r.hidden(d, func(w *Record) bool { return w.Stream == stream && w.Kind == Copy && w.Copy == hostToDevice },
				func(w *Record) bool { return w.Stream != stream })
			hidden, total = hidden+h, total+t
		}
	}
	return shareOf(hidden, total), hidden, total
}

// Hidden returns how much of the work that `which` chooses ran at the same time as kernels that it
// does not choose, of any stream. `total` is the sum of the times of the chosen work. `hidden` is
// the part of `total` during which the same device ran another kernel. `share` is hidden/total, or
// 1 if nothing was chosen. The kernels of NCCL have "nccl" in their names.
func (r *Records) Hidden(which func(w *Record) bool) (share float64, hidden, total time.Duration) {
	for _, d := range r.devices() {
		h, t := r.hidden(d, which, func(*Record) bool { return true })
		hidden, total = hidden+h, total+t
	}
	return shareOf(hidden, total), hidden, total
}

// hidden returns the time of a device's chosen work, and how much of it other kernels hide.
func (r *Records) hidden(d cgotorch.Device, which, hides func(w *Record) bool) (hidden, total time.Duration) {
	var chosen, others []interval
	for i := range r.Work {
		w := &r.Work[i]
		switch {
		case w.Device != d:
		case which(w):
			chosen = append(chosen, interval{w.Start, w.End})
		case w.Kind == Kernel && hides(w):
			others = append(others, interval{w.Start, w.End})
		}
	}
	busy := union(others)
	for _, c := range chosen {
		total += c.end - c.start
		hidden += covered(c, busy)
	}
	return hidden, total
}

func shareOf(hidden, total time.Duration) float64 {
	if total == 0 {
		return 1
	}
	return float64(hidden) / float64(total)
}

// Parallel returns the time in which several streams ran kernels at the same time. `busy` is the
// time in which at least one kernel ran. `together` is the part of `busy` in which two or more
// streams of a device ran kernels. `share` is together/busy, or 0 if nothing ran.
func (r *Records) Parallel() (share float64, together, busy time.Duration) {
	for _, d := range r.devices() {
		var all, several []interval // the times in which at least one stream runs, and at least two
		for _, stream := range r.streams(d) {
			var kernels []interval
			for _, w := range r.Work {
				if w.Device == d && w.Stream == stream && w.Kind == Kernel {
					kernels = append(kernels, interval{w.Start, w.End})
				}
			}
			for _, k := range union(kernels) {
				several = append(several, common(k, all)...)
			}
			all = union(append(all, kernels...))
		}
		busy += length(all)
		together += length(union(several))
	}
	if busy == 0 {
		return 0, 0, 0
	}
	return float64(together) / float64(busy), together, busy
}

type interval struct{ start, end time.Duration }

func length(all []interval) (sum time.Duration) {
	for _, i := range all {
		sum += i.end - i.start
	}
	return sum
}

// union joins intervals that overlap or touch. The result is sorted. The argument `all` is sorted
// too.
func union(all []interval) []interval {
	slices.SortFunc(all, func(a, b interval) int { return cmp.Compare(a.start, b.start) })
	var joined []interval
	for _, i := range all {
		if last := len(joined) - 1; last >= 0 && i.start <= joined[last].end {
			joined[last].end = max(joined[last].end, i.end)
		} else {
			joined = append(joined, i)
		}
	}
	return joined
}

// covered returns the length of the part of i that lies in the intervals `by`. The intervals `by`
// must be a result of the function `union`.
func covered(i interval, by []interval) time.Duration { return length(common(i, by)) }

// common returns the parts of i that lie in the intervals `by`. The intervals `by` must be a result
// of the function `union`.
func common(i interval, by []interval) (parts []interval) {
	first, _ := slices.BinarySearchFunc(by, i.start, func(b interval, start time.Duration) int {
		if b.end <= start {
			return -1
		}
		return 1
	})
	for _, b := range by[first:] {
		if b.start >= i.end {
			break
		}
		parts = append(parts, interval{max(b.start, i.start), min(b.end, i.end)})
	}
	return parts
}

// span is the time of a mark on one stream.
type span struct {
	mark   Mark
	stream uint64
	device cgotorch.Device
	interval
}

// spans finds the kernels that the host enqueued during each mark. It returns one span for each
// mark and each stream with such kernels. The span lasts from the earliest start to the latest end
// of the mark's kernels on the stream.
func (r *Records) spans() []span {
	byLaunch := make([]*Record, 0, len(r.Work))
	for i := range r.Work {
		if w := &r.Work[i]; w.Kind == Kernel && w.Launched {
			byLaunch = append(byLaunch, w)
		}
	}
	slices.SortFunc(byLaunch, func(a, b *Record) int { return cmp.Compare(a.Launch, b.Launch) })
	before := func(w *Record, at time.Duration) int {
		if w.Launch < at {
			return -1
		}
		return 1
	}
	var all []span
	for _, m := range r.Marks {
		at := map[uint64]int{}
		first, _ := slices.BinarySearchFunc(byLaunch, m.Start, before)
		for _, w := range byLaunch[first:] {
			if w.Launch >= m.End {
				break
			}
			i, ok := at[w.Stream]
			if !ok {
				i = len(all)
				at[w.Stream] = i
				all = append(all, span{m, w.Stream, w.Device, interval{w.Start, w.End}})
			}
			all[i].start, all[i].end = min(all[i].start, w.Start), max(all[i].end, w.End)
		}
	}
	return all
}

// assignRows gives each interval a row. Trace viewers need this rule: two intervals of a row do
// not overlap, or one lies inside the other.
func assignRows(all []interval) []int {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(all[a].start, all[b].start), cmp.Compare(all[b].end, all[a].end)) // of two intervals with the same start, the longer one comes first
	})
	var open [][]time.Duration // for each row, the ends of its open intervals, the innermost last
	rows := make([]int, len(all))
	for _, i := range order {
		row := 0
		for ; ; row++ {
			if row == len(open) {
				open = append(open, nil)
			}
			stack := open[row]
			for len(stack) > 0 && stack[len(stack)-1] <= all[i].start {
				stack = stack[:len(stack)-1]
			}
			open[row] = stack
			if len(stack) == 0 || all[i].end <= stack[len(stack)-1] {
				open[row] = append(stack, all[i].end)
				break
			}
		}
		rows[i] = row
	}
	return rows
}
