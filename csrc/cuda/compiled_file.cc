#include "cuda/compiled_file.h"

#include <c10/util/hash.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
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
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path_.c_str(), "rb"), [](FILE* f) { return f == nullptr ? 0 : std::fclose(f); });
  struct stat of;
  if (file == nullptr || fstat(fileno(file.get()), &of) != 0) return "";
  if (!S_ISREG(of.st_mode) || of.st_uid != geteuid() || (of.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "";
  std::string all(static_cast<size_t>(of.st_size), '\0');
  if (std::fread(all.data(), 1, all.size(), file.get()) != all.size()) return "";
  const size_t size = hash("").size();
  if (all.size() <= size) return "";
  const std::string code = all.substr(size);
  return all.compare(0, size, hash(code)) == 0 ? code : "";
}

void CompiledFile::write(const std::string& code) const {
  if (path_.empty()) return;
  std::error_code failed;
  const files::path folder = files::path(path_).parent_path();
  if (files::create_directories(folder, failed)) files::permissions(folder, files::perms::owner_all, failed);
  const std::string part = path_ + "." + std::to_string(getpid());
  std::ofstream file(part, std::ios::binary);
  file << hash(code) << code;
  file.close();
  files::permissions(part, files::perms::owner_read | files::perms::owner_write, failed);
  if (file && !failed) files::rename(part, path_, failed);
  if (!file || failed) files::remove(part, failed);
}

}  // namespace ct
