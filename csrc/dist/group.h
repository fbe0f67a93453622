// Groups of processes, and what each kind of group does.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <csignal>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "cgotorch.h"
#include "core/status.h"
#include "core/stream.h"

namespace ct {

// Note [Collectives]
//
// A group has one order of collectives, and each rank must make them in this order. The group does
// not check this: a rank that makes another one waits for ever, or gets wrong values. Package dist
// checks it, beside the collectives.
//
// A collective over NCCL is work of a stream. It holds no thread and is part of a capture like any
// other work. A collective over Gloo runs on threads of Gloo's, and on the CPU there is no stream
// that could wait for it. So it has two parts: the first begins it, and the second waits for it.

// The second part of a collective. It is empty if the stream waits, and not the host.
using Finish = std::function<void()>;

// The collectives of one group. The tensors have one dimension and no gaps.
class Collectives {
 public:
  virtual ~Collectives() = default;
  // Returns whether one all_reduce may have tensors of several dtypes.
  virtual bool mixes_dtypes() const = 0;
  virtual Finish all_reduce(const std::vector<at::Tensor>& tensors, int32_t op, c10::Stream stream) = 0;
  virtual Finish reduce(const std::vector<at::Tensor>& tensors, int32_t op, int32_t root, c10::Stream stream) = 0;
  // In the next four functions the tensors are of bytes.
  virtual Finish broadcast(const std::vector<at::Tensor>& tensors, int32_t root, c10::Stream stream) = 0;
  virtual Finish all_gather(const at::Tensor& to, const at::Tensor& from, c10::Stream stream) = 0;
  virtual Finish send(const at::Tensor& tensor, int32_t to, c10::Stream stream) = 0;
  virtual Finish receive(const at::Tensor& tensor, int32_t from, c10::Stream stream) = 0;
  virtual Finish reduce_scatter(const at::Tensor& to, const at::Tensor& from, int32_t op, c10::Stream stream) = 0;
  // Returns whether all ranks have joined. Throws if the group has failed.
  virtual bool ready() = 0;
  virtual void abort() noexcept = 0;
};

}  // namespace ct

struct ct_group {
  ct_group(c10::Device device, int32_t rank, int32_t world, std::unique_ptr<ct::Collectives> collectives);
  ~ct_group();
  const c10::Device device;
  const int32_t rank, world;
  const std::unique_ptr<ct::Collectives> collectives;
};

namespace ct {

// Returns the elements of the tensor as one row, in the order of memory. Throws if they have gaps,
// if the tensor is on another device than the group, or for an operation that its dtype lacks.
at::Tensor row_of(const ct_group& group, const at::Tensor& tensor);
void check_reduction(at::ScalarType dtype, int32_t op);

// Does what all_reduce of Collectives does, for rows of any number and size on the current stream.
// The small rows of one dtype are sent as one.
Finish reduce_rows(const ct_group& group, const std::vector<at::Tensor>& rows, int32_t op, c10::Stream stream);

// While the object lives, a write to a connection that another process has closed is an error on this
// thread, and on threads that are made meanwhile. Otherwise SIGPIPE would end the process: neither
// Gloo nor the store asks for the error, because Python ignores the signal.
class NoBrokenPipes {
 public:
  NoBrokenPipes();
  ~NoBrokenPipes();
  NoBrokenPipes(const NoBrokenPipes&) = delete;
  NoBrokenPipes& operator=(const NoBrokenPipes&) = delete;

 private:
  sigset_t before_;  // the signals that the thread had blocked
  bool pending_;     // whether a SIGPIPE waited for the thread already
};

// Runs a part of a collective, or of a call that joins a group. What it throws becomes a Failure of
// CT_GROUP_FAILED: on its own, the code of Gloo's failures would be that of a wrong argument.
template <typename F>
auto with_group(F&& f) {
  const NoBrokenPipes errors;
  try {
    return std::forward<F>(f)();
  } catch (const Failure&) {
    throw;
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& e) {
    throw Failure(CT_GROUP_FAILED, e.what_without_backtrace());
  } catch (const std::exception& e) {
    throw Failure(CT_GROUP_FAILED, e.what());
  }
}

// Tells the stream checker and autograd that a collective has written the tensor.
void written(const char* op, const at::Tensor& tensor);

}  // namespace ct
