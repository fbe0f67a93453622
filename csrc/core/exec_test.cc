#include "core/exec.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <set>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::describe;
using ct_test::exec;
using ct_test::floats;
using ct_test::Stream;
using ct_test::Tensor;
using ExecTest = ct_test::HandlesTest;

// The state that LibTorch keeps for each thread and that an exec may change.
struct ThreadState {
  bool grad = at::GradMode::is_enabled();
  bool autocast_cpu = at::autocast::is_autocast_enabled(at::kCPU);
  bool autocast_cuda = at::autocast::is_autocast_enabled(at::kCUDA);
  at::ScalarType dtype_cpu = at::autocast::get_autocast_dtype(at::kCPU);
  at::ScalarType dtype_cuda = at::autocast::get_autocast_dtype(at::kCUDA);
  bool cache = at::autocast::is_autocast_cache_enabled();
  bool operator==(const ThreadState&) const = default;
};

Tensor square(const ct_exec& x) { return floats(x, {1, 2, 3, 4}, {2, 2}); }

int32_t dtype_of_product(const ct_exec& x, const Tensor& a) {
  return describe(ct_test::run1(x, "aten::mm", Args().t(a).t(a))).dtype;
}

TEST_F(ExecTest, OtherThread_IsMisuse) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor a = square(x);
    const ThreadState before;
    std::thread([&] {
      EXPECT_FAILS(CT_MISUSE, "outside its own Do", ct_test::fails(x, "aten::neg", Args().t(a)));
      ct_tensor* made = nullptr;
      EXPECT_FAILS(CT_MISUSE, "outside its own Do", ct_tensor_from_host(x, "abcd", 4, ct_test::kFloat, nullptr, 0, &made));
      ct_tensor* root = a.get();
      EXPECT_FAILS(CT_MISUSE, "outside its own Do", ct_backward(x, &root, nullptr, 1, 0));
    }).join();
    EXPECT_TRUE(before == ThreadState());
  }
}

TEST_F(ExecTest, ThreadId_IsItsThreadsAlone) {
  std::set<uint64_t> ids{ct_thread_id()};
  EXPECT_EQ(ct_thread_id(), *ids.begin());
  EXPECT_NE(*ids.begin(), 0U);
  std::mutex mutex;
  for (int round = 0; round < 4; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([&] {
        const uint64_t id = ct_thread_id();
        const std::lock_guard lock(mutex);
        ids.insert(id);
      });
    }
    for (std::thread& t : threads) t.join();
  }
  EXPECT_EQ(ids.size(), 33U);
}

TEST_F(ExecTest, Grad_IsTheExecsWhateverTheThreads) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const Tensor a = square(exec(s));
    EXPECT_OK(ct_tensor_set_requires_grad(a.get(), 1));
    for (const bool outside : {true, false}) {
      const c10::AutoGradMode mode(outside);
      for (const int32_t inside : {0, 1}) {
        ct_exec x = exec(s);
        x.grad = inside;
        const Tensor b = ct_test::run1(x, "aten::neg", Args().t(a));
        EXPECT_EQ(describe(b).requires_grad, inside);
        EXPECT_EQ(at::GradMode::is_enabled(), outside);
        EXPECT_FAILS(CT_INVALID_ARGUMENT, "", ct_test::fails(x, "aten::neg", Args()));
        EXPECT_EQ(at::GradMode::is_enabled(), outside) << "after a failure";
      }
    }
  }
}

TEST_F(ExecTest, Autocast_IsTheExecsAndEndsWithTheCall) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    ct_exec x = exec(s);
    const Tensor a = square(x);
    const ThreadState before;
    EXPECT_EQ(dtype_of_product(x, a), ct_test::kFloat);
    for (const ct_test::DType dtype : {ct_test::kBFloat16, ct_test::kHalf}) {
      x.autocast = dtype;
      EXPECT_EQ(dtype_of_product(x, a), dtype);
      EXPECT_TRUE(before == ThreadState());
      EXPECT_FAILS(CT_INVALID_ARGUMENT, "", ct_test::fails(x, "aten::mm", Args().t(a)));
      EXPECT_TRUE(before == ThreadState()) << "after a failure";
    }
    x.autocast = -1;
    EXPECT_EQ(dtype_of_product(x, a), ct_test::kFloat);
  }
}

TEST_F(ExecTest, Autocast_OfTheThreadIsSetAsideAndComesBack) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const c10::DeviceType type = device.type == CT_CPU ? at::kCPU : at::kCUDA;
    ct_exec x = exec(s);
    const Tensor a = square(x);
    const ThreadState untouched;
    at::autocast::set_autocast_enabled(type, true);
    at::autocast::set_autocast_dtype(type, at::kHalf);
    const ThreadState before;
    EXPECT_EQ(dtype_of_product(x, a), ct_test::kFloat);
    EXPECT_TRUE(before == ThreadState());
    x.autocast = ct_test::kBFloat16;
    EXPECT_EQ(dtype_of_product(x, a), ct_test::kBFloat16);
    EXPECT_TRUE(before == ThreadState());
    at::autocast::set_autocast_enabled(type, false);
    at::autocast::set_autocast_dtype(type, untouched.dtype_cpu);
  }
}

TEST_F(ExecTest, Stream_IsTheExecsAndEndsWithTheCall) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(ct_test::kCuda);
  c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  const c10::Stream before = guard.getStream(c10::Device(c10::kCUDA, 0));
  const ct_exec x = exec(s);
  const Tensor a = square(x);
  EXPECT_EQ(describe(a).stream, ct_stream_id(s.get()));
  EXPECT_TRUE(guard.getStream(c10::Device(c10::kCUDA, 0)) == before);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "", ct_test::fails(x, "aten::mm", Args().t(a)));
  EXPECT_TRUE(guard.getStream(c10::Device(c10::kCUDA, 0)) == before);
}

}  // namespace
