// The races that the stream checker has found, in the form of the C ABI.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <utility>

#include "cgotorch.h"

namespace ct {

class Reports {
 public:
  // Adds a race. Races between the same two lines of the program wait to be taken as one. A race is
  // forgotten if too many wait.
  void add(ct_race race);
  // Writes the oldest race that waits. Returns false if there is none.
  bool take(ct_race* out);
  void anew() { reported_.clear(); }  // after this call, a race that was reported before may be reported again
  void forget();

 private:
  std::deque<std::pair<std::string, ct_race>> found_;  // by operators and sites
  std::set<std::string> pending_;                      // the keys of found_
  std::set<std::string> reported_;                     // the keys of all races since the checker was turned on
};

// Copies as much of the text as there is room for.
template <size_t kRoom>
void copy_text(char (&to)[kRoom], const std::string& text) {
  to[text.copy(to, kRoom - 1)] = 0;
}

}  // namespace ct
