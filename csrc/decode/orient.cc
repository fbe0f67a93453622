#include "decode/orient.h"

#include <utility>

namespace decode {
namespace {

// A Turn says where a pixel of the upright image is stored. If `mirror_rows` is set, its row is
// counted from the bottom. If `mirror_columns` is set, its column is counted from the right. If
// `swap` is set, that row is then the stored column, and that column is the stored row.
struct Turn {
  // All three are false for an image that is stored upright.
  bool swap, mirror_rows, mirror_columns;
};

Turn turn_of(int orientation) {
  constexpr Turn turns[] = {{false, false, false}, {false, false, true}, {false, true, true}, {false, true, false},
                            {true, false, false},  {true, false, true},  {true, true, true},  {true, true, false}};
  return turns[orientation - 1];
}

}  // namespace

Box stored(const Box& box, int orientation, int height, int width) {
  const Turn turn = turn_of(orientation);
  Box out = box;
  if (turn.mirror_rows) out.top = height - box.top - box.height;
  if (turn.mirror_columns) out.left = width - box.left - box.width;
  if (turn.swap) {
    std::swap(out.top, out.left);
    std::swap(out.height, out.width);
  }
  return out;
}

Box shown(const Box& box, int orientation, int height, int width) {
  const Turn turn = turn_of(orientation);
  Box out = box;
  if (turn.swap) {
    std::swap(out.top, out.left);
    std::swap(out.height, out.width);
    std::swap(height, width);
  }
  if (turn.mirror_rows) out.top = height - out.top - out.height;
  if (turn.mirror_columns) out.left = width - out.left - out.width;
  return out;
}

View upright(const View& in, int orientation, uint8_t* to) {
  const Turn turn = turn_of(orientation);
  View out{to, in.height, in.width, in.channels, 0};
  if (turn.swap) std::swap(out.height, out.width);
  out.stride = static_cast<size_t>(out.width) * out.channels;
  for (int y = 0; y < out.height; ++y) {
    const int row = turn.mirror_rows ? out.height - 1 - y : y;
    for (int x = 0; x < out.width; ++x) {
      const int column = turn.mirror_columns ? out.width - 1 - x : x;
      const uint8_t* p = turn.swap ? in.row(column) + static_cast<size_t>(row) * in.channels
                                   : in.row(row) + static_cast<size_t>(column) * in.channels;
      for (int c = 0; c < in.channels; ++c) *to++ = p[c];
    }
  }
  return out;
}

}  // namespace decode
