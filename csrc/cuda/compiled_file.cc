#include "cuda/compiled_file.h"

#include <c10/util/hash.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>

namespace ct {
namespace {

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

// Makes a folder and the folders above it. The folder is the user's alone.
void make(const std::string& folder) {
  for (size_t end = folder.find('/', 1); end != std::string::npos; end = folder.find('/', end + 1)) {
    mkdir(folder.substr(0, end).c_str(), 0777);
  }
  mkdir(folder.c_str(), 0700);
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
  make(path_.substr(0, path_.rfind('/')));
  const std::string part = path_ + "." + std::to_string(getpid());
  std::ofstream file(part, std::ios::binary);
  file << hash(code) << code;
  file.close();
  const bool whole = file && chmod(part.c_str(), S_IRUSR | S_IWUSR) == 0 && std::rename(part.c_str(), path_.c_str()) == 0;
  if (!whole) std::remove(part.c_str());
}

}  // namespace ct
