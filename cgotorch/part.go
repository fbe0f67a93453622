package cgotorch

// #include "cgotorch.h"
import "C"

import "fmt"

// NewPartStreams makes count streams whose kernels run on a part of the device each, of at least so many of its multiprocessors and with none in
// common, by CUDA's green contexts: for work that is to have a share of the device whatever else runs there, such as the branches of
// [ParallelOptions.Streams]. Other streams use all of the device, those parts too. In a captured function they are streams like any: a graph
// does not keep to parts. On the CPU they are streams like any.
//
// Calls do not know of each other: a second one for the same number gives streams on the same parts, and parts of another number overlap them.
// Make all that are to be apart in one call.
//
// The parts are made once for each number of multiprocessors, and stay for the life of the process. It fails with [ErrInvalidArgument] where
// the device has no room for as many, with [ErrUnsupported] where the driver or the device knows of no parts, and with [ErrNoDevice]. The
// caller must Close the streams.
func NewPartStreams(d Device, count, multiprocessors int) ([]*Stream, error) {
	const op = "NewPartStreams"
	if err := ready(); err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) ([]*Stream, error) {
		return nil, &Error{Op: op, Code: CodeInvalidArgument, Caller: caller(), Message: fmt.Sprintf(format, args...)}
	}
	if count < 1 || multiprocessors < 1 || multiprocessors > 1<<16 {
		return refuse("%d parts of %d multiprocessors: want 1 or more of each", count, multiprocessors)
	}
	if d.IsCUDA() {
		var parts C.int32_t
		if err := check(op, C.ct_stream_parts(d.c(), C.int32_t(multiprocessors), &parts)); err != nil {
			return nil, err
		}
		if int(parts) < count {
			return refuse("%v has %d parts of %d multiprocessors, want %d: ask for smaller or fewer ones", d, parts, multiprocessors, count)
		}
	}
	var streams []*Stream
	for i := range count {
		s := &Stream{device: d, name: fmt.Sprintf("part %d of %d multiprocessors", i, multiprocessors), named: true}
		if err := check(op, C.ct_stream_new_part(d.c(), C.int32_t(multiprocessors), C.int32_t(i), &s.h)); err != nil {
			for _, made := range streams {
				made.Close()
			}
			return nil, err
		}
		s.register()
		streams = append(streams, s)
	}
	return streams, nil
}
