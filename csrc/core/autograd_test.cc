#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::describe;
using ct_test::exec;
using ct_test::floats;
using ct_test::run1;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::values;
using AutogradTest = ct_test::HandlesTest;
using Floats = std::vector<float>;

Tensor leaf(const ct_exec& x, const Floats& v) {
  Tensor t = floats(x, v);
  EXPECT_OK(ct_tensor_set_requires_grad(t.get(), 1));
  return t;
}

Tensor product(const ct_exec& x, const Tensor& a, const Tensor& b) { return run1(x, "aten::mul.Tensor", Args().t(a).t(b)); }
Tensor sum(const ct_exec& x, const Tensor& a) { return run1(x, "aten::sum", Args().t(a).rest()); }

ct_status* backward(const ct_exec& x, const Tensor& root, bool retain = false) {
  ct_tensor* r = root.get();
  return ct_backward(x, &r, nullptr, 1, retain);
}

Tensor grad(const Tensor& t) {
  ct_tensor* out = nullptr;
  ct_tensor_grad(t.get(), &out);
  return Tensor(out);
}

// Without grad mode no operator is recorded for backward. Writes are still counted, and views are
// still marked.
TEST_F(AutogradTest, NoGrad) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec plain = exec(s), x = ct_test::with_grad(plain);
    const Tensor a = leaf(x, {1, 2}), b = leaf(x, {3, 4});
    EXPECT_EQ(describe(product(plain, a, b)).requires_grad, 0);
    EXPECT_EQ(describe(sum(plain, a)).requires_grad, 0);

    const Tensor root = sum(x, product(x, a, b));
    run1(plain, "aten::add_.Tensor", Args().t(a).t(b).rest());  // to write a leaf is legal only without grad mode
    EXPECT_EQ(values<float>(plain, a), (Floats{4, 6}));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "modified by an inplace operation", backward(x, root));

    const Tensor view = run1(plain, "aten::view", Args().t(b).is({2, 1}));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "created in no_grad mode", ct_test::fails(x, "aten::mul_.Tensor", Args().t(view).t(a).rest()));
  }
}

// create_graph alone decides whether a gradient gets an autograd graph of its own. The exec's
// grad mode does not matter.
TEST_F(AutogradTest, NoGrad_GradientsOfGradients) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec plain = exec(s), x = ct_test::with_grad(plain);
    const Tensor a = leaf(x, {3});
    const Tensor cube = product(x, a, product(x, a, a));
    ct_tensor *root = cube.get(), *input = a.get(), *first = nullptr, *second = nullptr;
    ASSERT_OK(ct_gradients(plain, &root, nullptr, 1, &input, 1, 1, 1, 0, &first));
    const Tensor once(first);
    EXPECT_EQ(values<float>(plain, once), (Floats{27}));
    ASSERT_OK(ct_gradients(plain, &first, nullptr, 1, &input, 1, 0, 0, 0, &second));
    const Tensor twice(second);
    EXPECT_EQ(values<float>(plain, twice), (Floats{18}));
  }
}

TEST_F(AutogradTest, Backward_RunsWithoutAutocast) {
  const Stream s = ct_test::new_stream();
  ct_exec x = ct_test::with_grad(exec(s));
  const Tensor w = floats(x, {1, 2, 3, 4}, {2, 2});
  EXPECT_OK(ct_tensor_set_requires_grad(w.get(), 1));
  // Forward without autocast gives a backward in float32, whatever the exec of backward says. The
  // test value 1 + 2^-12 would be rounded to 1 in bfloat16.
  const float fine = 1 + 1.0F / 4096;
  const Tensor one = floats(x, {fine, 0, 0, fine}, {2, 2});
  const Tensor loss = sum(x, run1(x, "aten::mm", Args().t(one).t(w)));
  x.autocast = ct_test::kBFloat16;
  EXPECT_OK(backward(x, loss));
  const Tensor g = grad(w);
  EXPECT_EQ(describe(g).dtype, ct_test::kFloat);
  EXPECT_EQ(values<float>(exec(s), g)[0], fine);
}

TEST_F(AutogradTest, Backward_ThroughTwoStreams) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream one = ct_test::new_stream(device), two = ct_test::new_stream(device);
    const ct_exec x = ct_test::with_grad(exec(one)), y = ct_test::with_grad(exec(two));
    const Tensor a = leaf(x, Floats(1 << 20, 2));
    EXPECT_OK(ct_stream_wait(two.get(), ct_test::record(one).get()));
    const Tensor square = product(y, a, a);
    EXPECT_OK(ct_stream_wait(one.get(), ct_test::record(two).get()));
    EXPECT_OK(backward(x, sum(x, square)));
    EXPECT_EQ(values<float>(x, grad(a)), Floats(1 << 20, 4));
  }
}

}  // namespace
