// The stream checker finds two accesses to the same memory, one of them a write, that nothing
// orders. This file has the calls by which the core tells it of its work. check/clocks.h has the
// conclusions.
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

// The stream and the call site that the calling thread works for, while the object lives.
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

// The calling thread runs backward, while the object lives.
class Backward {
 public:
  Backward();
  ~Backward();
  Backward(const Backward&) = delete;
  Backward& operator=(const Backward&) = delete;

 private:
  bool before_;
};

// The calling thread runs work of another stream, while the object lives. For the CPU, where
// LibTorch knows of no stream.
class OnStream {
 public:
  explicit OnStream(const ct_stream& stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  const bool on_;
};

// Whether the calling thread's work is the stream's, as far as the checker knows for a CPU stream.
// True while the checker is off.
bool runs_on(const ct_stream& stream);

// Puts aside the work of the calling thread, while the object lives. Inside a node of backward some
// code runs that is no part of the node.
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

// Accesses of the core's own operations, in that scope: by its stream or, with at_once, by the
// host. They do nothing while the checker is off.
void reads(const char* op, const at::Tensor& tensor);
// The tensor lies on another device than the stream's.
void reads_elsewhere(const char* op, const at::Tensor& tensor);
void writes(const char* op, const at::Tensor& tensor);
void slab(const char* op, const void* data, int64_t bytes, bool write, bool at_once);  // reads or writes the memory of a slab
// LibTorch's allocator was told that the stream uses the tensor.
void used(const at::Tensor& tensor, const ct_stream& stream);
// The program reads a tensor on the CPU.
void host_reads(const at::Tensor& tensor);

// Order. A recording's knowledge is NULL while the checker is off.
using Known = std::shared_ptr<const std::vector<uint64_t>>;
Known recorded(const ct_stream& stream);
void waited(const ct_stream& stream, const Known& event);
void ended(const ct_stream& stream);
// The side stream's work lies between events of the parent's.
void branches(const ct_stream& side, const ct_stream& parent);
void host_waited_for(const Known& event);
void host_waited_for(const ct_stream& stream);
void host_waited_for(c10::Device device);
void host_waited_for(c10::DeviceType type);  // every device of the type

// The accesses of a captured function to memory that outlives it. Each launch of the graph makes
// them again.
struct Accesses;
// From here to the end of the capture, on the device. The result is NULL while the checker is off.
void capture_begins(c10::Device device) noexcept;
std::shared_ptr<const Accesses> capture_ends(c10::Device device) noexcept;
// The graph's streams make the accesses behind the stream's work so far, and before its later work.
void launched(const ct_stream& stream, const std::shared_ptr<const Accesses>& accesses) noexcept;

// Memory.
// False, with nothing changed, where the memory reaches into another slab.
bool slab_born(const void* data, int64_t bytes);
void slab_dies(const void* data);
bool in_slab(const void* data);
void slab_over(const void* data, int64_t bytes, const Known& event);
// LibTorch's CPU allocator, wrapped in memory.cc. Called only while the checker is on.
void allocated(const void* data, int64_t bytes);
void freed(const void* data);

}  // namespace ct::checker
