// libstdc++'s headers ask the C library whether the process has one thread. A C library older than
// 2.32 cannot tell. Then each count of references is atomic.
#pragma once
static const char __libc_single_threaded = 0;
