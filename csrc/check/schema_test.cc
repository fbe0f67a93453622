#include "check/schema.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/early.h"
#include "core/versions.h"

namespace {

using ct::Effects;

Effects effects_of(const char* name, const char* overload = "") {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  EXPECT_TRUE(op.has_value()) << name << "." << overload;
  return op ? ct::effects_of(op->schema()) : Effects{};
}

using All = std::vector<Effects::Effect>;

TEST(CheckerSchema, FollowsTheMarks) {
  EXPECT_EQ(effects_of("aten::add", "Tensor").arguments, (All{Effects::read, Effects::read, Effects::none}));
  EXPECT_EQ(effects_of("aten::add_", "Tensor").arguments, (All{Effects::write, Effects::read, Effects::none}));
  EXPECT_EQ(effects_of("aten::add", "out").arguments, (All{Effects::read, Effects::read, Effects::none, Effects::write}));
  EXPECT_EQ(effects_of("aten::_foreach_add_", "List").arguments, (All{Effects::write, Effects::read, Effects::none}));
  EXPECT_EQ(effects_of("aten::view").arguments, (All{Effects::none, Effects::none}));
}

TEST(CheckerSchema, CorrectsTheMarks) {
  EXPECT_EQ(effects_of("aten::record_stream").arguments, (All{Effects::none, Effects::none}));
  EXPECT_EQ(effects_of("aten::empty_like").arguments[0], Effects::none);
  EXPECT_EQ(effects_of("aten::expand_as").arguments, (All{Effects::none, Effects::none}));
  for (const char* name : {"aten::batch_norm", "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::_batch_norm_impl_index"}) {
    const Effects e = effects_of(name);
    EXPECT_EQ(e.conditional, (std::vector<size_t>{3, 4})) << name;  // running_mean, running_var
    EXPECT_EQ(e.condition, 5) << name;
  }
  // These operators mark the statistics as always written.
  EXPECT_EQ(effects_of("aten::_native_batch_norm_legit").conditional, (std::vector<size_t>{3, 4}));
  EXPECT_EQ(effects_of("streamtorch::batch_norm_relu_max_pool_forward").conditional, (std::vector<size_t>{3, 4}));
  const Effects two = effects_of("streamtorch::batch_norm_act_forward");
  EXPECT_EQ(two.conditional, (std::vector<size_t>{4, 5, 8, 9}));
  EXPECT_EQ(two.condition, 11);  // training; the flag `two` is no condition
  const Effects sgd = effects_of("aten::_fused_sgd_");
  EXPECT_EQ(sgd.arguments[1], Effects::read);
  EXPECT_EQ(sgd.conditional, (std::vector<size_t>{1}));
  EXPECT_GT(sgd.condition, 1);
  EXPECT_EQ(effects_of("aten::batch_norm_update_stats").arguments[1], Effects::write);
  EXPECT_TRUE(effects_of("aten::copy_").copies);
  EXPECT_TRUE(effects_of("aten::_local_scalar_dense").waits);
}

TEST(CheckerSchema, ListsOfKernels) {
  const auto lists = [](const char* name, size_t count) {
    All effects = effects_of(name).arguments;
    effects.resize(count);
    return effects;
  };
  EXPECT_EQ(lists("streamtorch::foreach_cast_kernel_", 2), (All{Effects::write, Effects::read}));
  EXPECT_EQ(lists("streamtorch::fused_sgd_kernel_", 4), (All{Effects::write, Effects::read, Effects::write, Effects::read}));
  EXPECT_EQ(lists("streamtorch::fused_adam_kernel_", 6),
            (All{Effects::write, Effects::read, Effects::write, Effects::write, Effects::read, Effects::read}));
}

// Each name in the table of corrections must be an operator of LibTorch. A wrong name would
// correct nothing.
TEST(CheckerSchema, KnowsOnlyOperatorsThatExist) {
  for (const std::string& name : ct::corrected_operators()) {
    if (name == "aten::rename_" && !ct::kNamedTensors) continue;
    bool found = false;
    for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) found |= op.name == name;
    EXPECT_TRUE(found) << name;
  }
}

TEST(CheckerSchema, EarlyReads) {
  const Effects e = effects_of("streamtorch::token_attention");
  ASSERT_GE(e.edge, 0);
  std::vector<std::pair<size_t, int>> early;
  for (const Effects::Early& r : e.early) early.emplace_back(r.argument, r.through);
  EXPECT_NE(std::find(early.begin(), early.end(), std::pair<size_t, int>(8, 9)), early.end()) << "memory, through table";
  EXPECT_EQ(effects_of("aten::add", "Tensor").edge, -1);
}

// Each operator whose caller names the edge declares what it reads early, and each declaration is
// that of such an operator.
TEST(CheckerSchema, EarlyReads_OfAllKernels) {
  const std::vector<std::string_view> declared = ct::operators_with_early_reads();
  std::set<std::string> all(declared.begin(), declared.end()), found;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name.starts_with("streamtorch::") && effects_of(op.name.c_str(), op.overload_name.c_str()).edge >= 0) found.insert(op.name);
  }
  EXPECT_EQ(all, found);
  EXPECT_FALSE(found.empty());
}

}  // namespace
