package cgotorch

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
)

// A worker is a goroutine locked to an OS thread. It alone runs the Dos of a stream. A hand-off
// for each Do costs a few microseconds. A hand-off for each operator would cost more than a
// kernel launch.
type worker struct {
	stream *Stream
	tasks  chan *task
	ended  chan struct{}
	scope  *scope // of the running Do; for the worker's own goroutine
}

type task struct {
	h   *ct.Stream
	fn  func(x *Exec) error
	out chan outcome
}

type outcome struct {
	err      error
	panicked *Panic
	exited   bool // by runtime.Goexit
}

// Panic is the value that [Stream.Do] raises in its caller when its function panics.
type Panic struct {
	Value any    // the function's panic
	Stack []byte // of that panic
}

func (p *Panic) Error() string { return fmt.Sprintf("%v\n\nin a Stream.Do, at\n%s", p.Value, p.Stack) }

// Unwrap returns the value if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// workers maps a thread's number to the worker that is locked to it. A Do inside a Do is then
// an error and no deadlock.
var workers sync.Map // uint64 -> *worker

// currentWorker returns the worker of the calling goroutine, or nil. It keeps its thread
// meanwhile. Otherwise the goroutine could move between the question for its thread and the
// look into the map, and a new worker could get the thread.
func currentWorker() *worker {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, ok := workers.Load(ct.ThreadID())
	if !ok {
		return nil
	}
	return w.(*worker)
}

func startWorker(s *Stream) *worker {
	w := &worker{stream: s, tasks: make(chan *task), ended: make(chan struct{})}
	go w.run()
	return w
}

func (w *worker) run() {
	// Never unlocked: the thread ends with the goroutine. The OpenMP threads that LibTorch gave
	// it end then too.
	runtime.LockOSThread()
	thread := ct.ThreadID()
	workers.Store(thread, w)
	defer close(w.ended)
	defer workers.Delete(thread)
	for t := range w.tasks {
		t.run(w, thread)
		w.scope = nil
	}
}

// stop waits until the worker has ended.
func (w *worker) stop() {
	close(w.tasks)
	<-w.ended //edge:close-ends-worker TestStream_Close_ItsWorkerHasEnded
}

func (w *worker) do(h *ct.Stream, fn func(x *Exec) error) outcome {
	t := &task{h: h, fn: fn, out: make(chan outcome, 1)}
	w.tasks <- t
	return <-t.out
}

// run executes the function and sends its outcome.
func (t *task) run(w *worker, thread uint64) {
	s := &scope{stream: w.stream, thread: thread}
	w.scope = s
	var out outcome
	defer func() { t.out <- out }()
	s.run(&out, func() error { return t.fn(newExec(s, w.stream, t.h)) })
}

// Note [One thread a stream]
//
// A stream's worker is the only thread that runs its operators. As many threads enter LibTorch's
// operators as there are streams, besides autograd's. Each brings an OpenMP team, handles of
// cuBLAS and cuDNN and 32 MiB of workspaces. An ancestor of this library, without this rule,
// reached 150 threads and 78 GiB. A method such as Stream.Record runs on whatever thread calls it.
//
// Handing single operators to a locked goroutine takes 8 us each, more than a launch. So a whole Do
// is handed over. As in iter.Pull, a panic of the program is raised again in the caller, with its
// first stack, and Goexit ends the caller too.
