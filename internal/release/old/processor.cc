// What the processor has, as __builtin_cpu_supports reads it. The compiler wants a copy in each
// library. libgcc_s has one for libraries of old compilers, and fills it before ours are opened.
#ifdef __x86_64__

extern "C" {

struct Processor {
  unsigned fields[4];
};

extern const Processor libgcc_model;
asm(".symver libgcc_model,__cpu_model@GCC_4.8.0");

__attribute__((visibility("hidden"))) Processor __cpu_model;
__attribute__((constructor(101))) static void copy_model() { __cpu_model = libgcc_model; }

}

#endif
