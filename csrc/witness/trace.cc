#include "witness/trace.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "check/checker.h"
#include "core/device.h"
#include "core/status.h"

namespace ct {
namespace {

using Number = std::pair<int32_t, uint32_t>;  // a device, and the number that CUPTI gives one of the device's streams

struct Traces {
  std::mutex mutex;
  bool running = false;
  // The CUDA streams whose numbers may be queried. The library's streams are never destroyed. A
  // stream that the caller made is in this map while a handle of it exists.
  struct Known {
    c10::Stream stream;
    int handles;
  };
  std::map<uint64_t, Known> streams;
  std::map<Number, uint64_t> ids;  // the stream for each number, in the running trace
};

Traces& traces() {
  static auto* const one = new Traces;
  return *one;
}

void number(Traces& all, uint64_t id, c10::Stream stream) {
  all.ids[{stream.device_index(), cuda().trace_number(stream)}] = id;
}

std::string readable(const std::string& mangled) {
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &failed), std::free);
  return failed == 0 && text != nullptr ? text.get() : mangled;
}

}  // namespace

void trace_knows(const ct_stream& stream) {
  Traces& all = traces();
  const std::lock_guard lock(all.mutex);
  ++all.streams.try_emplace(stream.id, Traces::Known{stream.stream, 0}).first->second.handles;
  if (all.running) number(all, stream.id, stream.stream);
}

void trace_forgets(const ct_stream& stream) noexcept {
  Traces& all = traces();
  const std::lock_guard lock(all.mutex);
  const auto known = all.streams.find(stream.id);
  if (known != all.streams.end() && --known->second.handles == 0) all.streams.erase(known);
}

}  // namespace ct

extern "C" {

ct_status* ct_trace_start(int64_t max_records) noexcept {
  return ct::guarded([&] {
    if (max_records < 1) throw ct::Failure(CT_INVALID_ARGUMENT, "a trace of " + std::to_string(max_records) + " records: it must have room for 1 or more");
    ct::CudaBackend& cuda = ct::cuda();
    ct::Traces& all = ct::traces();
    const std::lock_guard lock(all.mutex);
    if (all.running) throw ct::Failure(CT_MISUSE, "a trace is running already: stop it first");
    cuda.start_trace(static_cast<size_t>(max_records));
    try {
      all.ids.clear();
      for (const auto& [id, known] : all.streams) ct::number(all, id, known.stream);
    } catch (...) {
      ct_trace discarded;
      cuda.stop_trace(discarded);
      throw;
    }
    all.running = true;
  });
}

ct_status* ct_trace_stop(ct_trace** out) noexcept {
  return ct::guarded([&] {
    ct::Traces& all = ct::traces();
    auto trace = std::make_unique<ct_trace>();
    std::map<ct::Number, uint64_t> ids;
    {
      const std::lock_guard lock(all.mutex);
      if (!all.running) throw ct::Failure(CT_MISUSE, "no trace is running");
      all.running = false;
      ids = all.ids;
      ct::cuda().stop_trace(*trace);
    }
    ct::checker::host_waited_for(c10::kCUDA);
    for (ct_trace_record& record : trace->records) {
      const auto queue = static_cast<uint32_t>(record.stream);
      const auto found = ids.find({record.device, queue});
      record.stream = found != ids.end() ? found->second : CT_STREAM_FOREIGN | (uint64_t(uint32_t(record.device)) << 32) | queue;
    }
    std::stable_sort(trace->records.begin(), trace->records.end(),
                     [](const ct_trace_record& a, const ct_trace_record& b) { return a.start < b.start; });
    for (std::string& name : trace->names) name = ct::readable(name);
    *out = trace.release();
  });
}

void ct_trace_free(ct_trace* trace) noexcept { delete trace; }

const ct_trace_record* ct_trace_records(const ct_trace* trace, int64_t* count) noexcept {
  *count = trace == nullptr ? 0 : static_cast<int64_t>(trace->records.size());
  return trace == nullptr ? nullptr : trace->records.data();
}

int64_t ct_trace_lost(const ct_trace* trace) noexcept { return trace == nullptr ? 0 : trace->lost; }

const char* ct_trace_name(const ct_trace* trace, uint32_t name) noexcept {
  return trace == nullptr || name >= trace->names.size() ? "" : trace->names[name].c_str();
}

}  // extern "C"
