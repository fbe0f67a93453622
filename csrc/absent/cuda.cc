// libcgotorch_nocuda.so: a library with the name of libtorch_cuda.so, for a machine without CUDA.
// It has the functions of libtorch_cuda.so that torchvision's kernels call. See Note [Libraries of
// operators].
#include <cstdint>
#include <stdexcept>

#define CT_EXPORT __attribute__((visibility("default")))

namespace at::cuda {

// LibTorch's header for it needs headers of CUDA. The type of the result is no part of the symbol.
CT_EXPORT void* getCurrentDeviceProperties() { throw std::runtime_error("the operator needs CUDA, which is not available here"); }

}  // namespace at::cuda

// torchvision 0.29 calls these. A result of 1 is a failure.
extern "C" {
CT_EXPORT int32_t aoti_torch_get_current_cuda_stream(int32_t, void**) { return 1; }
CT_EXPORT int32_t torch_c10_cuda_check_msg(int32_t, const char*, const char*, uint32_t, bool, char**) { return 1; }
CT_EXPORT void torch_c10_cuda_free_error_msg(char*) {}
}
