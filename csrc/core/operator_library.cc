#include "core/operator_library.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "core/device.h"
#include "core/loaded.h"

// Note [Libraries of operators]
//
// dlopen runs the initialisers of a library, and these register its operators. LibTorch throws if a
// namespace or an operator is registered twice. An exception that leaves an initialiser ends the
// process, and so does a damaged file. A forked child therefore opens the library first, and
// reports how that went. The process itself opens only a library that has opened there. The child
// runs no code of Go, not even its signal handlers, and no exit handlers of the process.
//
// Libraries that were built for Python name libtorch_python.so, which only opens inside Python.
// Those that register operators alone take nothing from it. So libcgotorch_nopython.so takes its
// place (csrc/absent). A library that does take something from it lacks a symbol, and is refused.
//
// PyPI's torchvision is built for CUDA, also for a machine without a GPU. On such a machine
// libtorch_cuda.so may not open, because it needs a gigabyte of libraries of NVIDIA's. So
// libcgotorch_nocuda.so takes its place. No tensor is on CUDA there, so no kernel of CUDA runs.

namespace ct {
namespace {

constexpr int kOpenFlags = RTLD_NOW | RTLD_LOCAL;
constexpr int kMilliseconds = 60'000;  // for initialisers, which take 10 ms in torchvision

// How the child reports that the library could be opened, and why not.
enum Report : char { kOpened = 'o', kNotOpened = 'n', kThrew = 't', kNoOperators = 'z' };

struct Opened {
  std::mutex opening;  // held while a library is opened
  std::mutex mutex;
  std::set<std::string> names;  // of operators; guarded by `mutex`
};

Opened& opened() {
  static auto* const all = new Opened;
  return *all;
}

bool is_open(const std::string& name) {
  void* library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

// Opens the libraries of LibTorch that libraries of operators name. What is absent is named when
// the library is opened.
void open_needed() {
  load_cuda();
  if (!is_open("libtorch_python.so")) dlopen((own_folder() + "libcgotorch_nopython.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!is_open("libtorch_cuda.so")) dlopen((own_folder() + "libcgotorch_nocuda.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  const std::string libtorch = folder_of("libtorch_cpu.so");
  for (const char* name : {"libc10_cuda.so", "libtorch.so"}) dlopen((libtorch + name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

std::set<std::string> operator_names() {
  std::set<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) names.insert(c10::toString(name));
  return names;
}

// Returns the number of operators and of their kernels.
size_t registrations() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  size_t count = 0;
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op) continue;
    ++count;
    for (uint16_t key = 0; key <= static_cast<uint16_t>(c10::DispatchKey::EndOfAliasKeys); ++key) {
      if (op->hasKernelForDispatchKey(static_cast<c10::DispatchKey>(key))) ++count;
    }
  }
  return count;
}

// ---- In the child ----

int report_to = -1;

[[noreturn]] void report(Report how, const char* text) {
  char line[2048];
  line[0] = how;
  const size_t length = std::min(std::strlen(text), sizeof line - 1);
  std::memcpy(line + 1, text, length);
  [[maybe_unused]] const ssize_t written = write(report_to, line, length + 1);
  _exit(0);
}

[[noreturn]] void report_exception() {
  try {
    if (std::current_exception() != nullptr) std::rethrow_exception(std::current_exception());
  } catch (const c10::Error& e) {
    report(kThrew, e.what_without_backtrace());
  } catch (const std::exception& e) {
    report(kThrew, e.what());
  } catch (...) {
  }
  report(kThrew, "an exception that is no std::exception");
}

// An exception that leaves an initialiser ends here.
[[noreturn]] void rehearse(const std::string& path) noexcept {
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);  // Go's handlers must not run
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const int nowhere = open("/dev/null", O_RDWR);
  for (int fd = 0; nowhere >= 0 && fd <= 2; ++fd) dup2(nowhere, fd);
  std::set_terminate(report_exception);
  const size_t before = registrations();
  if (dlopen(path.c_str(), kOpenFlags) == nullptr) report(kNotOpened, dlerror());
  report(registrations() > before ? kOpened : kNoOperators, "");
}

// ---- In the process ----

struct Outcome {
  std::string report;  // a Report and its text; empty if the child has ended without one
  int status = 0;      // of waitpid
  bool late = false;
};

// Opens the library in a child.
Outcome rehearsal(const std::string& path, int milliseconds) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw Failure(CT_INTERNAL, std::string("no pipe for a child process: ") + std::strerror(errno));
  sigset_t all, old;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  const pid_t child = fork();
  if (child == 0) {
    report_to = ends[1];
    rehearse(path);
  }
  const int why = errno;
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  close(ends[1]);
  if (child < 0) {
    close(ends[0]);
    throw Failure(CT_INTERNAL, std::string("no child process in which to try the library: ") + std::strerror(why));
  }
  Outcome outcome;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::milliseconds(milliseconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd reading{ends[0], POLLIN, 0};
    const int ready = left <= 0 ? 0 : poll(&reading, 1, static_cast<int>(left));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) {
      outcome.late = true;
      kill(child, SIGKILL);
      break;
    }
    char part[2048];
    const ssize_t n = read(ends[0], part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    outcome.report.append(part, static_cast<size_t>(n));
  }
  close(ends[0]);
  while (waitpid(child, &outcome.status, 0) < 0 && errno == EINTR) {
  }
  return outcome;
}

bool begins(const std::string& text, const std::string& part) { return text.rfind(part, 0) == 0; }
bool has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

std::string demangled(const std::string& symbol) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &failed), &std::free);
  return text == nullptr ? symbol : text.get();
}

// Returns whether the name is one of CUDA's: of a library, or of a symbol.
bool is_of_cuda(const std::string& name) {
  for (const char* part : {"cuda", "Cuda", "CUDA", "libcu", "libnv"}) {
    if (has(name, part)) return true;
  }
  return false;
}

[[noreturn]] void refuse(const std::string& path, const std::string& why) { throw Failure(CT_INVALID_ARGUMENT, path + ": " + why); }

// Returns the text between two texts, or "" if the first one is not there.
std::string between(const std::string& text, const std::string& before, const char* after) {
  const size_t at = text.find(before);
  return at == std::string::npos ? "" : text.substr(at + before.size(), text.find(after, at + before.size()) - at - before.size());
}

// Says what a message of dlopen means, and what to do.
std::string explain(const std::string& path, std::string text) {
  if (begins(text, path + ": ")) text = text.substr(path.size() + 2);
  const std::string for_cuda = "it was built for CUDA, which is not available here: install its build for the CPU";
  const bool cuda = ct_cuda_count(nullptr) > 0;
  if (const std::string symbol = between(text, "undefined symbol: ", ", version "); !symbol.empty()) {
    const std::string name = demangled(symbol);
    if (begins(symbol, "Py") || begins(symbol, "_Py") || has(name, "pybind11::")) {
      return "it uses Python (" + name + "), which is not in this process: build it with TORCH_LIBRARY, without pybind11";
    }
    if (is_of_cuda(name) && !cuda) return for_cuda + " (it lacks " + name + ")";
    return "it lacks " + name + ", so it was built for another LibTorch: install its build for PyTorch " TORCH_VERSION;
  }
  if (const size_t at = text.find(": cannot open shared object file"); at != std::string::npos) {
    const std::string library = text.substr(0, at);
    if (is_of_cuda(library) && !cuda) return for_cuda + " (it needs " + library + ")";
    return "it needs " + library + ", which is not found: install it, or name its folder in LD_LIBRARY_PATH";
  }
  return text + "; give a shared library for this machine";
}

// Says what an exception in an initialiser means.
std::string explain_exception(const std::string& text) {
  std::string twice = between(text, "Tried to register an operator (", "(");
  if (twice.empty()) twice = between(text, "TORCH_LIBRARY can be used to register the namespace ", ";");
  if (!twice.empty()) return twice + " is registered already: another copy of the library, or another library with it, is open";
  return "its initialisers throw: " + text;
}

void check(const std::string& path, const Outcome& outcome, int milliseconds) {
  if (outcome.late) refuse(path, "its initialisers have not ended within " + std::to_string(milliseconds) + " ms");
  if (outcome.report.empty()) {
    refuse(path, WIFSIGNALED(outcome.status) ? "it ends a process with signal " + std::to_string(WTERMSIG(outcome.status)) +
                                                   ": the file is damaged, or an initialiser crashes"
                                             : "an initialiser ends the process");
  }
  const std::string text = outcome.report.substr(1);
  switch (outcome.report[0]) {
    case kOpened:
      return;
    case kNotOpened:
      refuse(path, explain(path, text));
    case kNoOperators:
      refuse(path, "it registers no operators: a library does that with TORCH_LIBRARY");
    default:
      refuse(path, explain_exception(text));
  }
}

}  // namespace

void open_operators(const std::string& path, int milliseconds) {
  if (path.find('/') == std::string::npos) refuse(path, "a path has a slash: write ./ before it");
  Opened& all = opened();
  const std::lock_guard one_at_a_time(all.opening);
  if (is_open(path)) return;
  open_needed();
  check(path, rehearsal(path, milliseconds), milliseconds);
  const std::set<std::string> before = operator_names();
  if (dlopen(path.c_str(), kOpenFlags) == nullptr) refuse(path, explain(path, dlerror()));
  const std::lock_guard lock(all.mutex);
  for (const std::string& name : operator_names()) {
    if (before.count(name) == 0) all.names.insert(name);
  }
}

std::set<std::string> opened_operators() {
  Opened& all = opened();
  const std::lock_guard lock(all.mutex);
  return all.names;
}

}  // namespace ct

extern "C" {

ct_status* ct_operators_open(const char* path) noexcept {
  return ct::guarded([&] { ct::open_operators(&ct::deref(path, "path"), ct::kMilliseconds); });
}

}  // extern "C"
