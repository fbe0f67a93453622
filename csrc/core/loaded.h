// Where the libraries lie that this process has loaded.
#pragma once

#include <string>

namespace ct {

// Returns the folder of the first loaded library whose file name begins with `name`, with a slash
// at the end. Returns "" if no such library is loaded.
//
// Libraries are opened by full paths that begin with such a folder. So it does not matter which
// folders the dynamic loader searches, and no library of the same name takes the place of another.
std::string folder_of(const std::string& name);

}  // namespace ct
