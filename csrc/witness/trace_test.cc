#include <unistd.h>

#include <map>
#include <set>
#include <string>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::exec;
using ct_test::kCuda;
using ct_test::run;
using ct_test::run1;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::Trace;
using TraceTest = ct_test::HandlesTest;

Trace stop() {
  ct_trace* out = nullptr;
  EXPECT_OK(ct_trace_stop(&out));
  return Trace(out);
}

std::vector<ct_trace_record> records(const Trace& trace) {
  int64_t count = 0;
  const ct_trace_record* first = ct_trace_records(trace.get(), &count);
  return {first, first + count};
}

TEST_F(TraceTest, OfNoDevice) {
  if (ct_test::has_cuda()) GTEST_SKIP() << "CUDA is there";
  EXPECT_FAILS(CT_NO_DEVICE, "CUDA is not available", ct_trace_start(10));
  ct_trace* out = nullptr;
  EXPECT_FAILS(CT_MISUSE, "no trace is running", ct_trace_stop(&out));
}

TEST_F(TraceTest, Null_IsHarmless) {
  ct_trace_free(nullptr);
  int64_t count = -1;
  EXPECT_EQ(ct_trace_records(nullptr, &count), nullptr);
  EXPECT_EQ(count, 0);
  EXPECT_EQ(ct_trace_lost(nullptr), 0);
  EXPECT_STREQ(ct_trace_name(nullptr, 0), "");
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a trace of 0 records", ct_trace_start(0));
}

// A trace names the stream and the thread of each kernel. One stream was made before the trace,
// one is made and closed during the trace, and one is the default stream.
TEST_F(TraceTest, Streams_AndThreads) {
  SKIP_WITHOUT_CUDA();
  constexpr int kKernels = 50;
  const Stream before = ct_test::new_stream(kCuda);
  const Tensor a = run1(exec(before), "aten::ones", Args().is({1024}).standard().standard().device().rest());
  run(exec(before), "aten::add_.Scalar", Args().t(a).f(1).rest());
  EXPECT_OK(ct_device_synchronize(kCuda));
  ASSERT_OK(ct_trace_start(100000));
  EXPECT_FAILS(CT_MISUSE, "a trace is running already", ct_trace_start(10));
  std::map<uint64_t, uint32_t> threads;
  const auto work = [&](const Stream& s) {
    for (int i = 0; i < kKernels; ++i) run(exec(s), "aten::add_.Scalar", Args().t(a).f(1).rest());
    threads[ct_stream_id(s.get())] = static_cast<uint32_t>(gettid());
  };
  std::thread([&] { work(before); }).join();
  std::thread([&] { work(ct_test::new_stream(kCuda)); }).join();
  const Stream standard = ct_test::default_stream(kCuda);
  std::thread([&] { work(standard); }).join();
  const Trace trace = stop();
  EXPECT_EQ(ct_trace_lost(trace.get()), 0);
  std::map<uint64_t, int> kernels;
  uint64_t last = 0;
  for (const ct_trace_record& r : records(trace)) {
    EXPECT_GE(r.start, last) << "in order of start";
    last = r.start;
    EXPECT_GT(r.end, r.start);
    EXPECT_EQ(r.kind, CT_TRACE_KERNEL);
    EXPECT_GT(r.blocks, 0U);
    EXPECT_GT(r.launched, 0U);
    EXPECT_EQ(r.thread, threads[r.stream]);
    EXPECT_NE(std::string(ct_trace_name(trace.get(), r.name)).find("at::native::"), std::string::npos);
    ++kernels[r.stream];
  }
  EXPECT_EQ(kernels.size(), 3U);
  for (const auto& [stream, count] : kernels) EXPECT_EQ(count, kKernels) << stream;
}

TEST_F(TraceTest, WhatFindsNoRoom_IsCounted) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda);
  const Tensor a = run1(exec(s), "aten::ones", Args().is({16}).standard().standard().device().rest());
  EXPECT_OK(ct_device_synchronize(kCuda));
  ASSERT_OK(ct_trace_start(10));
  for (int i = 0; i < 25; ++i) run(exec(s), "aten::add_.Scalar", Args().t(a).f(1).rest());
  const Trace trace = stop();
  EXPECT_EQ(records(trace).size(), 10U);
  EXPECT_EQ(ct_trace_lost(trace.get()), 15);
}

TEST_F(TraceTest, Nothing_IsRecordedAfterwards) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda);
  ASSERT_OK(ct_trace_start(1000));
  stop();
  const Tensor a = run1(exec(s), "aten::ones", Args().is({16}).standard().standard().device().rest());
  EXPECT_OK(ct_device_synchronize(kCuda));
  ASSERT_OK(ct_trace_start(1000));
  const Trace trace = stop();
  EXPECT_EQ(records(trace).size(), 0U);
}

}  // namespace
