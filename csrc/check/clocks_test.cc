#include "check/clocks.h"

#include "core/handles_test.h"
#include "core/tensor.h"

namespace {

using ct::Checker;

class ClocksTest : public ct_test::HandlesTest {};

// What a side stream has freed while the checker was on says nothing of its memory when the checker
// is on again: what happened meanwhile was not seen.
TEST_F(ClocksTest, Forget_FreedMemoryOfSideStreams) {
  Checker& checker = Checker::instance();
  const ct_test::Stream parent = ct_test::new_stream(), side = ct_test::new_stream(), user = ct_test::new_stream();
  const auto queue = [&](const ct_test::Stream& s) { return checker.queue_of(*s.get()); };
  const auto actor = [&](const ct_test::Stream& s) { return Checker::Actor{queue(s), "op", 0, 0, false}; };
  for (const bool forgets : {false, true}) {
    SCOPED_TRACE(forgets);
    checker.forget();
    checker.branches(queue(side), queue(parent));
    const ct_test::Tensor t = ct_test::floats(ct_test::exec(parent), {1, 2, 3});
    const void* memory = ct_tensor_host_data(t.get());
    checker.born(memory, 12, actor(side));
    checker.join(queue(user), queue(side));
    checker.access(t.get()->tensor, false, actor(user));
    checker.join(queue(parent), queue(user));
    checker.dies(memory, actor(parent));
    if (forgets) checker.forget();
    checker.born(memory, 12, actor(side));
    checker.dies(memory, actor(side));
    ct_race race{};
    EXPECT_EQ(checker.take(&race), !forgets);
  }
  checker.forget();
}

}  // namespace
