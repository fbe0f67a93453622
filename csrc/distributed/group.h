// Groups of processes, and the steps that all of their calls have in common.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <csignal>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cgotorch.h"
#include "core/collectives.h"
#include "core/status.h"
#include "core/stream.h"

struct ct_group {
  ct_group(c10::Device device, int32_t rank, int32_t world, std::shared_ptr<ct::Collectives> collectives, bool compares);
  ~ct_group();
  const c10::Device device;
  const int32_t rank, world;
  const std::shared_ptr<ct::Collectives> collectives;
  const int64_t number;  // see number_group
  const bool compares;  // see compare
};

namespace ct {

// Returns the elements of the tensor as one row, in the order of memory. Throws if they have gaps,
// if the tensor is on another device than the group, or for an operation that its dtype lacks.
at::Tensor row_of(const ct_group& group, const at::Tensor& tensor);
void check_reduction(at::ScalarType dtype, int32_t op);

// Throws if another rank of a group that compares calls it with another text. Each rank calls it
// before a collective of a backward, with a text that describes the collective.
void compare(const ct_group& group, const std::string& mine, c10::Stream stream);

// Does what all_reduce of Collectives does, for rows of any number and size on the current stream.
// The small rows of one dtype are sent as one.
Finish reduce_rows(const ct_group& group, const std::vector<at::Tensor>& rows, int32_t op, c10::Stream stream);

// While the object lives, a write to a connection that another process has closed is an error on
// this thread, and on threads that are made meanwhile. Otherwise SIGPIPE would end the process:
// neither Gloo nor the store asks for the error, because Python ignores the signal.
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
