// Package metrics writes Prometheus's text format. All names begin with streamtorch_.
package metrics

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Page is a text in Prometheus's format. Its zero value is empty.
type Page struct {
	bytes.Buffer
	name string // of the metric that [Page.Begin] has begun
}

// Begin begins a metric. `kind` is "counter", "gauge" or "histogram".
func (p *Page) Begin(name, kind, help string) {
	p.name = "streamtorch_" + name
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", p.name, help, p.name, kind)
}

// Line writes a value with its labels, which are names and values in turn.
func (p *Page) Line(value float64, labels ...string) { p.line("", value, labels...) }

var escaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

func (p *Page) line(suffix string, value float64, labels ...string) {
	p.WriteString(p.name + suffix)
	for i := 0; i < len(labels); i += 2 {
		fmt.Fprintf(p, `%c%s="%s"`, "{,"[min(i, 1)], labels[i], escaped.Replace(labels[i+1]))
	}
	fmt.Fprintf(p, "} %s\n", number(value))
}

func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.FormatInt(int64(v), 10)
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// Histogram counts times up to each of some bounds. Its zero value is empty.
type Histogram struct {
	buckets [len(bounds)]int64
	count   int64
	sum     time.Duration
}

// bounds are the largest times of the buckets, in seconds. A bucket counts the shorter ones too.
var bounds = [...]float64{0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384}

// Add counts a time. The caller locks.
func (h *Histogram) Add(took time.Duration) {
	h.count++
	h.sum += took
	for i, bound := range bounds {
		if took.Seconds() <= bound {
			h.buckets[i]++
		}
	}
}

// Histogram writes the counts of times, with their labels as [Page.Line] has them.
func (p *Page) Histogram(h *Histogram, labels ...string) {
	with := func(bound string) []string { return append(labels[:len(labels):len(labels)], "le", bound) }
	for i, bound := range bounds {
		p.line("_bucket", float64(h.buckets[i]), with(number(bound))...)
	}
	p.line("_bucket", float64(h.count), with("+Inf")...)
	p.line("_sum", h.sum.Seconds(), labels...)
	p.line("_count", float64(h.count), labels...)
}
