// Compiled kernels in the user's cache folder, so that only the first process compiles them.
#pragma once

#include <string>

namespace ct {

// The file of one compiled program, $STREAMTORCH_CACHE/kernels/NAME. NAME is a hash of the text and
// the options. Without $STREAMTORCH_CACHE, the folder is streamtorch in $XDG_CACHE_HOME or in
// ~/.cache. Only files that nobody but their owner can write are read, and their owner must be the
// user of the process. If the file cannot be read or written, the process compiles.
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
