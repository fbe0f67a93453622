// A list of objects that are not destroyed after use, but kept for their next owner.
#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace ct {

// Objects with equal keys can stand in for each other.
template <typename Key, typename T>
class FreeList {
 public:
  // Takes the object with this key that was given back last. Returns nullopt if there is none.
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
