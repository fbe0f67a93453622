#include "graph/graph.h"

#include <dlfcn.h>

#include "core/handles_test.h"

namespace {

using ct_test::Args;
using ct_test::Graph;
using ct_test::GraphPool;
using ct_test::kCpu;
using ct_test::kCuda;
using ct_test::Stream;
using ct_test::Tensor;

class GraphTest : public ct_test::HandlesTest {
 protected:
  static GraphPool pool() {
    ct_graph_pool* out = nullptr;
    EXPECT_OK(ct_graph_pool_new(kCuda, &out));
    return GraphPool(out);
  }
  static Graph begin(const ct_exec& x, const GraphPool& memory) {
    ct_graph* out = nullptr;
    EXPECT_OK(ct_graph_begin(x, memory.get(), &out));
    return Graph(out);
  }
  static void add(const ct_exec& x, const Tensor& t) { ct_test::run(x, "aten::add_.Scalar", Args().t(t).i(1).rest()); }
};

TEST_F(GraphTest, NoneOnTheCPU) {
  ct_graph_pool* memory = nullptr;
  EXPECT_FAILS(CT_UNSUPPORTED, "the CPU has no graphs", ct_graph_pool_new(kCpu, &memory));
  EXPECT_EQ(memory, nullptr);
}

TEST_F(GraphTest, NullHandles) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = ct_test::exec(s);
  ct_graph* graph = nullptr;
  int64_t bytes = 0;
  uint64_t drawn = 0;
  int32_t updated = 0;
  ct_graph_size size;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "pool is NULL", ct_graph_begin(x, nullptr, &graph));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "pool is NULL", ct_graph_pool_bytes(nullptr, &bytes));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "pool is NULL", ct_graph_pool_enter(nullptr));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "pool is NULL", ct_graph_pool_add(nullptr, s.get()));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "graph is NULL", ct_graph_end(x, nullptr, nullptr, &updated));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "graph is NULL", ct_graph_launch(x, nullptr));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "graph is NULL", ct_graph_drawn(nullptr, &drawn));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "graph is NULL", ct_graph_count(nullptr, &size));
  ct_graph_pool_leave(nullptr);
  ct_graph_free(nullptr);
  ct_graph_pool_free(nullptr);
}

TEST_F(GraphTest, CaptureAndLaunch) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda), other = ct_test::new_stream(kCuda);
  const ct_exec x = ct_test::exec(s);
  const Tensor t = ct_test::floats(x, {1, 2});
  const GraphPool memory = pool();
  Graph g = begin(x, memory);
  add(x, t);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "not captured to its end", ct_graph_launch(x, g.get()));
  int32_t updated = 0;
  ASSERT_OK(ct_graph_end(x, g.get(), nullptr, &updated));
  EXPECT_EQ(updated, 0);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "has ended", ct_graph_end(x, g.get(), nullptr, &updated));
  ct_graph_size size;
  ASSERT_OK(ct_graph_count(g.get(), &size));
  EXPECT_EQ(size.kernels, 1);
  EXPECT_EQ(size.random, 0);
  EXPECT_EQ(ct_test::values<float>(x, t), (std::vector<float>{1, 2}));
  ASSERT_OK(ct_graph_launch(x, g.get()));
  ASSERT_OK(ct_graph_launch(x, g.get()));
  EXPECT_EQ(ct_test::values<float>(x, t), (std::vector<float>{3, 4}));
  // A second graph with the same kernels takes over the executable form of the first graph.
  Graph second = begin(x, memory);
  ct_test::run(x, "aten::add_.Scalar", Args().t(t).i(10).rest());
  ASSERT_OK(ct_graph_end(x, second.get(), g.get(), &updated));
  EXPECT_EQ(updated, 1);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "another one has taken it over", ct_graph_launch(x, g.get()));
  ASSERT_OK(ct_graph_launch(x, second.get()));
  EXPECT_EQ(ct_test::values<float>(x, t), (std::vector<float>{13, 14}));
}

// Fills with values of one, two and four bytes are captured as kernels. The kernels must write
// the same bytes.
TEST_F(GraphTest, Fills) {
  SKIP_WITHOUT_CUDA();
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  ASSERT_NE(driver, nullptr);
  const auto fill8 = reinterpret_cast<int (*)(uint64_t, unsigned char, size_t, void*)>(dlsym(driver, "cuMemsetD8Async"));
  const auto fill16 = reinterpret_cast<int (*)(uint64_t, unsigned short, size_t, void*)>(dlsym(driver, "cuMemsetD16Async"));
  const auto fill32 = reinterpret_cast<int (*)(uint64_t, unsigned, size_t, void*)>(dlsym(driver, "cuMemsetD32Async"));
  ASSERT_TRUE(fill8 != nullptr && fill16 != nullptr && fill32 != nullptr);
  const Stream s = ct_test::new_stream(kCuda);
  const ct_exec x = ct_test::exec(s);
  constexpr size_t kBytes = 1000;
  std::vector<uint8_t> want(kBytes, 7);
  const Tensor t = ct_test::tensor(x, ct_test::kUint8, want, {kBytes});
  const uint64_t at = ct_test::describe(t).address;
  void* native = ct_stream_native(s.get());
  const GraphPool memory = pool();
  Graph g = begin(x, memory);
  EXPECT_EQ(fill8(at + 1, 0xAB, 33, native), 0);
  EXPECT_EQ(fill16(at + 64, 0x1234, 9, native), 0);
  EXPECT_EQ(fill16(at + 102, 0x5678, 20, native), 0);
  EXPECT_EQ(fill32(at + 256, 0x01020304, 17, native), 0);
  EXPECT_EQ(fill32(at + 404, 0x0A0B0C0D, 3, native), 0);
  int32_t updated = 0;
  ASSERT_OK(ct_graph_end(x, g.get(), nullptr, &updated));
  ct_graph_size size;
  ASSERT_OK(ct_graph_count(g.get(), &size));
  EXPECT_EQ(size.kernels, 5);
  EXPECT_EQ(size.fills, 0);
  ASSERT_OK(ct_graph_launch(x, g.get()));
  const auto put = [&](size_t from, size_t count, uint32_t value, size_t element) {
    for (size_t i = 0; i < count * element; ++i) want[from + i] = static_cast<uint8_t>(value >> (8 * (i % element)));
  };
  put(1, 33, 0xAB, 1);
  put(64, 9, 0x1234, 2);
  put(102, 20, 0x5678, 2);
  put(256, 17, 0x01020304, 4);
  put(404, 3, 0x0A0B0C0D, 4);
  EXPECT_EQ(ct_test::values<uint8_t>(x, t), want);
}

TEST_F(GraphTest, Abandoned) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda);
  const ct_exec x = ct_test::exec(s);
  const Tensor t = ct_test::floats(x, {1});
  const GraphPool memory = pool();
  for (int i = 0; i < 3; ++i) {
    Graph g = begin(x, memory);
    ct_graph* inner = nullptr;
    EXPECT_FAILS(CT_NOT_CAPTURABLE, "a capture inside a capture", ct_graph_begin(x, memory.get(), &inner));
    add(x, t);
    double value = 0;
    EXPECT_FAILS(CT_NOT_CAPTURABLE, "it would wait", ct_tensor_item(x, t.get(), &value));
    g.reset();
    EXPECT_EQ(ct_test::values<float>(x, t), (std::vector<float>{1})) << "what was captured was run";
  }
  Graph g = begin(x, memory);
  add(x, t);
  int32_t updated = 0;
  ASSERT_OK(ct_graph_end(x, g.get(), nullptr, &updated));
  ASSERT_OK(ct_graph_launch(x, g.get()));
  EXPECT_EQ(ct_test::values<float>(x, t), (std::vector<float>{2}));
}

// After a launch, the generator of the device continues after the numbers that the launch has
// drawn. A capture does not advance that generator. A capture that is set back draws the same
// numbers again.
TEST_F(GraphTest, RandomNumbers) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda);
  const ct_exec x = ct_test::exec(s);
  const Tensor a = ct_test::floats(x, {0, 0, 0, 0}), b = ct_test::floats(x, {0, 0, 0, 0});
  const auto draw = [&](const Tensor& t) { ct_test::run(x, "aten::uniform_", Args().t(t).rest()); };
  const auto read = [&](const Tensor& t) { return ct_test::values<float>(x, t); };
  ASSERT_OK(ct_seed(3));
  std::vector<std::vector<float>> want;
  for (int i = 0; i < 3; ++i) {
    draw(a);
    want.push_back(read(a));
  }
  ASSERT_OK(ct_seed(3));
  const GraphPool memory = pool();
  Graph g = begin(x, memory);
  uint64_t before = 1, behind = 0;
  ASSERT_OK(ct_graph_drawn(g.get(), &before));
  draw(a);
  ASSERT_OK(ct_graph_drawn(g.get(), &behind));
  EXPECT_EQ(before, 0U);
  EXPECT_GT(behind, before);
  ASSERT_OK(ct_graph_set_drawn(g.get(), before));
  draw(b);
  EXPECT_FAILS(CT_NOT_CAPTURABLE, "inside a capture", ct_seed(4));
  int32_t updated = 0;
  ASSERT_OK(ct_graph_end(x, g.get(), nullptr, &updated));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "capture has ended", ct_graph_set_drawn(g.get(), 0));
  ASSERT_OK(ct_graph_launch(x, g.get()));
  EXPECT_EQ(read(a), want[0]);
  EXPECT_EQ(read(b), want[0]);
  draw(a);
  EXPECT_EQ(read(a), want[1]);
  ASSERT_OK(ct_graph_launch(x, g.get()));
  EXPECT_EQ(read(b), want[2]);
}

}  // namespace
