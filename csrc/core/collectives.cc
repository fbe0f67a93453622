#include "core/collectives.h"

#include <map>
#include <mutex>
#include <string>

#include "core/status.h"

namespace ct {
namespace {

struct Numbered {
  std::weak_ptr<Collectives> collectives;
  int64_t world;
};

std::mutex& mutex() {
  static auto* const all = new std::mutex;
  return *all;
}

std::map<int64_t, Numbered>& numbers() {
  static auto* const all = new std::map<int64_t, Numbered>;
  return *all;
}

}  // namespace

int64_t number_group(const std::shared_ptr<Collectives>& collectives, int64_t world) {
  static int64_t last = 0;
  const std::lock_guard lock(mutex());
  std::erase_if(numbers(), [](const auto& entry) { return entry.second.collectives.expired(); });
  numbers().emplace(++last, Numbered{collectives, world});
  return last;
}

NumberedGroup group_of_number(int64_t number) {
  const std::lock_guard lock(mutex());
  if (const auto found = numbers().find(number); found != numbers().end()) {
    if (auto collectives = found->second.collectives.lock()) return {std::move(collectives), found->second.world};
  }
  throw Failure(CT_INVALID_ARGUMENT, "there is no group of processes with number " + std::to_string(number) + ", or it is closed: close a group after the last backward");
}

}  // namespace ct
