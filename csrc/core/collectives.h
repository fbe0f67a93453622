// What a group of processes can do, whatever connects the processes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace ct {

// Note [Collectives]
//
// A group has one order of collectives, and each rank must make them in this order. The group does
// not check this: a rank that makes another one waits for ever, or gets wrong values. Package
// distributed checks it, beside the collectives.
//
// A collective over NCCL is work of a stream. It holds no thread and is part of a capture like any
// other work. A collective over Gloo runs on threads of Gloo's, and on the CPU there is no stream
// that could wait for it. So it has two parts: the first begins it, and the second waits for it.

// The second part of a collective. It is empty if the stream waits, and not the host.
using Finish = std::function<void()>;
inline void complete(const Finish& finish) {
  if (finish) finish();
}

// The collectives of one group. The tensors have one dimension and no gaps.
class Collectives {
 public:
  virtual ~Collectives() = default;
  // Returns whether one all_reduce may have tensors of several dtypes.
  virtual bool mixes_dtypes() const = 0;
  virtual Finish all_reduce(const std::vector<at::Tensor>& tensors, int32_t op, c10::Stream stream) = 0;
  virtual Finish reduce(const std::vector<at::Tensor>& tensors, int32_t op, int32_t root, c10::Stream stream) = 0;
  virtual Finish reduce_scatter(const at::Tensor& to, const at::Tensor& from, int32_t op, c10::Stream stream) = 0;
  // The tensors of broadcast, all_gather, send and receive are of bytes.
  virtual Finish broadcast(const std::vector<at::Tensor>& tensors, int32_t root, c10::Stream stream) = 0;
  virtual Finish all_gather(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) = 0;
  virtual Finish send(const at::Tensor& tensor, int32_t to, c10::Stream stream) = 0;
  virtual Finish receive(const at::Tensor& tensor, int32_t from, c10::Stream stream) = 0;
  // Returns whether all ranks have joined. Throws if the group has failed.
  virtual bool ready() = 0;
  virtual void abort() noexcept = 0;
};

// A group by its number. Operators take no pointers, because a program may give them any number.
struct NumberedGroup {
  std::shared_ptr<Collectives> collectives;
  int64_t world = 1;
};
// Returns the number of a group, which is its own in this process.
int64_t number_group(const std::shared_ptr<Collectives>& collectives, int64_t world);
// Throws a Failure if there is no group of this number, or no longer.
NumberedGroup group_of_number(int64_t number);

// While an object of this class lives, collectives run beside other work of the device. Their
// kernels hold multiprocessors until all ranks have come. A kernel that needs all multiprocessors
// at once would wait for them, so it asks `on`.
class BesideCollectives {
 public:
  explicit BesideCollectives(c10::DeviceIndex device) : device_(device) { ++count(device); }
  ~BesideCollectives() { --count(device_); }
  BesideCollectives(const BesideCollectives&) = delete;
  BesideCollectives& operator=(const BesideCollectives&) = delete;
  static bool on(c10::DeviceIndex device) { return count(device) != 0; }

 private:
  static std::atomic<int>& count(c10::DeviceIndex device) {
    static std::array<std::atomic<int>, 1 << (8 * sizeof(device))> counts{};
    return counts[static_cast<size_t>(device)];
  }
  const c10::DeviceIndex device_;
};

}  // namespace ct
