// libcgotorch_nocuda.so: a library with the name of libtorch_cuda.so, for a machine without CUDA.
// It has the function of libtorch_cuda.so that torchvision's kernels call. See Note [Libraries of
// operators].
#include <stdexcept>

namespace at::cuda {

// LibTorch's header for it needs headers of CUDA. The type of the result is no part of the symbol.
__attribute__((visibility("default"))) void* getCurrentDeviceProperties() {
  throw std::runtime_error("the operator needs CUDA, which is not available here");
}

}  // namespace at::cuda
