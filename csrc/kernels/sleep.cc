#include "kernels/sleep.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <chrono>
#include <thread>

#include "core/device.h"

namespace {

// The kernel has one thread, so that other kernels can run at the same time.
constexpr ct::CudaProgram kProgram{"sleep", "", R"cuda(
__device__ long long now() {
  long long nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}

extern "C" __global__ void sleep(long long nanoseconds) {
  const long long begin = now();
  while (now() - begin < nanoseconds) __nanosleep(1000);
}
)cuda"};

void sleep_for(c10::Stream stream, int64_t nanoseconds) {
  if (!stream.device().is_cuda()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
    return;
  }
  void* arguments[] = {&nanoseconds};
  ct::cuda().launch(kProgram, "sleep", stream, 1, 1, arguments);
}

void sleep_on(int64_t nanoseconds, c10::Device device) { sleep_for(c10::impl::VirtualGuardImpl(device.type()).getStream(device), nanoseconds); }

TORCH_LIBRARY_FRAGMENT(streamtorch, library) { library.def("sleep(int nanoseconds, *, Device device) -> ()", TORCH_FN(sleep_on)); }

}  // namespace

void ct::sleep(const ct_stream& stream, int64_t nanoseconds) { sleep_for(stream.stream, nanoseconds); }
