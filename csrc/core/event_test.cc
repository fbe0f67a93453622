#include "core/event.h"

#include "core/handles_test.h"

namespace {

using ct_test::Event;
using ct_test::kCpu;
using ct_test::kCuda;
using ct_test::Stream;
using EventTest = ct_test::HandlesTest;

TEST_F(EventTest, Wait_BetweenDevices) {
  SKIP_WITHOUT_CUDA();
  const Stream cpu = ct_test::new_stream(kCpu), cuda = ct_test::new_stream(kCuda);
  EXPECT_OK(ct_stream_wait(cpu.get(), ct_test::record(cuda).get()));
  EXPECT_OK(ct_stream_wait(cuda.get(), ct_test::record(cpu).get()));
}

TEST_F(EventTest, Elapsed_Refused) {
  const Stream s = ct_test::new_stream();
  const Event timed = ct_test::record(s, true), plain = ct_test::record(s);
  double ms = 77;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "not recorded for timing", ct_event_elapsed(timed.get(), plain.get(), &ms));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "not recorded for timing", ct_event_elapsed(plain.get(), timed.get(), &ms));
  if (ct_test::has_cuda()) {
    const Stream cuda = ct_test::new_stream(kCuda);
    const Event there = ct_test::record(cuda, true);
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "between events of", ct_event_elapsed(timed.get(), there.get(), &ms));
  }
  EXPECT_EQ(ms, 77);
}

// 400 events are recorded while the work before them still runs. The host must not wait for that
// work.
TEST_F(EventTest, Record_DoesNotWait) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda);
  std::vector<Event> events;
  for (int round = 0; round < 2; ++round) {  // in the second round the events are reused and not made
    ASSERT_OK(ct_test::sleep(ct_test::exec(s), 200'000'000));
    for (int i = 0; i < 400; ++i) events.push_back(ct_test::record(s, i % 2 == 0));
    int32_t done = 1;
    EXPECT_OK(ct_event_query(events.front().get(), &done));
    EXPECT_EQ(done, 0) << "round " << round;
    EXPECT_OK(ct_event_synchronize(events.back().get()));
    EXPECT_OK(ct_event_query(events.front().get(), &done));
    EXPECT_EQ(done, 1);
    events.clear();
  }
}

// A new event reuses a freed event that has the same kind of timing. See Note [Events are never
// destroyed].
TEST_F(EventTest, Record_TakesAFreedOne) {
  SKIP_WITHOUT_CUDA();
  const Stream s = ct_test::new_stream(kCuda);
  Event e = ct_test::record(s);
  void* const native = e->native;
  e.reset();
  EXPECT_NE(ct_test::record(s, true)->native, native) << "one for timing";
  EXPECT_EQ(ct_test::record(s)->native, native);
}

}  // namespace
