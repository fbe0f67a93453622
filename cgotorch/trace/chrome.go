package trace

import (
	"bufio"
	"encoding/json"
	"fmt"
	"github.com/streamtorch/streamtorch/cgotorch"
	"io"
	"os"
	"time"
)

// WriteChrome writes the trace as JSON in the Trace Event Format. ui.perfetto.dev and
// chrome://tracing open such files. They show the host as a process, with the spans of
// [Trace.Mark]. They show each device as a process, with a row for each stream. Rows above a
// stream's row show the spans that have work on that stream.
func (r *Records) WriteChrome(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	c := chrome{out: out}
	c.text(`{"displayTimeUnit":"ms","traceEvents":[`)
	r.writeHost(&c)
	for _, d := range r.devices() {
		r.writeDevice(&c, d)
	}
	c.text("\n]}\n")
	if c.err != nil {
		return fmt.Errorf("trace: WriteChrome: %w", c.err)
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("trace: WriteChrome: %w", err)
	}
	return nil
}

// Viewers show processes in the order of their numbers. The host has number 1, device n has 2+n.
const hostProcess = 1

func (r *Records) writeHost(c *chrome) {
	c.process(hostProcess, fmt.Sprintf("host, process %d", os.Getpid()))
	all := make([]interval, len(r.Marks))
	for i, m := range r.Marks {
		all[i] = interval{m.Start, m.End}
	}
	rows := assignRows(all)
	for row := range rowCount(rows) {
		c.row(hostProcess, 1+row, "marks")
	}
	for i, m := range r.Marks {
		c.event(event{Name: m.Name, Category: "mark", Process: hostProcess, Row: 1 + rows[i]}, all[i])
	}
}

func rowCount(rows []int) int {
	n := 0
	for _, row := range rows {
		n = max(n, row+1)
	}
	return n
}

func (r *Records) writeDevice(c *chrome, d cgotorch.Device) {
	process := hostProcess + 1 + d.Index()
	c.process(process, d.String())
	spans := r.spans()
	next, row := 1, map[uint64]int{}
	for _, stream := range r.streams(d) {
		var of []span
		var all []interval
		for _, s := range spans {
			if s.device == d && s.stream == stream {
				of, all = append(of, s), append(all, s.interval)
			}
		}
		rows := assignRows(all)
		for range rowCount(rows) {
			c.row(process, next, r.names[stream]+": marks")
			next++
		}
		for i, s := range of {
			c.event(event{Name: s.mark.Name, Category: "mark", Process: process, Row: next - rowCount(rows) + rows[i]}, s.interval)
		}
		c.row(process, next, r.names[stream])
		row[stream] = next
		next++
	}
	for i := range r.Work {
		w := &r.Work[i]
		if w.Device != d {
			continue
		}
		args := map[string]any{"thread": w.Thread}
		if w.Launched {
			args["enqueued"] = micros(w.Launch)
		}
		category := "kernel"
		if w.Kind == Kernel {
			args["blocks"] = w.Blocks
		} else {
			category, args["bytes"] = "copy", w.Bytes
		}
		c.event(event{Name: w.title(), Category: category, Process: process, Row: row[w.Stream], Args: args}, interval{w.Start, w.End})
	}
}

// chrome writes events. It keeps the first error of a write. After this error it writes nothing
// more.
type chrome struct {
	out   *bufio.Writer
	begun bool
	err   error
}

// event is an event of the Trace Event Format.
type event struct {
	Name     string         `json:"name"`
	Phase    string         `json:"ph"`
	Category string         `json:"cat,omitempty"`
	Process  int            `json:"pid"`
	Row      int            `json:"tid"`
	Time     *micros        `json:"ts,omitempty"`  // microseconds
	Duration *micros        `json:"dur,omitempty"` // microseconds
	Args     map[string]any `json:"args,omitempty"`
}

// micros is written in microseconds with three decimals, and never with an exponent.
type micros time.Duration

func (m micros) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, "%.3f", float64(m)/1e3), nil }

func (c *chrome) text(s string) {
	if c.err == nil {
		_, c.err = c.out.WriteString(s)
	}
}

func (c *chrome) write(e event) {
	if c.err != nil {
		return
	}
	text, err := json.Marshal(e)
	if err != nil {
		c.err = err
		return
	}
	if c.begun {
		c.text(",")
	}
	c.begun = true
	c.text("\n")
	c.text(string(text))
}

func (c *chrome) event(e event, i interval) {
	start, duration := micros(i.start), micros(i.end-i.start)
	e.Phase, e.Time, e.Duration = "X", &start, &duration
	c.write(e)
}

func (c *chrome) process(id int, name string) {
	c.write(event{Name: "process_name", Phase: "M", Process: id, Args: map[string]any{"name": name}})
	c.write(event{Name: "process_sort_index", Phase: "M", Process: id, Args: map[string]any{"sort_index": id}})
}

func (c *chrome) row(process, id int, name string) {
	c.write(event{Name: "thread_name", Phase: "M", Process: process, Row: id, Args: map[string]any{"name": name}})
	c.write(event{Name: "thread_sort_index", Phase: "M", Process: process, Row: id, Args: map[string]any{"sort_index": id}})
}
