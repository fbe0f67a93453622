package cgotorch

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/streamtorch/streamtorch/cgotorch/internal/ct"
	"github.com/streamtorch/streamtorch/cgotorch/internal/mistakes"
)

// A worker is a goroutine locked to an OS thread. Only the worker of a stream runs the Dos of the
// stream. It costs a few microseconds to hand a whole Do to the worker. If each operator were
// handed over, this would cost more than a kernel launch.
type worker struct {
	stream *Stream
	tasks  chan *task
	ended  chan struct{}
	scope  *scope // scope of the running Do; only the worker's own goroutine uses it
}

type task struct {
	h   *ct.Stream
	fn  func(x *Exec) error
	out chan outcome

	check observer // of the stream checker, or nil
}

type outcome struct {
	err      error
	panicked *Panic
	exited   bool // the function called runtime.Goexit
}

// Panic is the value that [Stream.Do] raises in its caller when its function panics.
type Panic struct {
	Value any    // the value of the function's panic
	Stack []byte // the stack of that panic
}

func (p *Panic) Error() string { return fmt.Sprintf("%v\n\nin a Stream.Do, at\n%s", p.Value, p.Stack) }

// Unwrap returns the value if it is an error.
func (p *Panic) Unwrap() error {
	err, _ := p.Value.(error)
	return err
}

// workers maps the number of a thread to the worker that is locked to it. So a Do inside a Do is
// found and fails, and does not deadlock.
var workers sync.Map // uint64 -> *worker

// currentWorker returns the worker of the calling goroutine, or nil. The goroutine stays locked
// to its thread during the look-up. Otherwise it could move to another thread after ThreadID, and
// a new worker could get the first thread.
func currentWorker() *worker {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, ok := workers.Load(ct.ThreadID())
	if !ok {
		return nil
	}
	return w.(*worker)
}

// mostWorkers bounds the threads of workers. Without it, a program that makes a stream for each
// request would end with the system's or Go's limit on threads, which no error reports.
const mostWorkers = 1024

// startWorker starts the worker of s. It returns nil if there are mostWorkers already.
func startWorker(s *Stream) *worker {
	if streams.workers.Add(1) > mostWorkers {
		streams.workers.Add(-1)
		return nil
	}
	w := &worker{stream: s, tasks: make(chan *task), ended: make(chan struct{})}
	go w.run()
	return w
}

func (w *worker) run() {
	// The thread is never unlocked, so it ends with the goroutine. The OpenMP threads that LibTorch
	// made for this thread then end too.
	runtime.LockOSThread()
	thread := ct.ThreadID()
	workers.Store(thread, w)
	w.stream.runner.Store(mistakes.GoroutineID())
	defer close(w.ended)
	defer streams.workers.Add(-1)
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

func (w *worker) do(h *ct.Stream, fn func(x *Exec) error, check observer) outcome {
	t := &task{h: h, fn: fn, out: make(chan outcome, 1), check: check}
	w.tasks <- t
	return <-t.out
}

// run executes the function and sends its outcome.
func (t *task) run(w *worker, thread uint64) {
	s := newScope(w.stream, thread, t.check)
	w.scope = s
	var out outcome
	defer func() { t.out <- out }()
	s.run(&out, func() error { return t.fn(newExec(s, w.stream, t.h)) })
}

// Note [One thread a stream]
//
// Only the worker of a stream runs the operators of that stream. So LibTorch's operators run on
// as many threads as there are streams, and on the threads of autograd. Each of these threads has
// an OpenMP team, handles of cuBLAS and cuDNN, and 32 MiB of workspaces. An earlier library
// without this rule reached 150 threads and 78 GiB. A method such as Stream.Record runs no
// operator, so it runs on the thread that calls it.
//
// It takes 8 us to hand one operator to a locked goroutine, which is more than a kernel launch
// takes. So a whole Do is handed over. A panic in the function of a Do is raised again in the
// caller of the Do, with the stack of the first panic. Goexit in the function ends the caller
// too. The coroutines of the standard library's iter.Pull do the same with panics and Goexit.
