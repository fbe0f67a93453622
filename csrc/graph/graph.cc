#include "graph/graph.h"

#include "core/device.h"
#include "core/exec.h"
#include "core/live.h"

// Note [How work is captured]
//
// A function is captured by running it once on a stream of its pool. It runs on the Do's thread,
// in a scope of its own inside the Do. A failure therefore ends the capture and not the Do.
// LibTorch's CUDAGraph then holds the graph. CUDA's thread-local capture mode does not restrict
// other threads, such as autograd's.
//
// Nothing outside the pool uses the pool's streams. If the function forks to another stream, a
// stream of the pool takes the place of that stream. cuBLAS has a workspace for each stream. So
// graphs that run at the same time share no workspace with each other, and none with eager work.
//
// Inside a capture the function must not wait for an event from outside. Outside, nothing may
// wait for an event from inside. Work on a stream that does not wait for the capture is refused
// too: it would run at once and would not be captured. A capture runs nothing on the device. A
// graph can be launched on any stream.
//
// Note [Order of launches]
//
// Graphs of one pool use the same memory. A graph also has only one set of inputs and of random
// state. Each launch therefore waits for the pool's last launch, if that was on another stream.
//
// After each launch, the pool's streams wait for the launch. During the capture, LibTorch's
// allocator and the stream checker were told that these streams use what the function reads and
// writes. So what the allocator and the checker know holds for launches too. The time of these
// events and waits is too small to be measured.
//
// The checker keeps the accesses of a capture to memory that outlives the capture. The checker
// treats each launch as if the pool's streams made these accesses again.

ct_graph_pool::ct_graph_pool(c10::Device device) : device(device), id(ct::cuda().new_graph_pool(device.index())) {
  ++ct::live().graphs;
}

ct_graph_pool::~ct_graph_pool() {
  ct::after_captures([device = device.index(), id = id] { ct::cuda().free_graph_pool(device, id); });
  --ct::live().graphs;
}

void ct_graph_pool::add(void* stream) {
  const std::lock_guard lock(mutex_);
  streams_.insert(stream);
}

bool ct_graph_pool::has(void* stream) const {
  const std::lock_guard lock(mutex_);
  return streams_.count(stream) > 0;
}

void ct_graph_pool::enter() {
  ct::cuda().enter_graph_pool(device.index(), id, [this](void* stream) { return has(stream); });
  entered_ = true;
}

void ct_graph_pool::leave() noexcept {
  ct::cuda().leave_graph_pool(device.index(), id);
  entered_ = false;
}

ct_graph_pool::Outside::Outside(ct_graph_pool& pool) : pool_(pool), was_inside_(pool.entered_) {
  if (was_inside_) pool_.leave();
}

ct_graph_pool::Outside::~Outside() {
  if (!was_inside_) return;
  try {
    pool_.enter();
  } catch (...) {  // There is no memory. Later allocations then come from LibTorch's own pool.
  }
}

ct_graph::ct_graph(c10::Device device) : device(device), graph(ct::cuda().new_graph(device.index())) { ++ct::live().graphs; }

ct_graph::~ct_graph() {
  if (turn) {
    graph.reset();
    (void)ct::checker::capture_ends(device);
  } else {
    ct::after_captures([graph = std::shared_ptr<ct::CudaGraph>(std::move(graph))] {});
  }
  --ct::live().graphs;
}

namespace {

template <typename G>
G& launchable(G* graph) {
  G& g = ct::deref(graph, "graph");
  if (!g.ready) throw ct::Failure(CT_INVALID_ARGUMENT, "the graph was not captured to its end, or another one has taken it over");
  return g;
}

template <typename G>
G& capturing(G* graph) {
  G& g = ct::deref(graph, "graph");
  if (!g.turn) throw ct::Failure(CT_INVALID_ARGUMENT, "the graph's capture has ended");
  return g;
}

c10::Device device_of(const ct_graph_pool* pool) { return pool == nullptr ? c10::Device(c10::kCPU) : pool->device; }
c10::Device device_of(const ct_graph* graph) { return graph == nullptr ? c10::Device(c10::kCPU) : graph->device; }

}  // namespace

extern "C" {

ct_status* ct_graph_pool_new(ct_device device, ct_graph_pool** out) noexcept {
  return ct::on_device(device, [&](c10::Device where) {
    if (!where.is_cuda()) throw ct::Failure(CT_UNSUPPORTED, "the CPU has no graphs");
    *out = new ct_graph_pool(where);
  });
}

void ct_graph_pool_free(ct_graph_pool* pool) noexcept { delete pool; }

ct_status* ct_graph_pool_bytes(const ct_graph_pool* pool, int64_t* out) noexcept {
  return ct::guarded(device_of(pool), [&] {
    const ct_graph_pool& p = ct::deref(pool, "pool");
    ct::require(p.device);
    *out = ct::cuda().graph_pool_bytes(p.device.index(), p.id);
  });
}

ct_status* ct_graph_pool_add(ct_graph_pool* pool, const ct_stream* stream) noexcept {
  return ct::guarded(device_of(pool), [&] {
    ct::deref(pool, "pool").add(ct::cuda().native_stream(ct::deref(stream, "stream").stream));
  });
}

ct_status* ct_graph_pool_enter(ct_graph_pool* pool) noexcept {
  return ct::guarded(device_of(pool), [&] {
    ct_graph_pool& p = ct::deref(pool, "pool");
    ct::require(p.device);
    p.enter();
  });
}

void ct_graph_pool_leave(ct_graph_pool* pool) noexcept {
  if (pool != nullptr) pool->leave();
}

ct_status* ct_graph_begin(ct_exec x, ct_graph_pool* pool, ct_graph** out) noexcept {
  return ct::executed(x, [&] {
    const ct_graph_pool& memory = ct::deref(pool, "pool");
    const c10::Device device = x.stream->device;
    if (memory.device != device) throw ct::Failure(CT_INVALID_ARGUMENT, "the pool is of " + memory.device.str() + ", the exec of " + device.str());
    auto graph = std::make_unique<ct_graph>(device);
    graph->turn.emplace(device);
    ct::checker::capture_begins(device);
    ct::checker::full_edge(*x.stream);
    graph->graph->begin(memory.id);
    *out = graph.release();
  });
}

ct_status* ct_graph_end(ct_exec x, ct_graph* graph, ct_graph* older, int32_t* updated) noexcept {
  return ct::executed(x, [&] {
    ct_graph& g = capturing(graph);
    struct End {
      ~End() {
        if (of.accesses == nullptr) (void)ct::checker::capture_ends(of.device);
        of.turn.reset();
      }
      ct_graph& of;
    } const end{g};
    const bool has_older = older != nullptr && older->ready && older->device == g.device;
    const bool taken = g.graph->end(has_older ? older->graph.get() : nullptr);
    if (taken) older->ready = false;
    g.accesses = ct::checker::capture_ends(g.device);
    g.ready = true;
    *updated = taken;
  });
}

ct_status* ct_graph_drawn(const ct_graph* graph, uint64_t* out) noexcept {
  return ct::guarded([&] { *out = capturing(graph).graph->drawn(); });
}

ct_status* ct_graph_set_drawn(ct_graph* graph, uint64_t drawn) noexcept {
  return ct::guarded([&] { capturing(graph).graph->set_drawn(drawn); });
}

ct_status* ct_captures_hold(ct_device device) noexcept {
  return ct::on_device(device, [](c10::Device where) {
    if (where.is_cuda()) ct::hold_captures(where);
  });
}

void ct_captures_release(ct_device device) noexcept {
  if (device.type == CT_CUDA) ct::release_captures(ct::to_device(device));
}

void ct_graph_free(ct_graph* graph) noexcept { delete graph; }

ct_status* ct_graph_launch(ct_exec x, ct_graph* graph) noexcept {
  return ct::executed(x, [&] {
    ct_graph& g = launchable(graph);
    if (g.device != x.stream->device) {
      throw ct::Failure(CT_INVALID_ARGUMENT, "the graph is of " + g.device.str() + ", and is launched on " + x.stream->device.str());
    }
    if (ct::in_capture(*x.stream)) throw ct::Failure(CT_NOT_CAPTURABLE, "a graph is launched inside a capture");
    g.graph->launch();
    ct::checker::launched(*x.stream, g.accesses);
  });
}

ct_status* ct_graph_count(const ct_graph* graph, ct_graph_size* out) noexcept {
  return ct::guarded(device_of(graph), [&] {
    const ct_graph& g = launchable(graph);
    ct::require(g.device);
    ct_graph_size size{};
    g.graph->count(&size.nodes, &size.kernels, &size.copies, &size.fills);
    size.random = g.graph->random();
    *out = size;
  });
}

}  // extern "C"
