#include "check/thread.h"

#include <utility>

#include "core/stream.h"

namespace ct::checker {

thread_local Thread thread;

void Forwards::set(uint64_t of, int64_t number, Node node) {
  constexpr size_t kKept = 1 << 14;  // for a thread: more than an autograd graph has operators
  const std::lock_guard lock(mutex_);
  auto& nodes = threads_[of];
  nodes[number] = node;
  if (nodes.size() > kKept) nodes.erase(nodes.begin());
}

Node Forwards::get(uint64_t of, int64_t number) {
  const std::lock_guard lock(mutex_);
  const auto nodes = threads_.find(of);
  if (nodes == threads_.end()) return {};
  const auto node = nodes->second.find(number);
  return node == nodes->second.end() ? Node{} : node->second;
}

void Forwards::forget() {
  const std::lock_guard lock(mutex_);
  threads_.clear();
}

Forwards& forwards() {
  static auto* const all = new Forwards;
  return *all;
}

const c10::impl::VirtualGuardImpl& cuda_guard() {
  static const c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return guard;
}

Queue current_queue(c10::Device device) {
  if (device.is_cuda()) return Checker::instance().queue_of(cuda_guard().getStream(device));  // LibTorch gives this stream to CUDA
  if (thread.stream == nullptr) return Checker::kNone;
  if (thread.stream->device.is_cuda()) return Checker::kHost;
  if (!thread.nodes.empty() && thread.nodes.back().queue != Checker::kNone) return thread.nodes.back().queue;
  return Checker::instance().queue_of(*thread.stream);
}

Actor actor(Queue queue, const char* op) {
  Actor by;
  by.queue = queue;
  // The report names the operator that the program or autograd called. Operators that this operator
  // calls are parts of it.
  const size_t outermost = thread.nodes.empty() ? 0 : thread.nodes.back().ops;
  if (op != nullptr) by.op = op;
  else if (outermost < thread.ops.size()) by.op = thread.ops[outermost];
  by.site = thread.site;
  by.backward = thread.backward || !thread.nodes.empty();
  if (!thread.nodes.empty()) by.forward = thread.nodes.back().site;
  return by;
}

Scope::Scope(const ct_exec& x) : stream_before_(thread.stream), site_before_(thread.site) {
  thread.stream = x.stream;
  thread.site = x.site;
}

Scope::~Scope() {
  thread.stream = stream_before_;
  thread.site = site_before_;
}

OnStream::OnStream(const ct_stream& stream) : on_(is_on() && !stream.device.is_cuda()) {
  if (!on_) return;
  Node node = thread.nodes.empty() ? Node{} : thread.nodes.back();
  node.queue = Checker::instance().queue_of(stream);
  thread.nodes.push_back(node);
}

OnStream::~OnStream() {
  if (on_ && !thread.nodes.empty()) thread.nodes.pop_back();
}

bool runs_on(const ct_stream& stream) {
  if (!is_on() || stream.device.is_cuda()) return true;
  return current_queue(stream.device) == Checker::instance().queue_of(stream);
}

struct Apart::Before {
  Thread thread;
};

Apart::Apart() : before_(watches() ? new Before{std::exchange(thread, {})} : nullptr) {}
Apart::~Apart() {
  if (before_ != nullptr) thread = std::move(before_->thread);
}

Backward::Backward() : before_(thread.backward) { thread.backward = true; }
Backward::~Backward() { thread.backward = before_; }

}  // namespace ct::checker
