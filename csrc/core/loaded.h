// Where the libraries lie that this process has loaded.
#pragma once

#include <link.h>

#include <string>

namespace ct {

// Returns the folder of the first loaded library whose file name begins with `name`, with a slash
// at the end. Returns "" if no such library is loaded.
//
// Libraries are opened by full paths that begin with such a folder. So it does not matter which
// folders the dynamic loader searches, and no library of the same name takes the place of another.
//
// The core and libcgotorch_cuda.so share no symbols, so each has a copy of this function.
inline std::string folder_of(const std::string& name) {
  struct Search {
    const std::string& name;
    std::string folder;
  } search{name, ""};
  const auto visit = [](dl_phdr_info* info, size_t, void* data) {
    auto& s = *static_cast<Search*>(data);
    const std::string path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos || path.compare(slash + 1, s.name.size(), s.name) != 0) return 0;
    s.folder = path.substr(0, slash + 1);
    return 1;
  };
  dl_iterate_phdr(visit, &search);
  return search.folder;
}

}  // namespace ct
