#include <atomic>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::exec;
using ct_test::floats;
using ct_test::run1;
using ct_test::Status;
using ct_test::Stream;
using ct_test::Tensor;
using Floats = std::vector<float>;

// A function of the tests, which computes the square of its input. Its token is the address of
// the Square.
struct Square {
  ct_exec x{};
  uint64_t failure = 0;  // what the function `run` returns as its failure, or 0
  bool none = false;     // the function `run` succeeds but gives no tensor
  std::atomic<int> runs{0}, released{0}, failures_released{0};
};

uint64_t run(uint64_t token, ct_tensor* in, ct_tensor** out) {
  auto& square = *reinterpret_cast<Square*>(token);
  const Tensor owned(in);
  ++square.runs;
  if (square.failure != 0) return square.failure;
  if (square.none) return 0;
  ct_exec x = square.x;
  x.thread = ct_thread_id();
  *out = run1(x, "aten::mul.Tensor", Args().t(owned).t(owned)).release();
  return 0;
}

// An even number is the token of a Square. The number of a failure is the address of its Square
// plus 1, and so odd.
void release(uint64_t number) {
  if (number % 2 == 0) {
    ++reinterpret_cast<Square*>(number)->released;
  } else {
    ++reinterpret_cast<Square*>(number - 1)->failures_released;
  }
}

ct_function function(Square& square) { return {reinterpret_cast<uint64_t>(&square), run, release}; }

class RecomputeTest : public ct_test::HandlesTest {
 protected:
  // Returns in^2 as a tensor whose backward computes it again.
  Tensor recompute(Square& square, const Tensor& in) {
    const Tensor result = run1(exec_of(square), "aten::mul.Tensor", Args().t(in).t(in));
    ct_tensor* out = nullptr;
    EXPECT_OK(ct_recompute(square.x, function(square), in.get(), result.get(), &out));
    return Tensor(out);
  }
  static ct_exec exec_of(const Square& square) {
    ct_exec x = square.x;
    x.grad = 0;
    return x;
  }
};

ct_status* backward(const ct_exec& x, const Tensor& root, bool retain = false) {
  ct_tensor* r = root.get();
  const Tensor one = floats(x, Floats{1, 1});
  ct_tensor* g = one.get();
  return ct_backward(x, &r, &g, 1, retain);
}

TEST_F(RecomputeTest, Function_IsReleasedWithItsGraph) {
  const Stream s = ct_test::new_stream();
  Square square{ct_test::with_grad(exec(s))};
  Tensor out = recompute(square, floats(square.x, Floats{2, 3}));
  ct_live live;
  ct_live_handles(&live);
  EXPECT_EQ(live.functions, 1);
  EXPECT_EQ(square.released, 0);
  std::thread([&] { out.reset(); }).join();
  EXPECT_EQ(square.released, 1);
  EXPECT_EQ(square.runs, 0);
}

TEST_F(RecomputeTest, Function_IsConsumedByAFailure) {
  const Stream s = ct_test::new_stream();
  Square square{ct_test::with_grad(exec(s))};
  const Tensor in = floats(square.x, Floats{2, 3});
  ct_tensor* out = nullptr;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "in is NULL", ct_recompute(square.x, function(square), nullptr, in.get(), &out));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "result is NULL", ct_recompute(square.x, function(square), in.get(), nullptr, &out));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "stream", ct_recompute({}, function(square), in.get(), in.get(), &out));
  EXPECT_EQ(square.released, 3);
  EXPECT_EQ(out, nullptr);
}

TEST_F(RecomputeTest, Function_IsReleasedWhereNothingIsRecorded) {
  const Stream s = ct_test::new_stream();
  Square square{exec(s)};
  const Tensor out = recompute(square, floats(square.x, Floats{2, 3}));
  EXPECT_EQ(square.released, 1);
  ct_tensor_info info;
  ct_tensor_describe(out.get(), &info);
  EXPECT_FALSE(info.requires_grad);
}

// A function that fails returns a number. That number is released when the status is freed, and
// not before.
TEST_F(RecomputeTest, Backward_FailsWithTheFunction) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    Square square{ct_test::with_grad(exec(s))};
    square.failure = reinterpret_cast<uint64_t>(&square) + 1;
    const Tensor out = recompute(square, floats(square.x, Floats{2, 3}));
    Status status(backward(square.x, out));
    ASSERT_NE(status, nullptr);
    EXPECT_EQ(ct_status_code(status.get()), CT_INTERNAL);
    EXPECT_EQ(ct_status_cause(status.get()), square.failure);
    EXPECT_EQ(square.failures_released, 0);
    status.reset();
    EXPECT_EQ(square.failures_released, 1);
    square.failure = 0;
    square.none = true;
    const Tensor again = recompute(square, floats(square.x, Floats{2, 3}));
    status.reset(backward(square.x, again));
    EXPECT_EQ(ct_status_code(status.get()), CT_INVALID_ARGUMENT);
    EXPECT_EQ(ct_status_cause(status.get()), 0u);
  }
}

}  // namespace
