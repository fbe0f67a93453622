#include "core/tensor.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <memory>

#include "core/device.h"
#include "core/event.h"
#include "core/exec.h"
#include "core/live.h"
#include "graph/capture.h"

ct_tensor::ct_tensor(at::Tensor tensor, uint64_t stream) : tensor(std::move(tensor)), stream(stream) { ++ct::live().tensors; }

ct_tensor::~ct_tensor() {
  --ct::live().tensors;
  // On a lost device LibTorch's allocator may throw when the tensor is freed. An exception out of a
  // destructor would end the process. So the tensor is leaked: its memory is gone in any case. Memory
  // of a slab has no allocator, and is freed.
  if (!tensor.defined() || !tensor.is_cuda() || !ct::is_lost(tensor.device())) return;
  if (!tensor.has_storage() || tensor.storage().allocator() != nullptr) (void)tensor.unsafeReleaseTensorImpl();
}

struct ct_storage {
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage;
};

namespace ct {

at::ScalarType to_dtype(int32_t dtype) {
  if (dtype < 0 || dtype >= static_cast<int32_t>(at::ScalarType::Undefined)) {
    throw Failure(CT_INVALID_ARGUMENT, "dtype " + std::to_string(dtype) + " is not one of LibTorch's");
  }
  return static_cast<at::ScalarType>(dtype);
}

namespace {

// Throws unless the host memory has exactly the bytes of a tensor of this shape and dtype.
void check_host(at::IntArrayRef shape, at::ScalarType dtype, const void* data, int64_t bytes) {
  auto want = static_cast<int64_t>(c10::elementSize(dtype));
  bool overflow = false;
  for (int64_t size : shape) overflow |= __builtin_mul_overflow(want, size, &want);
  for (int64_t size : shape) {
    if (size < 0) throw Failure(CT_INVALID_ARGUMENT, "shape " + c10::str(shape) + " has a negative dimension");
    if (size == 0) overflow = false, want = 0;
  }
  if (overflow || want != bytes) {
    throw Failure(CT_INVALID_ARGUMENT, "a tensor of shape " + c10::str(shape) + " and dtype " + c10::toString(dtype) + " has " +
                                           (overflow ? "more than 2^63" : std::to_string(want)) +
                                           " bytes; the host memory has " + std::to_string(bytes));
  }
  if (bytes > 0 && data == nullptr) throw Failure(CT_INVALID_ARGUMENT, "data is NULL");
}

void check_host(const at::Tensor& tensor, const void* data, int64_t bytes) {
  if (tensor.layout() != at::kStrided) {
    throw Failure(CT_INVALID_ARGUMENT, "a tensor of layout " + c10::str(tensor.layout()) + " is not dense");
  }
  check_host(tensor.sizes(), tensor.scalar_type(), data, bytes);
}

// Returns whether a copy between the tensor and the host memory makes the host wait until the
// copy is done.
bool waits_for(const at::Tensor& tensor, const void* data) {
  return tensor.is_cuda() ? !cuda().page_locked(data) : !checker::in_slab(data);
}

// Copies host memory to a tensor on a CUDA device, and returns when the memory has been read. For
// pageable memory CUDA's copy call itself returns only then. For page-locked memory this function
// waits for the stream.
void copy_staged(const at::Tensor& to, const void* data, c10::Stream stream) {
  cuda().copy_to_device(to.mutable_data_ptr(), data, to.nbytes(), stream);
  //edge:from-host-reads-first TestHostSlab_FromSliceReadsBeforeReturn gpu
  if (cuda().page_locked(data)) stream.synchronize();
}

// Throws if the tensor is a conjugate or negative that LibTorch has not computed yet. The bytes
// of its memory are then not the bytes of its elements.
void check_bytes(const at::Tensor& tensor) {
  TORCH_CHECK(!tensor.is_conj() && !tensor.is_neg(),
              "the tensor is a conjugate or negative that has not been computed: aten::resolve_conj or aten::resolve_neg does that");
}

// Enqueues a copy of host memory into a dense tensor.
void copy_from(const ct_stream& stream, const ct_tensor& handle, const void* data, int64_t bytes) {
  const at::Tensor& to = handle.tensor;
  check_host(to, data, bytes);
  if (!to.is_contiguous()) throw Failure(CT_INVALID_ARGUMENT, "the tensor is not contiguous");
  check_bytes(to);
  use(handle, stream);  //edge:copy-from-tells-use TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
  if (bytes == 0) return;
  if (checker::is_on()) {
    //edge:copy-from-reads-slab TestCheckStreams_FindsMistakes checked
    checker::slab("CopyFrom", data, bytes, false, waits_for(to, data));
    checker::writes("CopyFrom", to);  //edge:copy-from-writes TestCheckStreams_FindsMistakes checked
    checker::full_edge(stream);  //edge:copy-from-full-edge TestCheckStreams_SilentWhereEarlyIsRight checked
  }
  if (to.is_cuda()) {
    if (in_capture(stream) && !cuda().page_locked(data)) refuse_in_capture(stream, "copy from a pinned HostSlab");
    cuda().copy_to_device(to.mutable_data_ptr(), data, static_cast<size_t>(bytes), stream.stream);
  } else {
    std::memcpy(to.mutable_data_ptr(), data, static_cast<size_t>(bytes));
  }
  to.unsafeGetTensorImpl()->bump_version();  //edge:copy-from-counts TestCopyFrom_CountsAsAWrite
}

constexpr char kReadLater[] = "read the tensor behind a launch of the graph";

double item(const at::Tensor& tensor) {
  const at::Scalar value = tensor.item();
  if (value.isComplex()) throw Failure(CT_INVALID_ARGUMENT, "a complex number is not one of double precision");
  return value.toDouble();
}

}  // namespace

void use_checked(const ct_tensor& handle, const ct_stream& stream) {
  const at::Tensor& tensor = handle.tensor;
  if (tensor.is_cuda() && tensor.device() != stream.device) {
    throw Failure(CT_INVALID_ARGUMENT, "a tensor of shape " + c10::str(tensor.sizes()) + " lies on " + tensor.device().str() +
                                           ", where the exec is on " + stream.device.str());
  }
  use_elsewhere(handle, stream);
}

void use_elsewhere(const ct_tensor& handle, const ct_stream& stream) {
  const at::Tensor& tensor = handle.tensor;
  if (handle.stream == kAnyStream) return;  //edge:lent-skip TestCheckStreams_FindsMistakes checked
  if (handle.stream == stream.id || !tensor.has_storage()) return;
  if (stream.borrowed != nullptr && stream.borrowed->family.count(handle.stream) > 0) {
    //edge:branch-borrows TestExec_Parallel_Memory checked
    stream.borrowed->storages.try_emplace(tensor.storage().unsafeGetStorageImpl(), tensor.storage());
    return;
  }
  if (handle.recorded.load(std::memory_order_relaxed) == stream.id) return;
  //edge:foreign-use TestStream_FreedMemoryOutlivesItsUse gpu
  if (tensor.is_cuda()) c10::impl::VirtualGuardImpl(c10::kCUDA).recordDataPtrOnStream(tensor.storage().data_ptr(), stream.stream);
  checker::used(tensor, stream);  //edge:foreign-use-is-known TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
  handle.recorded.store(stream.id, std::memory_order_relaxed);
}

ct_tensor* new_result(at::Tensor result, const ct_stream& stream, ct_tensor* const* inputs, int32_t input_count) {
  if ((result.is_cuda() || checker::is_on()) && result.has_storage()) {
    const auto* storage = result.storage().unsafeGetStorageImpl();
    for (int32_t i = 0; i < input_count; ++i) {
      const ct_tensor* in = inputs[i];
      if (in != nullptr && in->tensor.has_storage() && in->tensor.storage().unsafeGetStorageImpl() == storage) {
        return new ct_tensor(std::move(result), in->stream);
      }
    }
  }
  return new ct_tensor(std::move(result), stream.id);
}

}  // namespace ct

using ct::deref;

namespace {

// Makes page-locked memory leak where LibTorch's allocator would throw. The allocator asks the
// device for an event when memory is freed, and a lost device has none. An exception out of a
// destructor would end the process.
void free_without_throwing(const at::Tensor& host) {
  auto memory = std::make_unique<c10::DataPtr>();
  void* data = host.storage().mutable_data();
  *memory = host.storage().set_data_ptr(c10::DataPtr(data, c10::kCPU));
  const auto free = [](void* context) {
    const std::unique_ptr<c10::DataPtr> memory(static_cast<c10::DataPtr*>(context));
    const c10::DeleterFnPtr deleter = memory->get_deleter();
    void* const owned = memory->release_context();
    try {
      if (deleter != nullptr) deleter(owned);
    } catch (...) {  // the device is lost
    }
  };
  host.storage().set_data_ptr_noswap(c10::DataPtr(data, memory.release(), free, c10::kCPU));
}

}  // namespace

extern "C" {

ct_status* ct_tensor_from_host(ct_exec x, const void* data, int64_t bytes, int32_t dtype, const int64_t* shape, int32_t dims,
                               ct_tensor** out) noexcept {
  return ct::executed(x, [&] {
    ct::refuse_in_capture(*x.stream, "make the tensor before, or fill it with operators");
    if (dims < 0) throw ct::Failure(CT_INVALID_ARGUMENT, "a shape of " + std::to_string(dims) + " dimensions");
    const at::IntArrayRef sizes(shape, static_cast<size_t>(dims));
    ct::check_host(sizes, ct::to_dtype(dtype), data, bytes);
    at::Tensor result = at::empty(sizes, at::TensorOptions().dtype(ct::to_dtype(dtype)).device(x.stream->device));
    if (bytes > 0) {
      ct::checker::slab("FromSlice", data, bytes, false, true);
      ct::checker::full_edge(*x.stream);
      if (x.stream->device.is_cuda()) {
        ct::copy_staged(result, data, x.stream->stream);
      } else {
        ct::would_wait(x, "on a CUDA device it would wait: the memory is read before return");
        std::memcpy(result.mutable_data_ptr(), data, static_cast<size_t>(bytes));
      }
    }
    *out = new ct_tensor(std::move(result), x.stream->id);
  });
}

ct_status* ct_tensor_to_host(ct_exec x, const ct_tensor* tensor, void* data, int64_t bytes) noexcept {
  return ct::executed(x, [&] {
    const ct_tensor& from = deref(tensor, "tensor");
    ct::check_host(from.tensor, data, bytes);
    ct::refuse_in_capture(*x.stream, ct::kReadLater);
    ct::use(from, *x.stream);
    if (bytes == 0) return;
    ct::would_wait(x, "on a CUDA device it would wait for the elements");
    const c10::AutoGradMode no_grad(false);
    at::from_blob(data, from.tensor.sizes(), at::TensorOptions().dtype(from.tensor.dtype())).copy_(from.tensor);
    ct::checker::host_waited_for(*x.stream);  //edge:to-host-is-known TestCheckStreams_HostWaits checked
  });
}

ct_status* ct_tensor_item(ct_exec x, const ct_tensor* tensor, double* out) noexcept {
  return ct::executed(x, [&] {
    const ct_tensor& from = deref(tensor, "tensor");
    ct::refuse_in_capture(*x.stream, ct::kReadLater);
    ct::use(from, *x.stream);
    *out = ct::item(from.tensor);
  });
}

ct_status* ct_tensor_host_item(const ct_tensor* tensor, double* out) noexcept {
  return ct::guarded([&] {
    const at::Tensor& from = deref(tensor, "tensor").tensor;
    TORCH_CHECK(from.device().is_cpu(), "the tensor lies on ", from.device());
    ct::checker::host_reads(from);
    *out = ct::item(from);
  });
}

ct_status* ct_tensor_copy_from(ct_exec x, const ct_tensor* tensor, const void* data, int64_t bytes) noexcept {
  return ct::executed(x, [&] { ct::copy_from(*x.stream, deref(tensor, "tensor"), data, bytes); });
}

ct_status* ct_copies_from(ct_exec x, const ct_event* const* behind, int32_t events, const ct_host_copy* copies, int32_t count,
                          ct_event** began, ct_event** done) noexcept {
  return ct::executed(x, [&] {
    //edge:copies-behind-events TestStream_CopyFrom checked
    for (int32_t i = 0; i < events; ++i) ct::wait(*x.stream, deref(behind[i], "behind"));
    std::unique_ptr<ct_event> first(ct::record(*x.stream, true));
    for (int32_t i = 0; i < count; ++i) ct::copy_from(*x.stream, deref(copies[i].tensor, "tensor"), copies[i].data, copies[i].bytes);
    *done = ct::record(*x.stream, true);
    *began = first.release();
  });
}

ct_status* ct_tensor_from_device(ct_exec x, const ct_tensor* tensor, ct_tensor** out) noexcept {
  return ct::executed(x, [&] {
    const at::Tensor& from = deref(tensor, "tensor").tensor;
    const c10::Device here = x.stream->device;
    TORCH_CHECK(from.layout() == at::kStrided && from.is_non_overlapping_and_dense(),
                "the tensor is not dense: make it contiguous on its own device first");
    ct::check_bytes(from);
    TORCH_CHECK(!from.is_cuda() || here.is_cuda(), "the tensor lies on ", from.device(), ": read it there, with ToSlice or ReadAsync");
    ct::require(from.device());
    at::Tensor to = at::empty_strided(from.sizes(), from.strides(), at::TensorOptions().dtype(from.dtype()).device(here));
    const size_t bytes = from.nbytes();
    if (bytes > 0) {
      const void* data = from.const_data_ptr();
      ct::use_elsewhere(*tensor, *x.stream);  //edge:from-device-use TestFromDevice_FreedDuringTheCopy checked
      ct::checker::reads_elsewhere("FromDevice", from);  //edge:from-device-is-known TestFromDevice_MissingWait checked
      ct::checker::writes("FromDevice", to);
      ct::checker::full_edge(*x.stream);
      if (!here.is_cuda()) {
        std::memcpy(to.mutable_data_ptr(), data, bytes);
      } else if (from.is_cuda()) {
        ct::cuda().copy_between(to.mutable_data_ptr(), here.index(), data, from.device().index(), bytes, x.stream->stream);
      } else {
        ct::refuse_in_capture(*x.stream, "copy the tensor to the device before");
        ct::copy_staged(to, data, x.stream->stream);
      }
    }
    *out = new ct_tensor(std::move(to), x.stream->id);
  });
}

ct_status* ct_tensor_copy_to(ct_exec x, const ct_tensor* tensor, void* data, int64_t bytes) noexcept {
  return ct::executed(x, [&] {
    const ct_tensor& from = deref(tensor, "tensor");
    ct::check_host(from.tensor, data, bytes);
    if (!from.tensor.is_contiguous()) throw ct::Failure(CT_INVALID_ARGUMENT, "the tensor is not contiguous");
    ct::check_bytes(from.tensor);
    ct::use(from, *x.stream);  //edge:copy-to-tells-use TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
    if (bytes == 0) return;
    const bool waits = ct::checker::is_on() && ct::waits_for(from.tensor, data);
    ct::checker::reads("CopyTo", from.tensor);  //edge:copy-to-reads TestCheckStreams_FindsMistakes checked
    if (from.tensor.is_cuda()) {
      if (ct::in_capture(*x.stream) && !ct::cuda().page_locked(data)) ct::refuse_in_capture(*x.stream, "copy to a pinned HostSlab");
      ct::cuda().copy_to_host(data, from.tensor.const_data_ptr(), static_cast<size_t>(bytes), x.stream->stream);
    } else {
      std::memcpy(data, from.tensor.const_data_ptr(), static_cast<size_t>(bytes));
    }
    if (waits) ct::checker::host_waited_for(*x.stream);  //edge:copy-to-is-known TestCheckStreams_HostWaits gpu
    //edge:copy-to-writes-slab TestCheckStreams_FindsMistakes checked
    ct::checker::slab("CopyTo", data, bytes, true, waits);
  });
}

ct_status* ct_tensor_read(ct_exec x, const ct_tensor* tensor, ct_tensor** out) noexcept {
  return ct::executed(x, [&] {
    const ct_tensor& from = deref(tensor, "tensor");
    ct::refuse_in_capture(*x.stream, ct::kReadLater);
    TORCH_CHECK(from.tensor.layout() == at::kStrided, "a tensor of layout ", from.tensor.layout(), " is not dense");
    ct::use(from, *x.stream);  //edge:read-tells-use TestCheckStreams_FreedWhileAnotherStreamUsesIt checked
    const c10::AutoGradMode no_grad(false);
    // LibTorch keeps its page-locked memory for later reads. It does not hand this memory out again
    // before the copy is done.
    const auto options = at::TensorOptions().dtype(from.tensor.dtype()).pinned_memory(from.tensor.is_cuda());
    at::Tensor to = at::empty(from.tensor.sizes(), options);
    to.copy_(from.tensor, /*non_blocking=*/true);
    if (from.tensor.is_cuda()) free_without_throwing(to);
    *out = new ct_tensor(std::move(to), ct::kAnyStream);
  });
}

const void* ct_tensor_host_data(const ct_tensor* tensor) noexcept {
  if (tensor == nullptr || !tensor->tensor.device().is_cpu() || !tensor->tensor.is_contiguous()) return nullptr;
  ct::checker::host_reads(tensor->tensor);
  return tensor->tensor.const_data_ptr();
}

void* ct_tensor_memory(const ct_tensor* tensor) noexcept {
  if (tensor == nullptr || !tensor->tensor.device().is_cpu() || !tensor->tensor.is_contiguous()) return nullptr;
  return tensor->tensor.mutable_data_ptr();
}

void ct_tensor_free(ct_tensor* tensor) noexcept { delete tensor; }

void ct_tensors_free(ct_tensor* const* tensors, int64_t count) noexcept {
  for (int64_t i = 0; i < count; ++i) delete tensors[i];
}

ct_tensor* ct_tensor_alias(const ct_tensor* tensor) noexcept {
  return tensor == nullptr ? nullptr : new ct_tensor(tensor->tensor, tensor->stream);
}

void ct_tensor_describe(const ct_tensor* tensor, ct_tensor_info* out) noexcept {
  *out = ct_tensor_info{};
  if (tensor == nullptr) return;
  const at::Tensor& t = tensor->tensor;
  out->dtype = static_cast<int32_t>(t.scalar_type());
  out->dims = static_cast<int32_t>(t.dim());
  out->device = ct::from_device(t.device());
  out->requires_grad = t.requires_grad();
  out->is_leaf = t.is_leaf();
  out->elements = t.numel();
  if (t.has_storage()) {
    out->storage_bytes = static_cast<int64_t>(t.storage().nbytes());
    out->storage = reinterpret_cast<uint64_t>(t.storage().unsafeGetStorageImpl());
    out->address = reinterpret_cast<uint64_t>(t.storage().data()) + static_cast<uint64_t>(t.storage_offset()) * t.element_size();
  }
  out->stream = tensor->stream;
  out->version = t.is_inference() ? 0 : static_cast<uint32_t>(t._version());
  out->is_strided = t.layout() == at::kStrided && !t.is_quantized();
  out->is_conj = t.is_conj();
  out->is_neg = t.is_neg();
}

void ct_tensor_geometry(const ct_tensor* tensor, int64_t* shape, int64_t* strides) noexcept {
  if (tensor == nullptr) return;
  const at::Tensor& t = tensor->tensor;
  for (int64_t i = 0; i < t.dim(); ++i) {
    if (shape != nullptr) shape[i] = t.sizes()[i];
    if (strides != nullptr) strides[i] = t.layout() == at::kStrided ? t.strides()[i] : 0;
  }
}

ct_tensor* ct_tensor_lend(const ct_tensor* tensor) noexcept {
  return tensor == nullptr ? nullptr : new ct_tensor(tensor->tensor, ct::kAnyStream);
}

ct_storage* ct_tensor_storage(const ct_tensor* tensor) noexcept {
  if (tensor == nullptr || !tensor->tensor.has_storage()) return nullptr;
  return new ct_storage{tensor->tensor.storage().getWeakStorageImpl()};
}

void ct_storage_free(ct_storage* storage) noexcept { delete storage; }

}  // extern "C"
