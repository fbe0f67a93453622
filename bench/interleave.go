package main

import (
	"fmt"
	"slices"
	"time"
)

// side is a member of a comparison. Each call does a block of work and waits until the work has
// ended on the device. It returns the measured value.
type side func() (float64, error)

// interleave calls the sides alternately, A B A B …, and returns the values of each side. The
// values of the first round do not count.
func interleave(rounds int, sides ...side) ([]sample, error) {
	values := make([]sample, len(sides))
	for round := range rounds + 1 {
		for i, run := range sides {
			v, err := run()
			if err != nil {
				return nil, err
			}
			if round > 0 {
				values[i] = append(values[i], v)
			}
		}
	}
	return values, nil
}

// named are sides that are found by their names, with what they have measured.
type named struct {
	names  []string
	sides  []side
	values map[string]sample
}

func (n *named) add(name string, run side) {
	n.names, n.sides = append(n.names, name), append(n.sides, run)
}

// measure lets all sides take turns. A name that has no side has no values afterwards.
func (n *named) measure(rounds int) error {
	values, err := interleave(rounds, n.sides...)
	n.values = map[string]sample{}
	for i, v := range values {
		n.values[n.names[i]] = v
	}
	return err
}

// secondsEach makes `times` calls between two waits for the device. It returns the seconds of one
// call.
func (c *config) secondsEach(times int, call func() error) (float64, error) {
	if err := c.device.Synchronize(); err != nil {
		return 0, err
	}
	began := time.Now()
	for range times {
		if err := call(); err != nil {
			return 0, err
		}
	}
	if err := c.device.Synchronize(); err != nil {
		return 0, err
	}
	return time.Since(began).Seconds() / float64(times), nil
}

// sample is a set of measurements of one quantity.
type sample []float64

func (s sample) quantile(q float64) float64 {
	sorted := slices.Sorted(slices.Values(s))
	at := q * float64(len(sorted)-1)
	low := int(at)
	high := min(low+1, len(sorted)-1)
	return sorted[low] + (at-float64(low))*(sorted[high]-sorted[low])
}

func (s sample) median() float64 { return s.quantile(0.5) }

func (s sample) max() float64 { return slices.Max(s) }

// spread returns half the distance between the quartiles, as a share of the median.
func (s sample) spread() float64 { return (s.quantile(0.75) - s.quantile(0.25)) / 2 / s.median() }

// ratios divides a by b for each round. Slow changes of the machine's speed then cancel out.
func ratios(a, b sample) sample {
	r := make(sample, len(a))
	for i := range a {
		r[i] = a[i] / b[i]
	}
	return r
}

func (s sample) String() string {
	return fmt.Sprintf("median of %d, quartiles +-%.1f %%", len(s), 100*s.spread())
}
