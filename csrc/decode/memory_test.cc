#include "decode/memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace decode {
namespace {

// until_waiting returns when `count` threads wait. It fails the test if that takes more than ten
// seconds.
void until_waiting(const Memory& memory, int count) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (memory.waiting() != count && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(memory.waiting(), count);
}

TEST(Memory, WaitsForRoom) {
  Memory memory(100);
  Memory::Share first = memory.take(60), second = memory.take(40);
  std::atomic<bool> taken{false};
  std::thread waiter([&] {
    const Memory::Share share = memory.take(41);
    taken = true;
  });
  until_waiting(memory, 1);
  second = Memory::Share();  // 40 bytes are free, and the waiter wants 41
  EXPECT_EQ(memory.waiting(), 1);
  EXPECT_FALSE(taken);
  first = Memory::Share();
  waiter.join();
  EXPECT_TRUE(taken);
  EXPECT_EQ(memory.peak(), 100u);
}

TEST(Memory, MoreThanAllIsTakenAlone) {
  Memory memory(100);
  Memory::Share small = memory.take(1);
  std::atomic<bool> large_is_taken{false}, large_ends{false};
  std::thread large([&] {
    const Memory::Share share = memory.take(SIZE_MAX);
    large_is_taken = true;
    while (!large_ends) std::this_thread::yield();
  });
  until_waiting(memory, 1);
  EXPECT_FALSE(large_is_taken);
  small = Memory::Share();
  while (!large_is_taken) std::this_thread::yield();
  std::thread next([&] { memory.take(1); });
  until_waiting(memory, 1);
  large_ends = true;
  large.join();
  next.join();
}

// Shares are given in the order of the requests, also if a later request is small. Otherwise a
// large image would wait as long as small images come.
TEST(Memory, LargeIsNotPassed) {
  Memory memory(100);
  Memory::Share held = memory.take(50);
  std::atomic<int> order{0}, large_at{0}, small_at{0};
  std::thread large([&] {
    const Memory::Share share = memory.take(100);
    large_at = ++order;
  });
  until_waiting(memory, 1);
  std::thread small([&] {
    const Memory::Share share = memory.take(1);  // there is enough memory for this share, but the large request is earlier
    small_at = ++order;
  });
  until_waiting(memory, 2);
  EXPECT_EQ(order, 0);
  held = Memory::Share();
  large.join();
  small.join();
  EXPECT_EQ(large_at, 1);
  EXPECT_EQ(small_at, 2);
}

TEST(Memory, ShareIsGivenBackOnce) {
  Memory memory(100);
  try {
    const Memory::Share share = memory.take(100);
    throw 1;
  } catch (int) {
  }
  Memory::Share a = memory.take(100), b(std::move(a)), c;
  c = std::move(b);
  EXPECT_EQ(c.bytes(), 100u);
  EXPECT_EQ(a.bytes() + b.bytes(), 0u);
  c = Memory::Share();
  const Memory::Share all = memory.take(100);
  EXPECT_EQ(memory.peak(), 100u);
}

// 32 threads ask for shares of different sizes. Some shares are above the limit. Every thread
// must get its shares.
TEST(Memory, ManyThreads) {
  constexpr size_t kLimit = 1000;
  Memory memory(kLimit);
  std::atomic<size_t> taken{0}, holders{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 32; ++i) {
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      for (int round = 0; round < 100; ++round) {
        const size_t bytes = 1 + random() % (round % 10 == 0 ? 3 * kLimit : kLimit);
        const Memory::Share share = memory.take(bytes);
        const size_t all = taken += bytes, count = ++holders;
        EXPECT_TRUE(all <= kLimit || count == 1) << all << " bytes of " << count;
        if (round % 3 == 0) std::this_thread::yield();
        --holders;
        taken -= bytes;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(memory.waiting(), 0);
}

}  // namespace
}  // namespace decode
