#include "core/early.h"

#include <map>
#include <utility>

namespace ct {
namespace {

using Declared = std::map<std::string_view, std::vector<EarlyRead>>;

Declared& declared() {
  static auto* const all = new Declared;
  return *all;
}

}  // namespace

void declare_early_reads(std::string_view op, std::vector<EarlyRead> reads) { declared()[op] = std::move(reads); }

const std::vector<EarlyRead>& early_reads(std::string_view op) {
  static const std::vector<EarlyRead> none;
  const auto at = declared().find(op);
  return at == declared().end() ? none : at->second;
}

std::vector<std::string_view> operators_with_early_reads() {
  std::vector<std::string_view> names;
  for (const auto& [op, reads] : declared()) names.push_back(op);
  return names;
}

}  // namespace ct
