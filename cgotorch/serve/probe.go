package serve

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/internal/panics"
)

// A probe looks whether a result of an entry depends on the other entries of its batch.
//
// Batches of one size run the same kernels. So where other entries change and an entry does not,
// its results must stay, apart from what differs between two equal calls. Batches of another size
// may run other kernels, which round in another way. Only a large difference counts there.
type probe struct {
	b      *Batcher
	length int64
	pool   [][][]byte // entries, by input and place
}

// answers are results of entries, by result and place.
type answers [][][]byte

// checkEntries fails if a result of an entry depends on the other entries of its batch, or on its
// place, in batches of a length.
func (b *Batcher) checkEntries(length int64) error {
	const enough = 4 // entries that are changed and kept
	largest := b.policy.largest(length)
	n := b.policy.padded(length, min(enough, largest))
	if n == 1 {
		return nil
	}
	p := &probe{b: b, length: length}
	if !p.draw(2*n) && length == b.o.Lengths[0] {
		b.log("the entries that New compares are equal, which hides a dependence on the batch; give others as Options.Samples")
	}
	places := make([]int, max(n, largest)) // the first n entries stand first; others fill the batch
	for i := range places {
		places[i] = i % (2 * n)
	}
	first, err := p.compute(places[:n])
	if err != nil {
		return err
	}
	again, err := p.compute(places[:n])
	if err != nil {
		return err
	}
	noise := make([]float64, len(first))
	for k := range first {
		noise[k] = difference(b.outputs[k].DType, first[k], again[k])
		if noise[k] > toleranceOf(b.outputs[k].DType).noise {
			return p.refuse(k, noise[k], "differs between two calls with the same inputs, as with dropout, random numbers or a state")
		}
	}
	// keep fails if an entry has other results where all others change.
	keep := func(before answers, kept int) error {
		others := slices.Clone(places[:len(before[0])])
		for i := range others {
			if i != kept {
				others[i] = (others[i] + n) % (2 * n)
			}
		}
		changed, err := p.compute(others)
		if err != nil {
			return err
		}
		for k := range before {
			t := toleranceOf(b.outputs[k].DType)
			if d := difference(b.outputs[k].DType, before[k][kept:kept+1], changed[k][kept:kept+1]); d > max(t.alike, min(4*noise[k], t.noise)) {
				return p.refuse(k, d, "of an entry changes with the other entries of its batch")
			}
		}
		return nil
	}
	looked := slices.Compact([]int{0, 1, max(1, n/2), n - 1})
	for _, kept := range looked {
		if err := keep(first, kept); err != nil {
			return err
		}
	}
	all := first
	if largest > n {
		if all, err = p.compute(places[:largest]); err != nil {
			return err
		}
		if err := keep(all, largest/2); err != nil { // one that has others far before and behind it
			return err
		}
	}
	alone, among := make(answers, len(first)), make(answers, len(first))
	for _, i := range looked {
		one, err := p.compute(places[i : i+1])
		if err != nil {
			return err
		}
		for k := range first {
			alone[k] = append(alone[k], one[k][0], one[k][0])
			among[k] = append(among[k], first[k][i], all[k][i])
		}
	}
	for k := range first {
		if d := difference(b.outputs[k].DType, alone[k], among[k]); d > toleranceOf(b.outputs[k].DType).other {
			return p.refuse(k, d, "of an entry is not the same alone as among others")
		}
	}
	return nil
}

// refuse names the result that depends on more than its entry.
func (p *probe) refuse(k int, d float64, reason string) error {
	out := p.b.outputs[k]
	far := fmt.Sprintf("by %.2g of its largest element", d)
	if floats(out.DType, nil) == nil {
		far = fmt.Sprintf("in %.2g of its elements", d)
	}
	return fmt.Errorf("serve: New: result %d, %q, %s, %s: %s: %w", k, out.Name, reason, far, ownEntries, cgotorch.ErrInvalidArgument)
}

const ownEntries = "compute each entry on its own, with the model in evaluation mode, or set Options.Dependent"

// draw makes n entries of each input: those of Options.Samples, or else random numbers from 0 to 1
// for floating dtypes, random pixels for images, and zeros for other inputs. It reports whether
// they differ.
func (p *probe) draw(n int) (differ bool) {
	samples := p.b.o.Samples
	for k, a := range samples {
		if _, length, _ := p.b.o.Inputs[k].entries(a); length > p.length {
			samples = nil // they do not fit this length
		}
	}
	draw := rand.New(rand.NewPCG(1, 2))
	p.pool = make([][][]byte, len(p.b.o.Inputs))
	for k, in := range p.b.o.Inputs {
		for i := range n {
			entry := make([]byte, in.bytes(p.length))
			if len(samples) > 0 {
				a := samples[k]
				at := i
				if i >= n/2 { // the second half has another sample at each place than the first
					at = i - n/2 + 1
				}
				at %= int(a.Shape[0])
				one := len(a.Data) / int(a.Shape[0])
				copyInto(entry, append([]int64{1}, in.at(p.length)...), a.Data[at*one:(at+1)*one], append([]int64{1}, a.Shape[1:]...), in.DType.Size())
			} else {
				in.randomize(entry, draw)
			}
			p.pool[k] = append(p.pool[k], entry)
			differ = differ || !bytes.Equal(entry, p.pool[k][0])
		}
	}
	return differ
}

// randomize sets an entry of zeros to random elements, where any element is allowed.
func (s Spec) randomize(entry []byte, draw *rand.Rand) {
	ne := binary.NativeEndian
	for at := 0; at < len(entry); {
		to := entry[at:]
		coarse := float32(draw.IntN(256)) / 256 // exact in 16 bits
		switch s.DType {
		case cgotorch.Float16:
			ne.PutUint16(to, uint16(cgotorch.ToFloat16(coarse)))
			at += 2
		case cgotorch.BFloat16:
			ne.PutUint16(to, uint16(cgotorch.ToBFloat16(coarse)))
			at += 2
		case cgotorch.Float32, cgotorch.Complex64:
			ne.PutUint32(to, math.Float32bits(draw.Float32()))
			at += 4
		case cgotorch.Float64, cgotorch.Complex128:
			ne.PutUint64(to, math.Float64bits(draw.Float64()))
			at += 8
		default:
			if s.Decoder == nil { // a random id could leave the table of an embedding
				return
			}
			to[0] = byte(draw.IntN(256))
			at++
		}
	}
}

// compute returns the results of a batch of entries, as Predict computes it.
func (p *probe) compute(places []int) (answers, error) {
	r := newRequest(context.Background())
	r.entries, r.length = len(places), p.length
	for k, in := range p.b.o.Inputs {
		a := Array{DType: in.DType, Shape: append([]int64{int64(len(places))}, in.at(p.length)...)}
		for _, i := range places {
			a.Data = append(a.Data, p.pool[k][i]...)
		}
		r.inputs = append(r.inputs, a)
	}
	f := form{p.b.policy.padded(p.length, len(places)), p.length}
	reads, _, err := p.b.enqueueBatch(p.b.slots[0], []*request{r}, f)
	var got answers
	for _, read := range reads {
		<-read.Done()
		data, failed := read.Bytes()
		if err == nil {
			err = failed
		}
		read.Close()
		var entries [][]byte
		for i, each := 0, len(data)/f.size; i < len(places); i++ {
			entries = append(entries, data[i*each:(i+1)*each])
		}
		got = append(got, entries)
	}
	if err != nil {
		panics.Raise(err)
		return nil, fmt.Errorf("%w (in a batch of %d entries, to compare an entry alone and among others; Options.Samples has other entries for it)", err, len(places))
	}
	return got, nil
}

// A tolerance says which differences are no proof.
type tolerance struct {
	alike float64 // in batches of one size
	noise float64 // in two equal calls; kernels with atomic sums differ a little
	other float64 // in batches of different sizes
}

// toleranceOf returns the tolerance of a result. A float32 may have been a bfloat16 inside the
// function. An integer may be the place of a maximum that two elements nearly share.
func toleranceOf(d cgotorch.DType) tolerance {
	switch d {
	case cgotorch.Float64, cgotorch.Complex128:
		return tolerance{1e-10, 1e-4, 1e-4}
	case cgotorch.Float32, cgotorch.Complex64:
		return tolerance{1e-5, 0.05, 0.05}
	case cgotorch.Float16:
		return tolerance{1e-3, 0.05, 0.05}
	case cgotorch.BFloat16:
		return tolerance{1e-2, 0.1, 0.1}
	}
	return tolerance{0, 0, 0.5}
}

// difference returns how far the results of some entries lie apart: as a share of an entry's
// largest element, or for integers and bools as the share of all elements that differ. NaN is
// equal to NaN.
func difference(d cgotorch.DType, a, b [][]byte) float64 {
	const least = 1e-3 // a largest element below is mostly a rounded 0
	size := d.Size()
	most, differ, total := 0.0, 0, 0
	for i := range a {
		v, w := floats(d, a[i]), floats(d, b[i])
		largest := least
		for j := range v {
			for _, u := range []float64{math.Abs(v[j]), math.Abs(w[j])} {
				if u > largest && !math.IsInf(u, 0) {
					largest = u
				}
			}
		}
		for j := range v {
			switch apart := math.Abs(v[j] - w[j]); {
			case v[j] == w[j] || v[j] != v[j] && w[j] != w[j]:
			case apart != apart:
				most = math.Inf(1)
			default:
				most = max(most, apart/largest)
			}
		}
		for j := 0; v == nil && j < len(a[i]); j += size {
			if total++; !bytes.Equal(a[i][j:j+size], b[i][j:j+size]) {
				differ++
			}
		}
	}
	return max(most, float64(differ)/float64(max(total, 1)))
}

// floats returns elements of a floating or complex dtype, and nil for another one.
func floats(d cgotorch.DType, data []byte) []float64 {
	ne := binary.NativeEndian
	var size int
	var one func(at []byte) float64
	switch d {
	case cgotorch.Float16:
		size, one = 2, func(at []byte) float64 { return float64(cgotorch.Float16Bits(ne.Uint16(at)).Float32()) }
	case cgotorch.BFloat16:
		size, one = 2, func(at []byte) float64 { return float64(cgotorch.BFloat16Bits(ne.Uint16(at)).Float32()) }
	case cgotorch.Float32, cgotorch.Complex64:
		size, one = 4, func(at []byte) float64 { return float64(math.Float32frombits(ne.Uint32(at))) }
	case cgotorch.Float64, cgotorch.Complex128:
		size, one = 8, func(at []byte) float64 { return math.Float64frombits(ne.Uint64(at)) }
	default:
		return nil
	}
	list := make([]float64, len(data)/size)
	for i := range list {
		list[i] = one(data[i*size:])
	}
	return list
}
