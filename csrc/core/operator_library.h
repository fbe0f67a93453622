// Libraries that register operators of their own.
#pragma once

#include <set>
#include <string>

namespace ct {

// Opens a library and notes its operators. Fails if its initialisers take longer than the time.
void open_operators(const std::string& path, int milliseconds);

// The names of the operators that libraries have registered, as in "torchvision::nms".
std::set<std::string> opened_operators();

}  // namespace ct
