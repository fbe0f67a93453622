#include "core/operator_library.h"

#include <dlfcn.h>
#include <torch/version.h>
#include "core/status.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "core/handles_test.h"

namespace {

using OperatorsTest = ct_test::HandlesTest;

// A library that was built with the tests, from testdata/library.cc.
std::string library(const std::string& kind) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("libtest_" + kind + ".so");
}

// A folder that is removed with its files.
struct Folder {
  Folder() {
    char text[] = "/tmp/operators-XXXXXX";
    path = mkdtemp(text);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

bool is_open(const std::string& path) {
  void* handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle != nullptr) dlclose(handle);
  return handle != nullptr;
}

TEST_F(OperatorsTest, Open_FromManyThreads) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      EXPECT_OK(ct_operators_open(library("operators").c_str()));
      EXPECT_FAILS(CT_INVALID_ARGUMENT, "no operators", ct_operators_open(library("nothing").c_str()));
    });
  }
  for (std::thread& t : threads) t.join();
}

// A library that is registered already, or whose initialisers fail, is refused before this process
// opens it.
TEST_F(OperatorsTest, Open_OfALibraryThatCannotBeOpened) {
  EXPECT_OK(ct_operators_open(library("operators").c_str()));
  const struct {
    const char *kind, *text;
  } cases[] = {
      {"copy", "streamtest is registered already: another copy of the library"},
      {"fragment", "streamtest::scale is registered already: another copy of the library"},
      {"throws", "its initialisers throw: no licence found"},
      {"crashes", "it ends a process with signal 11"},
      {"exits", "an initialiser ends the process"},
      {"nothing", "it registers no operators"},
      {"lacks", "it lacks c10::function_of_another_version(int), so it was built for another LibTorch: install its build for PyTorch " TORCH_VERSION},
      {"python", "it uses Python (Py_Initialize), which is not in this process"},
      {"cuda", "it lacks at::cuda::function_of_cuda()"},
      {"needs", "it needs libtest_nothing.so, which is not found: install it, or name its folder in LD_LIBRARY_PATH"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.kind);
    ASSERT_TRUE(std::filesystem::exists(library(c.kind)));
    for (int twice = 0; twice < 2; ++twice) {
      ct_status* status = ct_operators_open(library(c.kind).c_str());
      EXPECT_EQ(std::string(ct_status_message(status)).rfind(library(c.kind) + ": ", 0), 0U) << "the path comes first";
      EXPECT_FAILS(CT_INVALID_ARGUMENT, c.text, status);
    }
    EXPECT_FALSE(is_open(library(c.kind)));
  }
  if (!ct_test::has_cuda()) {
    EXPECT_FAILS(CT_INVALID_ARGUMENT, "it was built for CUDA, which is not available here: install its build for the CPU",
                 ct_operators_open(library("cuda").c_str()));
  }
}

TEST_F(OperatorsTest, Open_OfALibraryThatDoesNotEnd) {
  const auto open = [](int milliseconds) { return [=] { ct::open_operators(library("hangs"), milliseconds); }; };
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "its initialisers have not ended within 300 ms", ct::guarded(open(300)));
  EXPECT_FALSE(is_open(library("hangs")));
}

TEST_F(OperatorsTest, Open_OfOtherFiles) {
  const Folder folder;
  const std::string path = folder.path / "file.so";
  const auto refused = [&](const char* text) { EXPECT_FAILS(CT_INVALID_ARGUMENT, text, ct_operators_open(path.c_str())); };
  refused("file.so: cannot open shared object file: No such file");
  std::ofstream(path) << "";
  refused("file too short");
  std::ofstream(path) << std::string(10'000, 'x');
  refused("invalid ELF header; give a shared library for this machine");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  refused("give a shared library for this machine");
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "path is NULL", ct_operators_open(nullptr));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "a path has a slash", ct_operators_open("libm.so.6"));
}

// Files that are cut short or damaged. The dynamic loader itself crashes for some of them.
TEST_F(OperatorsTest, Open_OfDamagedFiles) {
  const Folder folder;
  std::ifstream in(library("operators"), std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  ASSERT_GT(whole.size(), 10'000U);
  const auto refused = [&](size_t i, const std::string& bytes) {
    const std::string path = folder.path / (std::to_string(i) + ".so");
    std::ofstream(path, std::ios::binary) << bytes;
    EXPECT_FAILS(CT_INVALID_ARGUMENT, path + ": ", ct_operators_open(path.c_str()));
  };
  for (size_t i = 1; i < 10; ++i) refused(i, whole.substr(0, whole.size() * i / 20));
  uint32_t random = 1;
  for (size_t i = 10; i < 40; ++i) {  // the headers, the symbols and the relocations are in front
    std::string damaged = whole;
    for (int k = 0; k < 200; ++k) {
      random = random * 1664525 + 1013904223;
      damaged[64 + (random >> 8) % 8192] = static_cast<char>(random);
    }
    refused(i, damaged);
  }
}

}  // namespace
