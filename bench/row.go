package main

import (
	"encoding/json"
	"io"
	"math"
)

// row is one line of the output.
type row struct {
	Name      string  `json:"name"`
	Value     number  `json:"value"`
	Unit      string  `json:"unit"`
	Peer      *string `json:"peer"`       // nil if there is no peer
	PeerValue *number `json:"peer_value"` // in the same unit as Value
	Ratio     *number `json:"ratio"`      // above 1 is better for this library
	Note      string  `json:"note"`
}

// number is written with five significant digits. Numbers from 1e5 on keep all digits.
type number float64

func (n number) MarshalJSON() ([]byte, error) {
	v := float64(n)
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		if v == 0 {
			return []byte("0"), nil
		}
		return []byte("null"), nil
	}
	if math.Abs(v) < 1e5 {
		scale := math.Pow(10, 4-math.Floor(math.Log10(math.Abs(v))))
		v = math.Round(v*scale) / scale
	}
	return json.Marshal(v)
}

// better says whether lower or higher values are better.
type better int

const (
	lower better = iota
	higher
)

// against returns the row that compares value with a peer's value.
func against(name string, value float64, unit string, peer string, peerValue float64, is better, note string) row {
	ratio, other := number(peerValue/value), number(peerValue)
	if is == higher {
		ratio = number(value / peerValue)
	}
	return row{Name: name, Value: number(value), Unit: unit, Peer: &peer, PeerValue: &other, Ratio: &ratio, Note: note}
}

// inTurns returns the row of two sides whose blocks alternated. The values are medians. The ratio
// is the median of the ratios of each round.
func inTurns(name string, ours sample, unit string, peer string, theirs sample, is better, note string) row {
	r := against(name, ours.median(), unit, peer, theirs.median(), is, note)
	if is == lower {
		ours, theirs = theirs, ours
	}
	r.Ratio = ratioOf(ratios(ours, theirs).median(), 1)
	return r
}

// ratioOf returns a/b, for the field Ratio of a row. It is for rows whose Ratio cannot be
// computed from Value and PeerValue.
func ratioOf(a, b float64) *number {
	r := number(a / b)
	return &r
}

// alone returns the row of a value that has no peer.
func alone(name string, value float64, unit, note string) row {
	return row{Name: name, Value: number(value), Unit: unit, Note: note}
}

func (r row) write(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(r)
}
