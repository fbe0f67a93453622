// LibTorch's wheel has c10d's group over Gloo, and its header, but no header of Gloo. The header
// of the group names these types of Gloo's. This library passes them on and never makes or reads
// one, so the declarations have only what the compiler asks for.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

namespace transport {
class Device;
class UnboundBuffer;
}  // namespace transport

}  // namespace gloo
