// Objects that are given back and not destroyed, and wait for their next owner.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace ct {

// Key: the properties that make two objects serve the same purpose.
template <typename Key, typename T>
class FreeList {
 public:
  // The object that was given back last, or none.
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
