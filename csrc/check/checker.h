// The stream checker: finds two accesses to the same memory, one of them a write, that nothing orders. This is what the core tells it;
// what it makes of that stands in check/clocks.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "cgotorch.h"

namespace ct::checker {

inline constinit std::atomic<bool> on{false};
inline bool is_on() noexcept { return __builtin_expect(on.load(std::memory_order_relaxed), 0); }

// Which stream and call site the calling thread works for, while it lives.
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

// The calling thread runs backward, while it lives.
class Backward {
 public:
  Backward();
  ~Backward();
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

 private:
  bool before_;
};

// What the calling thread runs is another stream's work, while it lives: on the CPU, where LibTorch knows of none.
class OnStream {
 public:
  explicit OnStream(const ct_stream& stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  const bool on_;
};

// Whether the calling thread's work is the stream's, as far as the checker knows of a CPU's; true while it is off.
bool runs_on(const ct_stream& stream);

// Puts aside what the calling thread is about, while it lives: inside a node of backward something runs that is no part of it.
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

// What an operation of the core's own does, in that scope: its stream or, at_once, the host. They do nothing while the checker is off.
void reads(const char* op, const at::Tensor& tensor);
void reads_elsewhere(const char* op, const at::Tensor& tensor);  // which lies on another device than the stream's
void writes(const char* op, const at::Tensor& tensor);
void slab(const char* op, const void* data, int64_t bytes, bool write, bool at_once);  // reads or writes it, if it is a slab's
// LibTorch's allocator was told that the stream uses the tensor.
void used(const at::Tensor& tensor, const ct_stream& stream);
// The program reads a tensor on the CPU.
void host_reads(const at::Tensor& tensor);

// Order. What a recording knows is NULL while the checker is off.
using Known = std::shared_ptr<const std::vector<uint64_t>>;
Known recorded(const ct_stream& stream);
void waited(const ct_stream& stream, const Known& event);
void ended(const ct_stream& stream);
void branches(const ct_stream& side, const ct_stream& parent);  // the side stream's work lies between events of the parent's
void host_waited_for(const Known& event);
void host_waited_for(const ct_stream& stream);
void host_waited_for(c10::Device device);
void host_waited_for(c10::DeviceType type);  // every device of it

// What a captured function does with memory that outlives it; each launch of the graph does so again.
struct Accesses;
// From here to the end of the capture, on the device; the result is NULL while the checker is off.
void capture_begins(c10::Device device) noexcept;
std::shared_ptr<const Accesses> capture_ends(c10::Device device) noexcept;
// The graph's streams do it behind the stream's work so far, and before what comes.
void launched(const ct_stream& stream, const std::shared_ptr<const Accesses>& accesses) noexcept;

// Memory.
bool slab_born(const void* data, int64_t bytes);  // false where it reaches into another slab, which nothing changes
void slab_dies(const void* data);
bool in_slab(const void* data);
void slab_over(const void* data, int64_t bytes, const Known& event);
// LibTorch's CPU allocator, wrapped in memory.cc; only while the checker is on.
void allocated(const void* data, int64_t bytes);
void freed(const void* data);

}  // namespace ct::checker
