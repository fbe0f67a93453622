#include "distributed/group.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/handles_test.h"

namespace {

using namespace ct_test;

// A socket that listens on a free port of the loopback interface.
struct Listener {
  Listener() : fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd, 16), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port = ntohs(address.sin_port);
  }
  const int fd;
  int port = 0;
};

class GroupTest : public HandlesTest {
 protected:
  // Runs `rank` for two ranks of a group over Gloo, each on a thread of its own.
  static void together(int32_t timeout_ms, const std::function<void(const ct_exec& x, ct_group* group, int rank)>& rank) {
    const Listener listener;
    ct_store* server = nullptr;
    ASSERT_OK(ct_store_new("127.0.0.1", listener.port, listener.fd, 10'000, &server));
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        ct_store* store = nullptr;
        ASSERT_OK(ct_store_new("127.0.0.1", listener.port, -1, 10'000, &store));
        ct_group* group = nullptr;
        ASSERT_OK(ct_group_gloo(store, "test", "127.0.0.1", i, 2, timeout_ms, /*compare=*/1, &group));
        {
          const Stream stream = new_stream();
          rank(exec(stream), group, i);
        }
        ct_group_free(group);
        ct_store_free(store);
      });
    }
    for (std::thread& t : threads) t.join();
    ct_store_free(server);
  }
};

TEST_F(GroupTest, Store) {
  const Listener listener;
  ct_store* store = nullptr;
  ASSERT_OK(ct_store_new("127.0.0.1", listener.port, listener.fd, 10'000, &store));
  char* value = nullptr;
  EXPECT_OK(ct_store_get(store, "a", &value));
  EXPECT_EQ(value, nullptr);
  EXPECT_OK(ct_store_set(store, "a", "one"));
  EXPECT_OK(ct_store_get(store, "a", &value));
  EXPECT_STREQ(Text(value).get(), "one");
  EXPECT_OK(ct_store_delete(store, "a"));
  EXPECT_OK(ct_store_delete(store, "never set"));
  EXPECT_OK(ct_store_get(store, "a", &value));
  EXPECT_EQ(value, nullptr);
  ct_store_free(store);
  ct_store_free(nullptr);
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "store is NULL", ct_store_set(nullptr, "a", "b"));
}

TEST_F(GroupTest, Refusals) {
  together(10'000, [](const ct_exec& x, ct_group* group, int) {
    const Tensor flags = tensor<uint8_t>(x, kBool, {1}, {1});
    const Tensor number = tensor<int64_t>(x, kInt64, {1}, {1});
    ct_tensor* all[] = {flags.get()};
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "convert the tensor to uint8", ct_all_reduce(x, group, all, 1, CT_SUM));
    const Tensor narrow = tensor<int16_t>(x, kInt16, {1}, {1});
    all[0] = narrow.get();
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "a reduction of Short", ct_all_reduce(x, group, all, 1, CT_SUM));
    all[0] = number.get();
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "floating dtype", ct_all_reduce(x, group, all, 1, CT_MEAN));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "is not one of the five", ct_all_reduce(x, group, all, 1, 9));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "rank 2 in a group of 2", ct_broadcast(x, group, all, 1, 2));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "group is NULL", ct_all_reduce(x, nullptr, all, 1, CT_SUM));
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "from 2 ranks", ct_all_gather(x, group, number.get(), number.get()));
  });
}

}  // namespace
