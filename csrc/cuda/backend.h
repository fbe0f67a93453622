// The functions of CUDA that the core needs beyond c10's device-neutral interface. The
// implementation lies in libcgotorch_cuda.so, which is opened when a CUDA driver is there
// (device.cc). The core itself thus links no CUDA.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct ct_trace;

namespace ct {

// CUDA C++ without includes, compiled behind the dtypes of floats.h. Kernels are extern "C".
struct CudaProgram {
  const char* name;    // for errors
  const char* shared;  // the text before the source: that of CT_ON_BOTH_DEVICES, or ""
  const char* source;
};

// Receives calls to CUDA on the calling thread, before they are made. It must not call CUDA itself.
class CudaCalls {
 public:
  virtual ~CudaCalls() = default;
  // Whether this thread's calls are watched.
  virtual bool watched() noexcept = 0;
  // A call that waits for the device.
  virtual void waits(const char* call) noexcept = 0;
  // An asynchronous copy, which waits when host, or other where it is not NULL, is pageable memory.
  virtual void copies(const char* call, const void* host, const void* other) noexcept = 0;
};

// One CUDA graph. Members work on the thread's current stream, and throw c10::Error on a CUDA
// error.
class CudaGraph {
 public:
  // Frees the graph when its launches have ended. A capture that has begun and not ended is
  // abandoned.
  virtual ~CudaGraph() = default;
  // Begins a capture. From here to end, on the same thread, work of the stream and of streams that
  // wait for it becomes part of the graph. Memory comes from the pool. Random numbers come from a
  // generator of the graph's own, which stands in for the device's until the end.
  virtual void begin(c10::MempoolId_t pool) = 0;
  // Makes the graph ready for launches. It reuses an older graph's memory on the device where CUDA
  // can do so, and returns whether. The older graph is then of no use. When it throws this graph is
  // of no use.
  virtual bool end(CudaGraph* older) = 0;
  // Enqueues the graph. Its random numbers are the next numbers of the device's generator, which goes
  // on behind them.
  virtual void launch() = 0;
  virtual void count(int64_t* nodes, int64_t* kernels, int64_t* copies, int64_t* fills) = 0;
  virtual bool random() const = 0;
  // The position of the generator during the capture. Set back there, it draws the same numbers
  // again.
  virtual uint64_t drawn() const = 0;
  virtual void set_drawn(uint64_t drawn) = 0;
  // Writes a file for Graphviz.
};

// Every member throws c10::Error on a CUDA error.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // Sets the device of the calling thread where it is that device already, but by CUDA's default.
  virtual void bind_thread(c10::DeviceIndex device) = 0;

  // A non-blocking stream. priority: as CUDA numbers it.
  virtual c10::Stream new_stream(c10::DeviceIndex device, int priority) = 0;
  // A handle of the caller's stream, which is not destroyed. Throws for a stream of another device.
  virtual c10::Stream external_stream(void* native, c10::DeviceIndex device) = 0;
  virtual void* native_stream(c10::Stream stream) = 0;

  // The handle is a cudaEvent_t, which is never destroyed.
  virtual void* new_event(c10::DeviceIndex device, bool timing) = 0;
  virtual void record(void* event, c10::Stream stream) = 0;
  virtual void wait(c10::Stream stream, void* event) = 0;
  virtual bool query_event(void* event) = 0;
  // Waits for the event without spinning.
  virtual void synchronize_event(void* event) = 0;
  virtual float elapsed(void* start, void* end) = 0;

  virtual void lock_pages(void* data, size_t bytes, bool read_only) = 0;
  virtual void unlock_pages(void* data) noexcept = 0;
  // Whether CUDA knows the host memory. A copy from such memory returns before the memory has been
  // read.
  virtual bool page_locked(const void* data) = 0;
  // Does not wait when source is page-locked.
  virtual void copy_to_device(void* destination, const void* source, size_t bytes, c10::Stream stream) = 0;
  // Between two devices.
  virtual void copy_between(void* destination, c10::DeviceIndex to, const void* source, c10::DeviceIndex from, size_t bytes,
                            c10::Stream stream) = 0;
  // Does not wait when destination is page-locked.
  virtual void copy_to_host(void* destination, const void* source, size_t bytes, c10::Stream stream) = 0;

  // Enqueues a kernel of the program with blocks x threads threads. The first launch on devices of
  // one kind compiles the program, which takes some 0.1 s. The program and the kernel's name must
  // live as long as the process. arguments: the address of each.
  virtual void launch(const CudaProgram& program, const char* kernel, c10::Stream stream, unsigned blocks, unsigned threads,
                      void** arguments) = 0;

  virtual std::unique_ptr<CudaGraph> new_graph(c10::DeviceIndex device) = 0;
  // Whether work of the stream becomes part of a graph now.
  virtual bool is_capturing(c10::Stream stream) = 0;
  // Memory of the device that graphs share. Freed when the last graph and tensor in it are gone.
  virtual c10::MempoolId_t new_graph_pool(c10::DeviceIndex device) = 0;
  virtual void free_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept = 0;
  // From here to leave, the pool serves memory for the streams that the predicate names.
  virtual void enter_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(void* native)> of) = 0;
  virtual void leave_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept = 0;
  // The bytes that the pool holds of the device.
  virtual int64_t graph_pool_bytes(c10::DeviceIndex device, c10::MempoolId_t pool) = 0;

  // Records the work of devices until the trace is stopped: at most limit records, the others are
  // counted. This call and the next three rest on CUPTI, which is opened when it is first needed.
  // They throw CT_UNSUPPORTED where CUPTI is absent or another tool has it.
  virtual void start_trace(size_t limit) = 0;
  // Waits for every device and ends the trace, also when it throws. Each record's stream is CUPTI's
  // number of it.
  virtual void stop_trace(ct_trace& out) = 0;
  // CUPTI's number of the stream, unequal for streams of one device.
  virtual uint32_t trace_number(c10::Stream stream) = 0;
  // Tells calls of all calls to CUDA in the process until stop_watching. calls must live as long as
  // the process.
  virtual void start_watching(CudaCalls* calls) = 0;
  virtual void stop_watching() noexcept = 0;

  // CUDA's words for the error that has destroyed the device's context, or "" while it lives. Clears
  // other errors.
  virtual std::string context_error(c10::DeviceIndex device) noexcept = 0;
};

}  // namespace ct

// Exported by libcgotorch_cuda.so. Never freed.
extern "C" __attribute__((visibility("default"))) ct::CudaBackend* ct_cuda_backend(void);
