// What is given back and not destroyed, waiting for its next owner.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace ct {

// Key: what makes two of them serve the same purpose.
template <typename Key, typename T>
class FreeList {
 public:
  // One that was given back last, or none.
  std::optional<T> take(const Key& key) {
    const std::lock_guard lock(mutex_);
    auto& free = free_[key];
    if (free.empty()) return std::nullopt;
    const T one = free.back();
    free.pop_back();
    return one;
  }

  void give(const Key& key, T one) {
    const std::lock_guard lock(mutex_);
    free_[key].push_back(one);
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::vector<T>> free_;
};

}  // namespace ct
