#include "check/reports.h"

#include <cstdint>

namespace ct {

void Reports::add(ct_race race) {
  constexpr size_t kMaxPending = 256;
  const auto text = [](const ct_access& a) { return std::string(a.op) + a.what + std::to_string(a.site) + "/" + std::to_string(a.forward) + "/"; };
  const std::string key = text(race.earlier) + text(race.later) + std::to_string(race.kind);
  if (found_.size() >= kMaxPending || !pending_.insert(key).second) return;
  race.again = !reported_.insert(key).second;
  found_.emplace_back(key, race);
}

bool Reports::take(ct_race* out) {
  if (found_.empty()) return false;
  *out = found_.front().second;
  pending_.erase(found_.front().first);
  found_.pop_front();
  return true;
}

void Reports::forget() {
  found_.clear();
  pending_.clear();
  reported_.clear();
}

}  // namespace ct
