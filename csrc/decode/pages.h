// Large memory, such as that of an image. It goes back to the system when it is freed.
#pragma once

#include <cstddef>

namespace decode {

// Note [Pages]
// The memory limits of a pool count what threads have taken. They hold only if freed memory
// really goes back to the system. glibc keeps freed memory for the thread that had it. After
// larger blocks were allocated and freed, it keeps up to 64 MiB for each thread. With one large
// image in each of 16 threads that is a gigabyte.
//
// So each large block is mapped by itself. Small blocks come from new, so that a sanitizer can
// watch their bounds.
constexpr size_t kLarge = 256 << 10;

// Returns `size` bytes. The bytes are 0 if `size` is at least kLarge. Throws std::bad_alloc if
// there is no memory.
void* map(size_t size);
void unmap(void* memory, size_t size) noexcept;

// Pages is an allocator for containers. It uses map and unmap.
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
