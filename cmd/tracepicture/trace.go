package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// span is a stretch of time, in milliseconds since the first work of the trace began.
type span struct{ start, end float64 }

func (s span) length() float64 { return s.end - s.start }

// work is a kernel or a copy.
type work struct {
	span
	copies bool
}

// lane is the work of one stream.
type lane struct {
	process, row int
	name         string
	work         []work
}

// mark is a training step in the trace. Its span is the time of the step on the device. If the
// trace has no marks of a device, the span is the time of the step on the host.
type mark struct {
	span
	name string
}

type trace struct {
	lanes []*lane
	marks []mark
}

// parse reads the Trace Event Format that WriteChrome writes. Process 1 is the host, and every
// other process is a device.
func parse(text []byte) (*trace, error) {
	var file struct {
		TraceEvents []struct {
			Name, Ph, Cat string
			Pid, Tid      int
			Ts, Dur       float64
			Args          struct{ Name string }
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("not the JSON of a trace: %w", err)
	}
	type place struct{ process, row int }
	lanes, names, devices := map[place]*lane{}, map[place]string{}, map[int]string{}
	var host, device []mark
	for _, e := range file.TraceEvents {
		at := place{e.Pid, e.Tid}
		s := span{e.Ts / 1e3, (e.Ts + e.Dur) / 1e3}
		switch {
		case e.Ph == "M" && e.Name == "process_name":
			devices[e.Pid] = e.Args.Name
		case e.Ph == "M" && e.Name == "thread_name":
			names[at] = e.Args.Name
		case e.Ph == "X" && e.Cat == "mark" && e.Pid == 1:
			host = append(host, mark{s, e.Name})
		case e.Ph == "X" && e.Cat == "mark":
			device = append(device, mark{s, e.Name})
		case e.Ph == "X" && (e.Cat == "kernel" || e.Cat == "copy"):
			if lanes[at] == nil {
				lanes[at] = &lane{process: e.Pid, row: e.Tid}
			}
			lanes[at].work = append(lanes[at].work, work{s, e.Cat == "copy"})
		}
	}
	t := &trace{marks: host}
	if len(device) > 0 {
		t.marks = merged(device)
	}
	processes := map[int]bool{}
	for at, l := range lanes {
		slices.SortFunc(l.work, func(a, b work) int { return cmp.Compare(a.start, b.start) })
		l.name = names[at]
		processes[at.process] = true
		t.lanes = append(t.lanes, l)
	}
	if len(t.lanes) == 0 {
		return nil, errors.New("no kernel and no copy in it: only a CUDA device has them")
	}
	slices.SortFunc(t.lanes, func(a, b *lane) int {
		return cmp.Or(cmp.Compare(a.process, b.process), cmp.Compare(b.busy(false), a.busy(false)), cmp.Compare(a.row, b.row))
	})
	if len(processes) > 1 {
		for _, l := range t.lanes {
			l.name += " of " + devices[l.process]
		}
	}
	t.shift()
	return t, nil
}

// merged joins the marks that have the same name, because each stream has its own mark of a step.
// It sorts the result by start.
func merged(marks []mark) []mark {
	at := map[string]int{}
	var all []mark
	for _, m := range marks {
		i, ok := at[m.name]
		if !ok {
			at[m.name] = len(all)
			all = append(all, m)
			continue
		}
		all[i].start, all[i].end = min(all[i].start, m.start), max(all[i].end, m.end)
	}
	slices.SortFunc(all, func(a, b mark) int { return cmp.Compare(a.start, b.start) })
	return all
}

// shift moves all times, so that the first work begins at 0.
func (t *trace) shift() {
	first := t.lanes[0].work[0].start
	for _, l := range t.lanes {
		first = min(first, l.work[0].start)
	}
	for _, l := range t.lanes {
		for i := range l.work {
			l.work[i].start, l.work[i].end = l.work[i].start-first, l.work[i].end-first
		}
	}
	for i := range t.marks {
		t.marks[i].start, t.marks[i].end = t.marks[i].start-first, t.marks[i].end-first
	}
}

// busy returns how long the lane's kernels run in all. If `copies` is true, it returns how long
// the lane's copies run instead.
func (l *lane) busy(copies bool) (sum float64) {
	for _, w := range l.work {
		if w.copies == copies {
			sum += w.length()
		}
	}
	return sum
}

func (t *trace) end() (end float64) {
	for _, l := range t.lanes {
		for _, w := range l.work {
			end = max(end, w.end)
		}
	}
	return end
}

const steps = 3 // number of steps that a picture shows

// window returns the part of the trace that -from and -for choose. Without them it returns the
// three consecutive steps with the most busy time of all streams together per millisecond.
func (t *trace) window(from, long float64) (span, error) {
	end := t.end()
	if from >= end {
		return span{}, fmt.Errorf("-from %g: the trace ends at %.3f ms", from, end)
	}
	switch {
	case from >= 0 && long > 0:
		return span{from, min(from+long, end)}, nil
	case from >= 0:
		return span{from, end}, nil
	case long > 0:
		return span{0, min(long, end)}, nil
	case len(t.marks) < steps:
		return span{0, end}, nil
	}
	var best span
	most := -1.0
	for i := range len(t.marks) - steps + 1 {
		w := span{max(t.marks[i].start, 0), min(t.marks[i+steps-1].end, end)}
		if w.length() <= 0 {
			continue
		}
		var busy float64
		for _, l := range t.lanes {
			busy += length(l.in(w, false)) + length(l.in(w, true))
		}
		if share := busy / w.length(); share > most {
			best, most = w, share
		}
	}
	if most < 0 {
		return span{0, end}, nil
	}
	return best, nil
}

// in returns the times in w at which the lane's kernels run. If `copies` is true, it returns the
// times at which the lane's copies run instead. It joins times that touch each other.
func (l *lane) in(w span, copies bool) (all []span) {
	for _, x := range l.work {
		s := span{max(x.start, w.start), min(x.end, w.end)}
		if x.copies == copies && s.length() > 0 {
			all = append(all, s)
		}
	}
	return joined(all, 0)
}

// joined joins spans whose distance is at most `gap`.
func joined(all []span, gap float64) (out []span) {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	for _, s := range all {
		if last := len(out) - 1; last >= 0 && s.start <= out[last].end+gap {
			out[last].end = max(out[last].end, s.end)
		} else {
			out = append(out, s)
		}
	}
	return out
}

func length(all []span) (sum float64) {
	for _, s := range all {
		sum += s.length()
	}
	return sum
}

// hidden returns two durations. `total` is how long copies run in the window w. `behind` is the
// part of that time during which kernels of other streams of the same device run.
func (t *trace) hidden(w span) (behind, total float64) {
	for _, l := range t.lanes {
		copies := l.in(w, true)
		total += length(copies)
		var others []span
		for _, o := range t.lanes {
			if o != l && o.process == l.process {
				others = append(others, o.in(w, false)...)
			}
		}
		for _, k := range joined(others, 0) {
			for _, c := range copies {
				behind += max(0, min(c.end, k.end)-max(c.start, k.start))
			}
		}
	}
	return behind, total
}
