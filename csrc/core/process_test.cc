#include <dlfcn.h>

#include <string>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::exec;
using ct_test::Stream;
using ProcessTest = ct_test::HandlesTest;

std::vector<float> draw(const ct_exec& x) {
  return ct_test::values<float>(x, ct_test::run1(x, "aten::rand", Args().is({16}).rest()));
}

TEST_F(ProcessTest, GeneratorState_RoundTrip) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    EXPECT_OK(ct_seed(1));
    draw(x);
    std::vector<uint8_t> state(8192);
    int64_t size = static_cast<int64_t>(state.size());
    ASSERT_OK(ct_generator_state(device, state.data(), &size));
    EXPECT_GT(size, 0);
    EXPECT_LT(size, 8192);
    const std::vector<float> want = draw(x);
    draw(x);
    EXPECT_OK(ct_generator_set_state(device, state.data(), size));
    EXPECT_EQ(draw(x), want);

    int64_t small = size - 1;
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "the generator's state has " + std::to_string(size) + " bytes",
                 ct_generator_state(device, state.data(), &small));
    EXPECT_EQ(small, size - 1);
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "", ct_generator_set_state(device, state.data(), size - 1));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "0 bytes are no generator's state", ct_generator_set_state(device, state.data(), 0));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "-4 bytes are no generator's state", ct_generator_set_state(device, state.data(), -4));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "bytes", ct_generator_set_state(device, state.data(), int64_t{1} << 50));
  }
}

TEST_F(ProcessTest, Switches) {
  for (const int32_t which : {CT_SWITCH_CUDNN_BENCHMARK, CT_SWITCH_TF32, CT_SWITCH_DETERMINISTIC}) {
    int32_t before = -1, on = -1;
    EXPECT_OK(ct_switch_get(which, &before));
    for (const int32_t want : {1, 0, 1}) {
      EXPECT_OK(ct_switch_set(which, want));
      EXPECT_OK(ct_switch_get(which, &on));
      EXPECT_EQ(on, want) << which;
    }
    EXPECT_OK(ct_switch_set(which, before));
  }
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "no switch of number -1", ct_switch_set(-1, 1));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "no switch of number 4", ct_switch_set(4, 1));
  int32_t before = 0, limit = 0;
  EXPECT_OK(ct_switch_get(CT_SWITCH_CUDNN_BENCHMARK_LIMIT, &before));
  EXPECT_OK(ct_switch_set(CT_SWITCH_CUDNN_BENCHMARK_LIMIT, 25));
  EXPECT_OK(ct_switch_get(CT_SWITCH_CUDNN_BENCHMARK_LIMIT, &limit));
  EXPECT_EQ(limit, 25);
  EXPECT_OK(ct_switch_set(CT_SWITCH_CUDNN_BENCHMARK_LIMIT, before));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a limit of -1 algorithms", ct_switch_set(CT_SWITCH_CUDNN_BENCHMARK_LIMIT, -1));
}

TEST_F(ProcessTest, Threads) {
  const int32_t before = ct_threads_get();
  EXPECT_GE(before, 1);
  EXPECT_OK(ct_threads_set(1));
  EXPECT_EQ(ct_threads_get(), 1);
  int32_t elsewhere = 0;
  std::thread([&] { elsewhere = ct_threads_get(); }).join();
  EXPECT_EQ(elsewhere, 1) << "threads that enter LibTorch later inherit it";
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a thread count of 0", ct_threads_set(0));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a thread count of -3", ct_threads_set(-3));
  EXPECT_EQ(ct_threads_get(), 1);
  EXPECT_OK(ct_threads_set(before));
}

// oneDNN and MKL ask OpenMP for the number of the calling thread.
TEST_F(ProcessTest, Threads_OfOpenMP) {
  const auto most = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
  ASSERT_NE(most, nullptr);
  const int32_t before = ct_threads_get();
  const Stream s = ct_test::new_stream();
  const auto of_call = [&] {
    ct_test::run1(exec(s), "aten::empty.memory_format", Args().is({1}).rest());
    return most();
  };
  for (const int32_t count : {3, 1}) {
    std::thread([&] { EXPECT_OK(ct_threads_set(count)); }).join();
    EXPECT_EQ(of_call(), count) << "a thread that has made calls";
    int elsewhere = 0;
    std::thread([&] { elsewhere = of_call(); }).join();
    EXPECT_EQ(elsewhere, count) << "a new thread";
  }
  EXPECT_OK(ct_threads_set(before));
}

}  // namespace
