#include <string>
#include <thread>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::exec;
using ct_test::floats;
using ct_test::kCpu;
using ct_test::kCuda;
using ct_test::run1;
using ct_test::Stream;
using ct_test::Tensor;
using ct_test::Watch;
using ct_test::with_grad;
using WatchTest = ct_test::HandlesTest;

Watch watch(ct_device device) {
  ct_watch* out = nullptr;
  EXPECT_OK(ct_watch_new(device, &out));
  return Watch(out);
}

ct_exec under(ct_exec x, const Watch& watch) {
  x.watch = watch.get();
  return x;
}

std::string seen(const Watch& watch) {
  const char* text = ct_watch_seen(watch.get());
  return text == nullptr ? "" : text;
}

#define EXPECT_SEEN(watch, text) EXPECT_NE(seen(watch).find(text), std::string::npos) << '"' << seen(watch) << '"'

TEST_F(WatchTest, Item_IsSeen_WithItsOperators) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor one = floats(x, {7}, {});
    double value = 0;
    EXPECT_OK(ct_tensor_item(x, one.get(), &value));
    const Watch w = watch(device);
    EXPECT_OK(ct_tensor_item(x, one.get(), &value));
    EXPECT_EQ(seen(w), "") << "the exec does not carry it";
    EXPECT_OK(ct_tensor_item(under(x, w), one.get(), &value));
    EXPECT_SEEN(w, "in aten::item > aten::_local_scalar_dense");
    const std::string first = seen(w);
    run1(under(x, w), "aten::nonzero", Args().t(one));
    EXPECT_EQ(seen(w), first) << "the first is kept";
  }
}

TEST_F(WatchTest, HostMemory_IsSeen) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    const Tensor warm = floats(x, std::vector<float>(1 << 16, 1));
    {
      const Watch w = watch(device);
      const Tensor in = floats(under(x, w), std::vector<float>(1 << 16, 1));
      EXPECT_NE(seen(w), "");
    }
    const Watch w = watch(device);
    ct_test::values<float>(under(x, w), warm);
    EXPECT_NE(seen(w), "");
  }
}

TEST_F(WatchTest, OtherOperators_AreNot) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = exec(s);
    for (int round = 0; round < 2; ++round) {  // the first round allocates memory, which may wait
      const Watch w = watch(device);
      const ct_exec y = round == 0 ? x : with_grad(under(x, w));
      const Tensor a = run1(y, "aten::ones", Args().is({32, 32}).standard().standard().device().rest());
      run1(y, "aten::mm", Args().t(a).t(a));
      run1(y, "aten::add.Scalar", Args().t(a).f(1).rest());
      EXPECT_EQ(seen(w), "");
    }
  }
}

// A backward that waits must be seen. The backward of this test waits because it counts the
// elements of a mask. On CUDA it runs on a thread of autograd's. The watch's text must outlive
// that thread's work.
TEST_F(WatchTest, Backward_IsSeen) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Stream s = ct_test::new_stream(device);
    const ct_exec x = with_grad(exec(s));
    const auto loss = [&] {
      const Tensor a = run1(x, "aten::ones", Args().is({4}).standard().standard().device().rest());
      EXPECT_OK(ct_tensor_set_requires_grad(a.get(), 1));
      const Tensor mask = run1(x, "aten::gt.Scalar", Args().t(a).i(0));
      return run1(x, "aten::sum", Args().t(run1(x, "aten::index.Tensor", Args().t(a).ts({mask.get()}))).rest());
    };
    ct_tensor* const warm = loss().release();
    EXPECT_OK(ct_backward(x, &warm, nullptr, 1, 0));
    ct_tensor_free(warm);
    const Tensor root = loss();
    const Watch w = watch(device);
    ct_tensor* const roots[] = {root.get()};
    EXPECT_OK(ct_backward(under(x, w), roots, nullptr, 1, 0));
    EXPECT_SEEN(w, "in IndexBackward0 > aten::_index_put_impl_");
  }
}

TEST_F(WatchTest, OtherThreads_AreNot) {
  for (const ct_device device : ct_test::devices()) {
    SCOPED_TRACE(device);
    const Watch w = watch(device);
    std::thread([&] {
      const Stream s = ct_test::new_stream(device);
      const Tensor one = floats(exec(s), {7}, {});
      double value = 0;
      EXPECT_OK(ct_tensor_item(exec(s), one.get(), &value));
      EXPECT_OK(ct_device_synchronize(device));
    }).join();
    EXPECT_EQ(seen(w), "");
  }
}

TEST_F(WatchTest, Null_IsHarmless) {
  ct_watch_free(nullptr);
  EXPECT_EQ(ct_watch_seen(nullptr), nullptr);
  if (!ct_test::has_cuda()) {
    ct_watch* out = nullptr;
    EXPECT_FAILS(CT_NO_DEVICE, "CUDA is not available", ct_watch_new(kCuda, &out));
  }
}

}  // namespace
