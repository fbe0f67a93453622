// Libraries for the tests of ct_operators_open and ct_compiled_new. The macro LIBRARY_name chooses
// one, and csrc/CMakeLists.txt builds each as libtest_name.so.
#if defined(LIBRARY_operators) || defined(LIBRARY_copy) || defined(LIBRARY_fragment)
#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace {

at::Tensor scale(const at::Tensor& self, double by) { return self.mul(by); }
std::tuple<at::Tensor, std::vector<int64_t>> halves(const at::Tensor& self) { return {self.mul(0.5), self.sizes().vec()}; }
at::Tensor fails(const at::Tensor& self) {
  TORCH_CHECK(self.dim() == 1, "streamtest::fails wants one dimension, and got ", self.dim());
  return self;
}

}  // namespace

#ifdef LIBRARY_fragment
TORCH_LIBRARY_FRAGMENT(streamtest, m) {
#else
TORCH_LIBRARY(streamtest, m) {
#endif
  m.def("scale(Tensor self, float by=2.) -> Tensor", &scale);
  m.def("halves(Tensor self) -> (Tensor, int[])", &halves);
  m.def("fails(Tensor self) -> Tensor", &fails);
}

#elif defined(LIBRARY_throws)
#include <stdexcept>
static const bool made = [] { throw std::runtime_error("no licence found"); return true; }();

#elif defined(LIBRARY_crashes)
#include <csignal>
static const int made = raise(SIGSEGV);

#elif defined(LIBRARY_exits)
#include <cstdlib>
static const bool made = [] { std::exit(0); return true; }();

#elif defined(LIBRARY_hangs)
#include <unistd.h>
static const int made = [] { for (;;) pause(); return 0; }();

#elif defined(LIBRARY_nothing)
int nothing;

#elif defined(LIBRARY_lacks)  // a function that LibTorch does not have
namespace c10 { void function_of_another_version(int); }
static const bool made = [] { c10::function_of_another_version(1); return true; }();

#elif defined(LIBRARY_python)
extern "C" void Py_Initialize();
static const bool made = [] { Py_Initialize(); return true; }();

#elif defined(LIBRARY_cuda)  // a function of libtorch_cuda.so that libcgotorch_nocuda.so lacks
namespace at::cuda { void function_of_cuda(); }
static const bool made = [] { at::cuda::function_of_cuda(); return true; }();

#elif defined(LIBRARY_needs)  // linked with libtest_nothing.so, which is not where it looks
extern int nothing;
int* needed = &nothing;
#endif
