#include "kernels/sleep.h"

#include <chrono>
#include <thread>

#include "core/device.h"
#include "core/exec.h"

namespace {

// One thread, so that other kernels find room beside it.
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

}  // namespace

void ct::sleep(const ct_stream& stream, int64_t nanoseconds) {
  if (!stream.device.is_cuda()) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds));
    return;
  }
  void* arguments[] = {&nanoseconds};
  cuda().launch(kProgram, "sleep", stream.stream, 1, 1, arguments);
}

extern "C" ct_status* ct_sleep(ct_exec x, int64_t nanoseconds) noexcept {
  return ct::executed(x, [&] { ct::sleep(*x.stream, nanoseconds); });
}
