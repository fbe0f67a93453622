#include "cuda/compiled_file.h"

#include <c10/util/hash.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace ct {
namespace {

namespace files = std::filesystem;

// Returns the value of an environment variable, or "".
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string folder() {
  if (const std::string cache = variable("STREAMTORCH_CACHE"); !cache.empty()) return cache + "/kernels";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/streamtorch/kernels";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/streamtorch/kernels";
  return "";
}

std::string hash(const std::string& text) { return c10::sha1(text).str(); }

}  // namespace

CompiledFile::CompiledFile(const std::string& depends_on) : path_(folder()) {
  if (!path_.empty()) path_ += "/" + hash(depends_on);
}

// The file is the hash of the code, and then the code.
std::string CompiledFile::read() const {
  if (path_.empty()) return "";
  std::ifstream file(path_, std::ios::binary);
  const std::string all{std::istreambuf_iterator<char>(file), {}};
  const size_t size = hash("").size();
  if (all.size() <= size) return "";
  const std::string code = all.substr(size);
  return all.compare(0, size, hash(code)) == 0 ? code : "";
}

void CompiledFile::write(const std::string& code) const {
  if (path_.empty()) return;
  std::error_code failed;
  files::create_directories(files::path(path_).parent_path(), failed);
  const std::string part = path_ + "." + std::to_string(getpid());
  std::ofstream file(part, std::ios::binary);
  file << hash(code) << code;
  file.close();
  if (file) files::rename(part, path_, failed);
  if (!file || failed) files::remove(part, failed);
}

}  // namespace ct
