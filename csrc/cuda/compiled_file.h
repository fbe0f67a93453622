// Compiled kernels in the user's cache folder, so that only the first process compiles them.
#pragma once

#include <string>

namespace ct {

// The file of one compiled program, $STREAMTORCH_CACHE/kernels/NAME. NAME is a hash of all that the
// code depends on. Without $STREAMTORCH_CACHE, the folder is streamtorch in $XDG_CACHE_HOME or in
// ~/.cache. Without a folder that can be read and written, every process compiles.
class CompiledFile {
 public:
  explicit CompiledFile(const std::string& depends_on);
  // Returns the code, or "" if there is no file or if the file is damaged.
  std::string read() const;
  // Writes the code for other processes. They see the whole file or none. If the file cannot be
  // written, nothing happens.
  void write(const std::string& code) const;

 private:
  std::string path_;  // "" if there is no folder
};

}  // namespace ct
