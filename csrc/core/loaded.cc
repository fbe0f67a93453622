#include "core/loaded.h"

#include <link.h>

#include <utility>

namespace ct {
namespace {

struct Search {
  const std::string& name;
  std::string folder;
};

int visit(dl_phdr_info* info, size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos || path.compare(slash + 1, search.name.size(), search.name) != 0) return 0;
  search.folder = path.substr(0, slash + 1);
  return 1;
}

}  // namespace

std::string folder_of(const std::string& name) {
  Search search{name, ""};
  dl_iterate_phdr(visit, &search);
  return std::move(search.folder);
}

}  // namespace ct
