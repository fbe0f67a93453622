package inflate

import "time"

// joiner goes through the chunks in order and gives their segments to Read.
type joiner struct {
	*Reader
	place  place
	window [window]byte // the 32 KiB of the content before `place`
	ended  bool         // no segment follows
}

// join runs on a goroutine of its own. It receives each chunk from the chunk's goroutine, in
// order. It gives the segments of the chunks to the function `Read`.
func (r *Reader) join(chunks <-chan chan chunk) {
	defer r.running.Done()
	j := joiner{Reader: r, place: place{member: true}}
	begin := int64(0)
	for one := range chunks {
		c := <-one
		j.chunk(c, uint64(begin+r.buffers.chunk)*8)
		begin += r.buffers.chunk
	}
	if r.ctx.Err() == nil && !j.ended {
		j.serial(noStop) // goes on after the last chunk, until the file ends or an error comes
	}
}

// chunk gives the function `Read` all segments that begin before bit number `stop`. It takes them
// from the chunk c. Where the segments of c do not begin at the joiner's place, the method inflates
// the content again, up to a segment that does.
func (j *joiner) chunk(c chunk, stop uint64) {
	segments := c.segments
	for len(segments) > 0 && !j.isAt(segments[0]) {
		if !j.ended && j.ctx.Err() == nil && j.place.bit < segments[0].begin.bit {
			j.serial(segments[0].begin.bit)
			continue
		}
		segments[0].free()
		segments = segments[1:]
	}
	if len(segments) == 0 {
		c.release()
	} else {
		segments[len(segments)-1].read = c.release
		segments[0].begin = j.place
		for i, s := range segments {
			if !j.hand(s) {
				for _, left := range segments[i+1:] {
					left.free()
				}
				break
			}
		}
	}
	j.serial(stop)
}

// isAt reports whether the segment s begins at the joiner's place. A stored block that was found
// has a header of zeros, and zeros follow up to its length field. So the block may begin at any
// of several bits. isAt then checks that only zeros lie between the joiner's place and the length
// field.
func (j *joiner) isAt(s *segment) bool {
	if j.ended || !s.stored {
		return !j.ended && j.place == s.begin
	}
	// bits is the number of bits from the joiner's place to the length field of the block. They are
	// the header and up to seven bits of padding. s.lead holds the 16 bits before the field.
	bits := s.begin.bit + storedHeader - min(j.place.bit, s.begin.bit)
	return !j.place.member && j.place.bit <= s.begin.bit && bits <= storedHeader+7 && s.lead>>(16-bits) == 0
}

// serial inflates, on this goroutine, all segments that begin before bit number `stop`.
func (j *joiner) serial(stop uint64) {
	for !j.ended && j.place.bit < stop && j.ctx.Err() == nil {
		began := time.Now()
		in := input{file: j.file, size: j.size, begin: int64(j.place.bit / 8)}
		err := in.grow(more, in.begin)
		if err != nil {
			j.hand(&segment{begin: j.place, whole: true, buffers: &j.buffers, end: atBoundary, next: j.place, err: err})
			return
		}
		j.inflate(in, j.place, stop, func(s *segment) bool {
			j.busy.Add(int64(time.Since(began)))
			defer func() { began = time.Now() }() // the time of the function `hand` is not busy time
			return j.hand(s)
		})
	}
}

// hand gives the function `Read` a segment and all later parts of the segment. It reports whether
// more segments can follow.
func (j *joiner) hand(s *segment) bool {
	for {
		before := j.window
		s.tail(&j.window)
		s.done = make(chan struct{})
		open, stop := s.open, s.stop
		s.open = nil
		j.place = s.next
		if s.err != nil || s.end == atEnd {
			j.ended = true
			j.enough()
		}
		j.running.Add(1)
		go func(s *segment) { // s is a parameter, because the variable s becomes the next part
			defer j.running.Done()
			began := time.Now()
			s.settle(&before)
			j.busy.Add(int64(time.Since(began)))
		}(s)
		select {
		case j.out <- s:
		case <-j.ctx.Done():
			j.ended = true
		}
		if open == nil {
			return !j.ended
		}
		if j.ended {
			open.close()
			return false
		}
		s = open.continued(&j.buffers, &j.window, stop)
		if s.open == nil {
			open.close()
		}
	}
}
