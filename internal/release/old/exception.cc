// The count of references of an exception. In headers of gcc 12, copies and destructors of
// std::exception_ptr call two functions that are newer than gcc 8. A copy that is never destroyed
// counts one up, and a destructor without a copy counts one down. The old libstdc++ has both, and
// their names have its version, because inline ones of the same names call the functions here.
asm(".symver copy_of_gcc8,_ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
asm(".symver destroy_of_gcc8,_ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");

extern "C" {

void copy_of_gcc8(void** to, void* const* from);
void destroy_of_gcc8(void** pointer);

void add_reference(void* const* pointer) asm("_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
void add_reference(void* const* pointer) {
  void* copy;
  copy_of_gcc8(&copy, pointer);
}

void release(void** pointer) asm("_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
void release(void** pointer) {
  destroy_of_gcc8(pointer);
  *pointer = nullptr;
}

}
