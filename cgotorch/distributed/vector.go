package distributed

import (
	"github.com/streamtorch/streamtorch/cgotorch"
	"github.com/streamtorch/streamtorch/cgotorch/optim"
)

// Note [Vectors and parts]
//
// A Sharded sees the parameters of a group as flat vectors. The elements have the order in which
// they lie in memory, so channels-last weights need no other order. A vector is padded to a
// multiple of World. It is cut into World pieces of equal length, and each rank owns one.
//
// A part is what one parameter has in one piece. The parts of this rank are views of the
// parameters. They are the parameters of the optimizer of this rank. So each part has its own count
// of steps, and a parameter without a gradient stays as it is. The weights themselves are not kept
// twice.
//
// The vectors of one dtype take turns with two buffers, which the collectives read and write. All
// views of them are made once, so a step makes few calls. With one rank there are no vectors.
//
// The collectives run on the group's side stream, one vector after another. Meanwhile the stream of
// the step works for the vectors before and after: it copies gradients into the other buffer,
// changes the parts of the next vector, and copies gathered weights out.

// vector is some parameters of one group and dtype, one after another.
type vector struct {
	dtype  cgotorch.DType
	params []int   // indices in Sharded.params
	sizes  []int64 // elements of each of them, then the padding
	piece  int64   // elements of each rank's piece
	parts  []*part // in order; all ranks' parts
	cuts   []int64 // elements of each part, then the padding
	own    []*part // this rank's parts, in order
	mine   []int64 // elements of each of them, then the rest of the piece
	ours   []int   // indices of the own parts in the parameters of this rank's optimizer
	active bool    // the step changes some of the parameters

	buffer *buffer
	flat   *cgotorch.Tensor   // the vector, in buffer.flat
	places []*cgotorch.Tensor // of the parameters in flat, with their shapes and strides
	send   *cgotorch.Tensor   // this rank's piece, in buffer.send
}

// buffer is memory for the collectives of one vector at a time.
type buffer struct {
	flat *cgotorch.Tensor // holds the pieces of all ranks
	send *cgotorch.Tensor // holds the piece of this rank
}

// part is the elements of one parameter in the piece of one rank.
type part struct {
	param  int              // index in Sharded.params
	rank   int              // of the owner
	from   int64            // the first element, in the parameter's memory order
	length int64            // number of elements
	tensor *cgotorch.Tensor // a view of the parameter, of shape [length]
	place  *cgotorch.Tensor // the same in `send` if this rank owns the part, else in `flat`
}

// vectors lays out the parameters of one group, whose indices in `params` begin at `first`.
// Parameters that require no gradient are in vectors of their own. A step skips a vector of which
// no parameter has a gradient.
func vectors(in optim.Group, first, rank, world int, bucketBytes int64) []*vector {
	type kind struct {
		dtype  cgotorch.DType
		frozen bool
	}
	var all []*vector
	open := map[kind]*vector{}
	length := map[*vector]int64{}
	for i, p := range in.Params {
		n := p.Numel()
		if n == 0 {
			continue
		}
		k := kind{p.DType(), !p.RequiresGrad()}
		v := open[k]
		if v == nil || (length[v]+n)*int64(k.dtype.Size()) > bucketBytes {
			v = &vector{dtype: k.dtype}
			open[k], all = v, append(all, v)
		}
		v.params, v.sizes = append(v.params, first+i), append(v.sizes, n)
		length[v] += n
	}
	for _, v := range all {
		v.cut(length[v], rank, world)
	}
	return all
}

// cut makes the pieces and the parts, without their tensors.
func (v *vector) cut(length int64, rank, world int) {
	v.piece = (length + int64(world) - 1) / int64(world)
	padding := v.piece*int64(world) - length
	at, mine := int64(0), int64(0)
	for k, n := range v.sizes {
		for from := int64(0); from < n; {
			p := &part{param: v.params[k], rank: int(at / v.piece), from: from}
			p.length = min(n-from, (int64(p.rank)+1)*v.piece-at)
			v.parts, v.cuts = append(v.parts, p), append(v.cuts, p.length)
			if p.rank == rank {
				v.own, v.mine = append(v.own, p), append(v.mine, p.length)
				mine += p.length
			}
			from, at = from+p.length, at+p.length
		}
	}
	v.sizes, v.cuts = append(v.sizes, padding), append(v.cuts, padding)
	v.mine = append(v.mine, v.piece-mine)
}

// view makes the tensors of the vector, in a buffer that is long enough. The caller closes the
// tensors that `keep` has kept.
func (v *vector) view(x *cgotorch.Exec, g *Group, params []*cgotorch.Tensor, in *buffer, keep func(t *cgotorch.Tensor) *cgotorch.Tensor) {
	x.Tidy(func() *cgotorch.Tensor {
		v.buffer = in
		v.flat = keep(x.Narrow(in.flat, 0, 0, int(v.piece)*g.world))
		v.send = keep(x.Narrow(in.send, 0, 0, int(v.piece)))
		places := x.SplitWithSizes(v.flat, v.sizes, 0)
		for k, i := range v.params {
			v.places = append(v.places, keep(x.Call1("aten::as_strided", places[k], params[i].Shape(), params[i].Strides())))
		}
		received, sent := x.SplitWithSizes(v.flat, v.cuts, 0), x.SplitWithSizes(v.send, v.mine, 0)
		for k, p := range v.parts {
			p.tensor = keep(x.Narrow(inMemory(x, params[p.param]), 0, int(p.from), int(p.length)))
			if p.rank != g.rank {
				p.place = keep(received[k])
			}
		}
		for k, p := range v.own {
			p.place = keep(sent[k])
		}
		return nil
	})
}

// line moves vectors through their buffers, one after another: see Note [Vectors and parts].
type line struct {
	x, beside *cgotorch.Exec                         // beside is on the side stream
	before    func(v *vector)                        // enqueues on x what fills the buffer
	move      func(beside *cgotorch.Exec, v *vector) // enqueues the collective
	after     func(v *vector)                        // enqueues on x what reads the buffer; may be nil

	moving *vector // the vector whose collective x has not waited for; may be nil
	moved  *cgotorch.Event
}

func (s *Sharded) newLine(x *cgotorch.Exec) *line { return &line{x: x, beside: x.On(s.group.side)} }

// next makes the collective of a vector.
func (l *line) next(v *vector) {
	if l.moving != nil && l.moving.buffer == v.buffer {
		l.end()
	}
	l.before(v)
	filled := l.x.Record()
	defer filled.Close()
	l.beside.Wait(filled)
	l.move(l.beside, v)
	before, moved := l.moving, l.moved
	l.moving, l.moved = v, l.beside.Record()
	if before != nil {
		l.land(before, moved)
	}
}

// end lets x wait for the last collective, on the device.
func (l *line) end() {
	if v, moved := l.moving, l.moved; v != nil {
		l.moving, l.moved = nil, nil
		l.land(v, moved)
	}
}

// land lets x wait for the collective of v.
func (l *line) land(v *vector, moved *cgotorch.Event) {
	defer moved.Close()
	l.x.Wait(moved)
	if l.after != nil {
		l.after(v)
	}
}

func (l *line) close() {
	l.moved.Close()
	l.moving, l.moved = nil, nil
}
