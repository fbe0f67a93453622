// Gradients that are reduced over the ranks of a group while a backward computes them.
#pragma once

#include <c10/core/Stream.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/collectives.h"
#include "distributed/group.h"

// Note [Gradients that arrive]
//
// The parameters are cut into buckets, the last parameters first, because their gradients arrive
// first. A bucket is reduced when all of its gradients have arrived, and after all earlier buckets.
// So the order of the collectives is the same on every rank, whatever the order of the gradients on
// a rank is. The collectives run on a stream of their own, which waits for the gradients by events.
// They reduce the gradients where they are.
//
// A gradient arrives in one of two places. The first is autograd's node that has added it to the
// gradient of the parameter. The second comes earlier. If streamtorch::cast_weights has cast the
// weight, the gradient of the cast arrives when the layer's node has computed it. All weights are
// cast by one node, whose backward runs at the very end. So most gradients would come too late for
// an overlap in the first place. In the second place they also have half the bytes. The node of the
// casts waits for the collectives before it reads the gradients. A gradient of a cast that is in a
// bucket which has not begun by then is not reduced in that place: it arrives again in the first
// place.
//
// If somebody else holds the memory of a gradient of a cast, a copy is reduced, and takes the place
// of the gradient.

// Note [The last bucket]
//
// The collective of the last bucket begins when the backward has ended, so nothing hides it. The
// bucket has the first parameters of the model, up to 1 MiB, and its collective takes 20 us on two
// H100. The large bucket before it begins a little earlier, and is done by then. If the first
// parameter is large, as an embedding, the last bucket has that one.

namespace ct {

struct Bucket {
  std::vector<size_t> parameters;
  size_t missing = 0;  // gradients that have not arrived
};

// The gradient of a parameter in a backward.
struct Arrival {
  at::Tensor gradient;                          // undefined before the gradient has arrived
  const torch::autograd::Node* cast = nullptr;  // the node that casts the gradient afterwards, or NULL
  bool begun = false;                           // its bucket is being reduced, or has been
};

class Reducer {
  using Node = torch::autograd::Node;
  using variable_list = torch::autograd::variable_list;

 public:
  Reducer(ct_group& group, variable_list parameters, int64_t bucket_bytes);

  // Adds the hooks for gradients of parameters, or takes them away.
  static void listen(const std::shared_ptr<Reducer>& self);
  void deafen() const;

  void begin(const std::shared_ptr<Reducer>& self, const ct_stream& main, const ct_stream& side, const variable_list& roots, int32_t op,
             bool zeros);
  void end(bool failed, uint8_t* missing);
  ct_reducer_counts counts() {
    const std::lock_guard lock(mutex_);
    return counts_;
  }
  void missed(int64_t* out) {
    const std::lock_guard lock(mutex_);
    std::copy(missed_.begin(), missed_.end(), out);
  }

  // Called by hooks, on threads of autograd.
  void accumulated(const at::Tensor& parameter);
  // Returns the tensor that takes the place of the gradient.
  at::Tensor computed(uint64_t backward, size_t parameter, const Node* cast, const at::Tensor& gradient);
  void before_cast(uint64_t backward, const Node* cast);

 private:
  // Adds the hooks for gradients of casts to the nodes that the roots reach.
  void follow(const std::shared_ptr<Reducer>& self, const variable_list& roots);
  void arrive(size_t parameter, const at::Tensor& gradient, const Node* cast);
  void reduce_ready();
  void reduce(Bucket& bucket);
  void finish(const ct_stream& waiting);
  void reset();

  ct_group& group_;
  const variable_list parameters_;
  std::vector<Bucket> buckets_;
  std::vector<size_t> bucket_of_;
  std::unordered_map<const c10::TensorImpl*, size_t> index_;

  std::mutex mutex_;  // guards the fields below
  const ct_stream* main_ = nullptr;  // the stream of the backward that is followed; NULL between backwards
  const ct_stream* side_ = nullptr;  // the stream of the collectives
  uint64_t backward_ = 0;            // the number of the backward
  int32_t op_ = CT_MEAN;
  bool zeros_ = false;  // parameters may lack a gradient, and all buckets begin at the end
  std::vector<Arrival> arrivals_;
  std::vector<c10::Stream> sources_;  // other streams that have computed gradients of the next buckets
  size_t next_ = 0;                   // the first bucket that has not begun
  std::vector<std::pair<Finish, variable_list>> begun_;  // the second parts of collectives, and the tensors that they write
  std::optional<BesideCollectives> beside_;              // from the first collective until a stream waits for all
  ct_reducer_counts counts_{};
  std::vector<int64_t> missed_;  // see ct_reducer_missed
};

}  // namespace ct
