#include "parallel/overlap.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>

#include <string>

#include "core/handles_test.h"

namespace {

using OverlapTest = ct_test::HandlesTest;

ct_overlap_counts counts_of(ct_overlap& overlap) {
  ct_overlap_counts counts{};
  EXPECT_OK(ct_overlap_count(&overlap, &counts));
  return counts;
}

// If the side stream's part of a layer finds no memory, the layer runs on one stream, now and
// later. Other layers still run on two streams.
TEST_F(OverlapTest, OutOfMemory_FallsBack) {
  const ct_test::Stream main = ct_test::new_stream(), side = ct_test::new_stream();
  ct_overlap overlap(/*always=*/1);
  const ct::OverlapScope scope(overlap, *main, {side.get()}, nullptr, {});
  ct::Overlapping* const leave = ct::Overlapping::current();
  ASSERT_NE(leave, nullptr);
  const at::Tensor one = at::ones({2}), two = at::full({2}, 2.0), three = at::full({2}, 3.0);
  const ct::GradientMask wanted{true, true, false};
  int apart = 0, together = 0;
  const auto run = [&](const char* kind, bool fails) {
    return ct::overlapped(*leave, {"test", kind, wanted, one, one, [&](const ct::GradientMask& mask) -> ct::Gradients {
                                     ++(mask[0] && mask[1] ? together : apart);
                                     if (fails && !mask[0]) TORCH_CHECK_WITH(OutOfMemoryError, false, "no memory");
                                     return {mask[0] ? two : at::Tensor(), mask[1] ? three : at::Tensor(), at::Tensor()};
                                   }});
  };
  for (int i = 0; i < 4; ++i) {
    for (const bool fails : {true, false}) {
      const ct::Gradients found = run(fails ? "large" : "small", fails);
      EXPECT_EQ(std::get<0>(found)[0].item<float>(), 2) << i;
      EXPECT_EQ(std::get<1>(found)[0].item<float>(), 3) << i;
      EXPECT_FALSE(std::get<2>(found).defined());
    }
  }
  // The first call of each layer is serial. The large layer tries two streams once. The small
  // layer's other three calls run on two streams.
  EXPECT_EQ(together, 1 + 1 + 3);
  EXPECT_EQ(apart, 1 + 2 * 3);
  const ct_overlap_counts counts = counts_of(overlap);
  EXPECT_EQ(counts.short_of_memory, 1);
  EXPECT_EQ(counts.layers, 1);
  EXPECT_EQ(counts.parallel, 3);
  EXPECT_EQ(counts.serial, 1 + 4);
}

// Late gradients count the memory that only they keep alive. A tensor that two layers have read
// counts once. Memory that has a second owner does not count.
TEST_F(OverlapTest, LateGradients_CountWhatTheyKeep) {
  const ct_test::Stream main = ct_test::new_stream(), side = ct_test::new_stream();
  ct::LateGradients late({}, *main, {side.get()});
  EXPECT_EQ(late.side(), nullptr) << "no gradient is late on the CPU";
  const at::Tensor held = at::ones({1000});
  {
    const at::Tensor input = at::ones({8}), alias = at::empty({0}).set_(input.storage(), 0, {2, 4}, {4, 1});
    late.keep(at::ones({4}), input, *side);
    late.keep(at::ones({2}), input, *side);
    late.keep(held, alias, *side);
  }
  EXPECT_EQ(late.peak(), (4 + 2) * sizeof(float)) << "the input was held by the caller";
  late.release();
  EXPECT_EQ(late.peak(), (4 + 2 + 8) * sizeof(float));
  late.end(/*failed=*/false);
  late.keep(held, held, *side);
  EXPECT_EQ(held.use_count(), 1U) << "behind the end it is let go at once";
}

// A failure other than lack of memory fails the backward. The main stream waits for the side
// stream even then.
TEST_F(OverlapTest, OtherFailure_IsTheBackwards) {
  const ct_test::Stream main = ct_test::new_stream(), side = ct_test::new_stream();
  ct_overlap overlap(/*always=*/1);
  const ct::OverlapScope scope(overlap, *main, {side.get()}, nullptr, {});
  const at::Tensor one = at::ones({2});
  const ct::GradientMask wanted{true, true, false};
  const auto run = [&](bool fails) {
    return ct::overlapped(*ct::Overlapping::current(), {"test", "layer", wanted, one, one, [&](const ct::GradientMask&) -> ct::Gradients {
                                                          TORCH_CHECK(!fails, "broken");
                                                          return {one, one, at::Tensor()};
                                                        }});
  };
  (void)run(false);
  EXPECT_THROW((void)run(true), c10::Error);
  EXPECT_EQ(counts_of(overlap).short_of_memory, 0);
  (void)run(false);
  EXPECT_EQ(counts_of(overlap).parallel, 1);
}

}  // namespace
