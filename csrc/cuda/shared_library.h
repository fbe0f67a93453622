// A shared library that the process opens when it first needs the library.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "core/loaded.h"
#include "core/status.h"

namespace ct {

class SharedLibrary {
 public:
  // Opens the library of this file name, for the rest of the process. It is the loaded library of
  // this name, or lies beside CUDA's runtime, beside LibTorch or where the dynamic loader looks. If
  // none of these can be opened, reason() tells why.
  explicit SharedLibrary(std::string name) : name_(std::move(name)) {
    library_ = dlopen(name_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    for (const char* neighbour : {"libcudart.so", "libtorch_cpu.so"}) {
      const std::string folder = folder_of(neighbour);
      if (!folder.empty()) open(folder + name_);
    }
    open(name_);
  }

  // Tries the path, if the library is not open yet.
  void open(const std::string& path) {
    if (library_ != nullptr) return;
    library_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ != nullptr || !reason_.empty()) return;
    const char* text = dlerror();
    reason_ = text == nullptr ? "unknown error" : text;
  }

  explicit operator bool() const { return library_ != nullptr; }
  const std::string& name() const { return name_; }
  const std::string& reason() const { return reason_; }  // the first failure

  // Sets the pointer to the function `symbol`. Throws a Failure if the library has no such
  // function.
  template <typename Function>
  void find(Function& function, const char* symbol) const {
    function = reinterpret_cast<Function>(dlsym(library_, symbol));
    if (function == nullptr) throw Failure(CT_UNSUPPORTED, name_ + " has no " + symbol + ", so it is of another version of CUDA; run `make setup` on this machine");
  }

 private:
  std::string name_, reason_;
  void* library_ = nullptr;
};

}  // namespace ct
