// The stream checker looks for two accesses to the same memory, one of them a write. The two
// accesses are a race if nothing orders them. The core calls the functions of this file to tell
// the checker of the core's work. check/clocks.h finds the races.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cgotorch.h"
#include "check/values.h"

namespace ct::checker {

inline constinit std::atomic<bool> on{false};
inline bool is_on() noexcept { return __builtin_expect(on.load(std::memory_order_relaxed), 0); }
// Returns whether operators are watched: for races, or for their values.
inline bool watches() noexcept { return is_on() || values::is_on(); }

// Sets the stream and the call site for which the calling thread works, while the object lives.
class Scope {
 public:
  explicit Scope(const ct_exec& x);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const ct_stream* stream_before_;
  uint64_t site_before_;
};

// Says that the calling thread runs backward, while the object lives.
class Backward {
 public:
  Backward();
  ~Backward();
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

 private:
  bool before_;
};

// Says that the calling thread runs work of `stream`, while the object lives. Only for CPU
// streams, because LibTorch does not know them.
class OnStream {
 public:
  explicit OnStream(const ct_stream& stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  const bool on_;
};

// Returns whether the calling thread's work belongs to the stream. The checker knows this for CPU
// streams. Returns true for a CUDA stream, and while the checker is off.
bool runs_on(const ct_stream& stream);

// While the object lives, the checker treats the calling thread as if the thread were in no
// operator and in no node, and had no stream. A node of backward makes this object before it
// calls code that is no part of the node.
class Apart {
 public:
  Apart();
  ~Apart();
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  struct Before;
  std::unique_ptr<Before> before_;  // NULL while the checker is off
};

// These functions report accesses of the core's own operations inside a Scope. The stream of the
// Scope makes the access. But if `at_once` is true, the host makes the access. The functions do
// nothing while the checker is off.
void reads(const char* op, const at::Tensor& tensor);
// Does what `reads` does, for a tensor that is not on the stream's device.
void reads_elsewhere(const char* op, const at::Tensor& tensor);
void writes(const char* op, const at::Tensor& tensor);
// Reports that the next kernel of the stream begins behind a full edge, because a copy or the begin
// of a graph stands before it.
void full_edge(const ct_stream& stream);
// Reports a read, or with `write` a write, of memory of a slab.
void slab(const char* op, const void* data, int64_t bytes, bool write, bool at_once);
// Reports that LibTorch's allocator was told that the stream uses the tensor.
void used(const at::Tensor& tensor, const ct_stream& stream);
// Reports that the program reads a tensor on the CPU.
void host_reads(const at::Tensor& tensor);

// The order of work. A Known holds what a stream knows when an event is recorded: see Note
// [Vector clocks]. The Known is NULL while the checker is off.
using Known = std::shared_ptr<const std::vector<uint64_t>>;
Known recorded(const ct_stream& stream);
void waited(const ct_stream& stream, const Known& event);
void ended(const ct_stream& stream);
// Reports that `side` is a side stream of `parent`. The work of `side` begins after an event of
// `parent`, and `parent` waits for the end of that work.
void branches(const ct_stream& side, const ct_stream& parent);
void host_waited_for(const Known& event);
void host_waited_for(const ct_stream& stream);
void host_waited_for(c10::Device device);
void host_waited_for(c10::DeviceType type);  // for all devices of the type

// The accesses of a captured function to memory that lives longer than the capture. Each launch
// of the graph makes the same accesses again.
struct Accesses;
// The capture on the device lasts from capture_begins to capture_ends. The result of capture_ends
// is NULL if the checker was off when the capture began.
void capture_begins(c10::Device device) noexcept;
std::shared_ptr<const Accesses> capture_ends(c10::Device device) noexcept;
// Reports a launch of the graph on `stream`. The streams of the capture make the accesses. All
// accesses come after the earlier work of `stream`, and before its later work.
void launched(const ct_stream& stream, const std::shared_ptr<const Accesses>& accesses) noexcept;

// Slabs. If the memory reaches into a slab that exists already, slab_born changes nothing and
// returns false.
bool slab_born(const void* data, int64_t bytes);
void slab_dies(const void* data);
bool in_slab(const void* data);
void slab_over(const void* data, int64_t bytes, const Known& event);
// Reports of LibTorch's CPU allocator, which memory.cc wraps. Only called while the checker is
// on.
void allocated(const void* data, int64_t bytes);
void freed(const void* data);

}  // namespace ct::checker
