// The functions of CUDA that the core needs and that c10's device-neutral interface does not
// have. Their implementation is in libcgotorch_cuda.so, which is opened when a CUDA driver is
// there (device.cc). So the core itself is not linked to CUDA.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

struct ct_group_id;
struct ct_trace;

namespace ct {

class Collectives;

// A CUDA C++ program without includes. It is compiled after the text of floats.h, which defines
// the dtypes. Its kernels are extern "C".
struct CudaProgram {
  const char* name;    // for error messages
  const char* shared;  // a text that is compiled before `source`: a CT_ON_BOTH_DEVICES text, or ""
  const char* source;
  // Whether the compiler may join a multiplication and an addition. If not, each operation rounds
  // by itself, as on the CPU.
  bool fused_multiply_add = false;
  // Whether a multiprocessor gives as much of its memory to blocks, and as little to its cache, as it
  // can. A kernel whose blocks lie beside those of another kernel needs that.
  bool most_shared_memory = false;
};

// When the blocks of a kernel may begin.
enum class CudaStart {
  kBehind,    // when all earlier work of the stream has ended: a full edge
  kTogether,  // the same, and there is room for all blocks at the same time
  // While the kernel before still runs: a programmatic edge, Note [Programmatic edges] in edges.h.
  // It needs compute capability 9.0.
  kProgrammatic,
};

// A map of a matrix, from which a kernel copies boxes by cp.async.bulk.tensor. It needs compute
// capability 9.0. It is an argument of the kernel, `const __grid_constant__ Map`.
struct alignas(64) CudaBoxes {
  unsigned char opaque[128];
};

// What a kernel's launch depends on.
struct CudaChip {
  int multiprocessors;
  int capability;     // 10 * major + minor
  int shared_memory;  // bytes that a block can have, if its launch asks for them
  bool cooperative;   // whether a launch can ask that all of its blocks run at the same time
};

// An observer of calls to CUDA. It is called on the thread that calls CUDA, before the call is
// made. It must not call CUDA itself.
class CudaCalls {
 public:
  virtual ~CudaCalls() = default;
  // Returns whether this thread's calls are watched.
  virtual bool watched() noexcept = 0;
  // Reports a call that waits for the device.
  virtual void waits(const char* call) noexcept = 0;
  // Reports an asynchronous copy. The copy waits if `host` is pageable memory, or if `other` is not
  // NULL and is pageable memory.
  virtual void copies(const char* call, const void* host, const void* other) noexcept = 0;
};

// A CUDA graph. Its members work on the thread's current stream. They throw c10::Error on a CUDA
// error.
class CudaGraph {
 public:
  // Frees the graph when its launches have ended. A capture that has begun and not ended is
  // abandoned.
  virtual ~CudaGraph() = default;
  // Begins a capture. The same thread must call `end`. Until then, work of the stream becomes part
  // of the graph. If another stream waits for this stream, that stream's work becomes part of the
  // graph too. Memory comes from the pool. Until `end`, random numbers come from a generator of the
  // graph's own, which stands in for the device's generator.
  virtual void begin(c10::MempoolId_t pool) = 0;
  // Ends the capture and makes the graph ready for launches. If CUDA allows it, the graph takes
  // over the memory that `older` has on the device. The function then returns true, and `older` can
  // only be freed. If the function throws, this graph can only be freed.
  virtual bool end(CudaGraph* older) = 0;
  // Enqueues the graph. The graph draws the next random numbers of the device's generator. The
  // generator continues after these numbers.
  virtual void launch() = 0;
  virtual void count(int64_t* nodes, int64_t* kernels, int64_t* copies, int64_t* fills) = 0;
  virtual bool random() const = 0;
  // Returns the position of the graph's generator during the capture. set_drawn with an earlier
  // position makes the capture draw the same numbers again.
  virtual uint64_t drawn() const = 0;
  virtual void set_drawn(uint64_t drawn) = 0;
};

// The engines of a device that decode JPEG files, as one stream uses them. One thread at a time
// uses the object. It does so with the stream current, and beside captures. Members throw
// c10::Error on a CUDA error.
class CudaJpeg {
 public:
  static constexpr int kMostFiles = 8;  // in a call of `decode`
  // The samples of the three components, in memory of the device. Rows have no gaps.
  struct Planes {
    uint8_t* data[3];
    int widths[3];
    int height;  // of the first component
  };
  virtual ~CudaJpeg() = default;
  // Opens nvJPEG for the files of all samplings. Without the call, the first `decode` does so. It
  // waits for all work of the device. Throws if the device has no engines.
  virtual void open() = 0;
  // Enqueues the decoding of 1 to kMostFiles files of one sampling, which is CTD_444, CTD_422 or
  // CTD_420. The files are page-locked, and stay unchanged until the work is done. For the first
  // files of a greater size the call waits for all work of the device. Returns false if nvJPEG
  // refuses a file. It then has waited for the stream, and planes may be partly written.
  virtual bool decode(int sampling, int count, const uint8_t* const* files, const size_t* sizes, const Planes* planes) = 0;
  // Waits for all work of the stream so far, without using a core.
  virtual void wait() = 0;
};

// The functions of CUDA. Every member throws c10::Error on a CUDA error.
class CudaBackend {
 public:
  virtual ~CudaBackend() = default;

  // If `device` is already the device of the calling thread, sets it once more. LibTorch then finds
  // the thread's device faster. Does nothing if the thread has another device.
  virtual void bind_thread(c10::DeviceIndex device) = 0;

  // Makes a non-blocking stream. priority: as CUDA numbers priorities.
  virtual c10::Stream new_stream(c10::DeviceIndex device, int priority) = 0;
  // Makes a c10::Stream of the caller's stream. The stream is never destroyed here. Throws if the
  // stream does not belong to `device`.
  virtual c10::Stream external_stream(void* native, c10::DeviceIndex device) = 0;
  virtual void* native_stream(c10::Stream stream) = 0;

  // Makes an event. The result is a cudaEvent_t, which is never destroyed.
  virtual void* new_event(c10::DeviceIndex device, bool timing) = 0;
  virtual void record(void* event, c10::Stream stream) = 0;
  virtual void wait(c10::Stream stream, void* event) = 0;
  virtual bool query_event(void* event) = 0;
  // Waits for the event. The thread sleeps between its queries.
  virtual void synchronize_event(void* event) = 0;
  virtual float elapsed(void* start, void* end) = 0;

  virtual void lock_pages(void* data, size_t bytes, bool read_only) = 0;
  virtual void unlock_pages(void* data) noexcept = 0;
  // Returns whether CUDA knows the host memory. If it does, a copy from that memory returns before
  // the memory has been read.
  virtual bool page_locked(const void* data) = 0;
  // Enqueues a copy. Does not wait if the memory of `source` is page-locked.
  virtual void copy_to_device(void* destination, const void* source, size_t bytes, c10::Stream stream) = 0;
  // Enqueues a copy between two devices.
  virtual void copy_between(void* destination, c10::DeviceIndex to, const void* source, c10::DeviceIndex from, size_t bytes,
                            c10::Stream stream) = 0;
  // Enqueues a copy. Does not wait if the memory of `destination` is page-locked.
  virtual void copy_to_host(void* destination, const void* source, size_t bytes, c10::Stream stream) = 0;

  // Enqueues a kernel of the program. The launch has `blocks` blocks, each with `threads` threads.
  // `arguments` has the address of each argument. The first launch on a kind of device compiles the
  // program, which takes up to a second, unless an earlier process has: see compiled_file.h. The
  // program and the name of the kernel must live as long as the process.
  // `shared` is how many bytes of dynamic shared memory a block has. With kTogether the launch fails
  // if there is never room. Each `cluster` adjacent blocks run beside each other, and can use each
  // other's shared memory; more than one needs compute capability 9.0. The launch has all of this
  // `rows` times: a block's row is blockIdx.y. There are at most 65535.
  virtual void launch(const CudaProgram& program, const char* kernel, c10::Stream stream, unsigned blocks, unsigned threads, void** arguments,
                      int shared = 0, CudaStart start = CudaStart::kBehind, unsigned cluster = 1, unsigned rows = 1) = 0;

  // Returns how many clusters of such a launch run at the same time. Some multiprocessors have no
  // place in a cluster. A part of a device may have room for none.
  virtual int clusters(const CudaProgram& program, const char* kernel, c10::DeviceIndex device, unsigned threads, int shared, unsigned cluster) = 0;

  // Returns a map of `count` matrices behind each other, each of `rows` rows of `row_bytes` bytes. A
  // box has `box_bytes` bytes of each of `box_rows` rows of `together` matrices. What a box has
  // outside the matrix reads as zeros. Bytes are multiples of 16.
  virtual CudaBoxes boxes(const void* matrix, int64_t count, int64_t together, int64_t rows, int64_t row_bytes, int box_rows, int box_bytes) = 0;

  // Compiles the program for the device, unless it is compiled. Without the call the first launch
  // does so.
  virtual void compile(const CudaProgram& program, const char* kernel, c10::DeviceIndex device) = 0;

  virtual CudaChip chip(c10::DeviceIndex device) = 0;

  // Returns the name that the driver gives to the device. It lives as long as the process.
  virtual const char* name(c10::DeviceIndex device) = 0;

  // Returns how many bytes of the device no process has taken.
  virtual int64_t untaken(c10::DeviceIndex device) = 0;

  // Calls fn. What it calls does not end the capture of another thread, and does not fail because
  // of that capture.
  virtual void beside_captures(const std::function<void()>& fn) = 0;
  // Opens nvJPEG. Throws CT_UNSUPPORTED if it is absent, or if the device has no engines for JPEG.
  virtual std::unique_ptr<CudaJpeg> new_jpeg(c10::Stream stream) = 0;

  // Makes the name of a group over NCCL. Throws CT_UNSUPPORTED if NCCL is absent.
  virtual ct_group_id new_group_id() = 0;
  // Begins to join a group over NCCL.
  virtual std::unique_ptr<Collectives> join_group(c10::DeviceIndex device, const ct_group_id& id, int32_t rank, int32_t world) = 0;

  virtual std::unique_ptr<CudaGraph> new_graph(c10::DeviceIndex device) = 0;
  // Returns whether work of the stream becomes part of a graph now.
  virtual bool is_capturing(c10::Stream stream) = 0;
  // Makes a pool: memory of the device that graphs share. The memory is freed when the last graph
  // and the last tensor in it are freed.
  virtual c10::MempoolId_t new_graph_pool(c10::DeviceIndex device) = 0;
  virtual void free_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept = 0;
  // Until leave_graph_pool, the pool serves memory for the streams for which `of` returns true.
  virtual void enter_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool, std::function<bool(void* native)> of) = 0;
  virtual void leave_graph_pool(c10::DeviceIndex device, c10::MempoolId_t pool) noexcept = 0;
  // Returns the bytes of the device that the pool holds.
  virtual int64_t graph_pool_bytes(c10::DeviceIndex device, c10::MempoolId_t pool) = 0;

  // Records the work of devices until the trace is stopped. At most `limit` records are kept.
  // Records that come later are only counted.
  //
  // This function and the three after it use CUPTI, which is opened when it is first needed. They
  // throw CT_UNSUPPORTED if CUPTI is absent or another tool uses it.
  virtual void start_trace(size_t limit) = 0;
  // Waits for every device and ends the trace. The trace also ends if the call throws. In each
  // record, `stream` is CUPTI's number of the stream.
  virtual void stop_trace(ct_trace& out) = 0;
  // Returns CUPTI's number of the stream. Two streams of one device have different numbers.
  virtual uint32_t trace_number(c10::Stream stream) = 0;
  // Until stop_watching, reports all calls to CUDA in the process to `calls`. `calls` must live as
  // long as the process.
  virtual void start_watching(CudaCalls* calls) = 0;
  virtual void stop_watching() noexcept = 0;

  // Returns CUDA's message for the error that has destroyed the device's context. Returns "" if the
  // context works. Clears errors that have not destroyed the context.
  virtual std::string context_error(c10::DeviceIndex device) noexcept = 0;
};

}  // namespace ct

// Returns the functions of CUDA. libcgotorch_cuda.so exports it. The result is never freed.
extern "C" __attribute__((visibility("default"))) ct::CudaBackend* ct_cuda_backend(void);
