// Files that are no compiled library, and calls without a model. Models are tested in package aoti,
// which also refuses damaged libraries before it opens them.
#include <filesystem>
#include <fstream>

#include "core/handles_test.h"

namespace {

using ct_test::exec;
using ct_test::Stream;
using CompiledTest = ct_test::HandlesTest;

std::string library(const std::string& kind) {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / ("libtest_" + kind + ".so");
}

TEST_F(CompiledTest, New_OfAFileThatIsNoCompiledLibrary) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / ("compiled-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "empty.so") << "";
  std::ofstream(folder / "text.so") << std::string(10'000, 'x');

  const struct {
    std::string path, text;
  } cases[] = {
      {folder / "nothing.so", "nothing.so"},
      {folder / "empty.so", "file too short"},
      {folder / "text.so", "invalid ELF header"},
      {folder, "Is a directory"},
      {library("nothing"), "AOTInductorModelContainer"},
      {library("lacks"), "function_of_another_version"},
  };
  for (const ct_device device : ct_test::devices()) {
    const Stream s = ct_test::new_stream(device);
    for (const auto& c : cases) {
      SCOPED_TRACE(c.path);
      ct_compiled* out = nullptr;
      for (int twice = 0; twice < 2; ++twice) EXPECT_FAILS(CT_INVALID_ARGUMENT, c.text, ct_compiled_new(exec(s), c.path.c_str(), folder.c_str(), &out));
      EXPECT_EQ(out, nullptr);
    }
  }
  std::filesystem::remove_all(folder);
}

TEST_F(CompiledTest, New_OfNothing) {
  const Stream s = ct_test::new_stream();
  ct_compiled* out = nullptr;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "library is NULL", ct_compiled_new(exec(s), nullptr, "/", &out));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "folder is NULL", ct_compiled_new(exec(s), "/", nullptr, &out));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "stream is NULL", ct_compiled_new(ct_exec{nullptr, ct_thread_id(), 0, -1, 0, nullptr}, "/", "/", &out));
  EXPECT_EQ(out, nullptr);
  ct_compiled_free(nullptr);
}

TEST_F(CompiledTest, CallsWithoutAModel) {
  const Stream s = ct_test::new_stream();
  const ct_exec x = exec(s);
  ct_tensor* out = nullptr;
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "compiled is NULL", ct_compiled_weight(x, nullptr, 0, nullptr, &out));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "compiled is NULL", ct_compiled_set_weights(x, nullptr, nullptr, 0));
  EXPECT_FAILS(CT_INVALID_ARGUMENT, "compiled is NULL", ct_compiled_run(x, nullptr, nullptr, 0, 0, &out));
  EXPECT_EQ(out, nullptr);
}

}  // namespace
