// Functions that libstdc++'s headers of gcc 12 call, and that the libstdc++ of gcc 8 does not have.
// Each library of ours that calls one has its own copy, which no other library sees.
#include <new>
#include <sstream>

namespace std {

void __throw_bad_array_new_length() { throw bad_array_new_length(); }

template basic_ostringstream<char>::basic_ostringstream();
template basic_string<char> basic_stringbuf<char>::str() const&;

}  // namespace std
