#include "cuda/compiled_file.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace ct {
namespace {

class CompiledFileTest : public testing::Test {
 protected:
  CompiledFileTest() : folder_(testing::TempDir() + "/compiled_file_test") {
    std::filesystem::remove_all(folder_);
    setenv("STREAMTORCH_CACHE", folder_.c_str(), 1);
  }
  ~CompiledFileTest() override {
    unsetenv("STREAMTORCH_CACHE");
    std::filesystem::remove_all(folder_);
  }
  const std::string folder_;
};

TEST_F(CompiledFileTest, ReadsWhatWasWritten) {
  const std::string code("code\0more", 9);
  EXPECT_EQ(CompiledFile("a").read(), "");
  CompiledFile("a").write(code);
  EXPECT_EQ(CompiledFile("a").read(), code);
  EXPECT_EQ(CompiledFile("b").read(), "");
}

TEST_F(CompiledFileTest, IgnoresADamagedFile) {
  CompiledFile("a").write("the code of a kernel");
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/kernels")) std::filesystem::resize_file(file, 50);
  EXPECT_EQ(CompiledFile("a").read(), "");
  CompiledFile("a").write("the code of a kernel");
  EXPECT_EQ(CompiledFile("a").read(), "the code of a kernel");
}

// Others could have put their code into such a file.
TEST_F(CompiledFileTest, IgnoresAFileThatOthersCanWrite) {
  CompiledFile("a").write("code");
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/kernels")) {
    EXPECT_EQ(file.status().permissions(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    std::filesystem::permissions(file, std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  }
  EXPECT_EQ(CompiledFile("a").read(), "");
}

TEST_F(CompiledFileTest, IgnoresAFolderInPlaceOfAFile) {
  CompiledFile("a").write("code");
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/kernels")) {
    const std::filesystem::path path = file.path();
    std::filesystem::remove(path);
    std::filesystem::create_directory(path);
  }
  EXPECT_EQ(CompiledFile("a").read(), "");
}

// A file stands where the folder should be.
TEST_F(CompiledFileTest, WorksWithoutAFolder) {
  std::ofstream(folder_) << "no folder";
  CompiledFile("a").write("code");
  EXPECT_EQ(CompiledFile("a").read(), "");
}

}  // namespace
}  // namespace ct
