// The backward of streamtorch::cast_weights.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <atomic>

namespace ct {

// Reports whether a node is the node of streamtorch::cast_weights.
bool is_cast_weights(const torch::autograd::Node& node);

// If it is not NULL, each such node calls this function before it reads gradients. The function
// makes the current stream wait for gradients that other streams still compute.
inline constinit std::atomic<void (*)()> before_gradients_are_cast{nullptr};

}  // namespace ct
