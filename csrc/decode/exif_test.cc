#include "decode/exif.h"

#include <gtest/gtest.h>

#include <string>

#include "decode/samples_test.h"

namespace decode {
namespace {

// Returns an EXIF block that has one entry before the orientation.
std::string block(bool little, int orientation) {
  const auto number = [&](uint32_t v, int bytes) {
    std::string out;
    for (int i = 0; i < bytes; ++i) out += static_cast<char>(v >> 8 * (little ? i : bytes - 1 - i));
    return out;
  };
  return (little ? "II" : "MM") + number(42, 2) + number(8, 4) + number(2, 2) +  //
         number(0x0100, 2) + number(4, 2) + number(1, 4) + number(640, 4) +      //
         number(0x0112, 2) + number(3, 2) + number(1, 4) + number(orientation, 2) + number(0, 2) + number(0, 4);
}

File file(const std::string& text) { return {text.begin(), text.end()}; }

std::string app1(const std::string& body) {
  const size_t length = body.size() + 2;
  return std::string("\xff\xe1") + static_cast<char>(length >> 8) + static_cast<char>(length) + body;
}

TEST(Orientation, OfEveryKindOfFile) {
  const std::string exif("Exif\0\0", 6);
  for (const bool little : {true, false}) {
    for (int o = 1; o <= 8; ++o) {
      const std::string b = block(little, o);
      const std::string size{static_cast<char>(b.size()), 0, 0, 0};
      const std::string length{0, 0, 0, static_cast<char>(b.size())};
      EXPECT_EQ(orientation_of(file(b)), o);
      EXPECT_EQ(orientation_of(file("\xff\xd8" + app1("http://ns.adobe.com/xap") + app1(exif + b))), o);
      EXPECT_EQ(orientation_of(file("RIFF....WEBPEXIF" + size + b)), o);
      EXPECT_EQ(orientation_of(file("\x89PNG\r\n\x1a\n" + length + "eXIf" + b + "crc.")), o);
    }
  }
}

TEST(Orientation, DamagedIsUpright) {
  const std::string whole = "\xff\xd8" + app1(std::string("Exif\0\0", 6) + block(true, 6));
  ASSERT_EQ(orientation_of(file(whole)), 6);
  for (size_t n = 0; n < whole.size(); ++n) EXPECT_EQ(orientation_of(file(whole.substr(0, n))), 1) << n;
  EXPECT_EQ(orientation_of(file("\xff\xd8" + app1(std::string("Exif\0\0", 6) + block(true, 9)))), 1);
  EXPECT_EQ(orientation_of(file("\xff\xd8" + app1(std::string("Exif\0\0", 6) + block(true, 0)))), 1);
  EXPECT_EQ(orientation_of({}), 1);
  // With any one bit wrong, the result must be 1 to 8, and nothing outside the block may be read.
  for (const bool little : {true, false}) {
    const std::string b = block(little, 6);
    for (size_t i = 0; i < b.size() * 8; ++i) {
      std::string damaged = b;
      damaged[i / 8] = static_cast<char>(damaged[i / 8] ^ 1 << i % 8);
      const int got = orientation_of(file(damaged));
      EXPECT_TRUE(got >= 1 && got <= 8);
    }
  }
}

}  // namespace
}  // namespace decode
