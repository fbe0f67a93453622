// Memory of an image's size, which goes back to the system when it is freed.
#pragma once

#include <cstddef>

namespace decode {

// Note [Pages]
// Freed memory must be gone, or no sum of the memory taken says how much is resident. glibc keeps
// freed memory for the thread that had it, up to 64 MiB each once larger blocks have come and gone.
// After one large image in each of 16 threads that is a gigabyte. So large memory is mapped by
// itself. Small memory comes from new, where a sanitizer watches its bounds.
constexpr size_t kLarge = 256 << 10;

// map returns size bytes, which are 0 where size is no less than kLarge. It throws std::bad_alloc.
void* map(size_t size);
void unmap(void* memory, size_t size) noexcept;

// Pages is map and unmap for containers.
template <class T>
struct Pages {
  using value_type = T;

  Pages() = default;
  template <class U>
  Pages(const Pages<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(map(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) noexcept { unmap(memory, count * sizeof(T)); }
  bool operator==(const Pages&) const { return true; }
};

}  // namespace decode
