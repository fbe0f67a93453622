#include "check/early.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <utility>

#include "check/checker.h"
#include "check/clocks.h"
#include "check/thread.h"

namespace ct {
namespace {

// Returns whether two indices name different parts of what they lead to, because they share no
// memory.
bool are_apart(const Checker::Index& a, const Checker::Index& b) {
  return a && b && !(a->first == b->first && overlap(a->second, b->second));
}

bool has_elements(const at::Tensor& t) { return t.defined() && t.numel() != 0; }

bool has_elements(const c10::IValue& in) {
  if (in.isTensor()) return has_elements(in.toTensor());
  if (!in.isList()) return false;
  const auto list = in.toListRef();
  return std::any_of(list.begin(), list.end(), [](const c10::IValue& t) { return t.isTensor() && has_elements(t.toTensor()); });
}

}  // namespace

Checker::Mark Checker::full_edge(Queue queue) {
  if (queue == kNone || queue == kHost) return {queue, 0};
  const std::lock_guard lock(mutex_);
  return {queue, std::exchange(streams_[queue].last_full_edge, serial_)};
}

void Checker::no_full_edge(Mark of) {
  if (of.queue == kNone || of.queue == kHost) return;
  const std::lock_guard lock(mutex_);
  streams_[of.queue].last_full_edge = of.before;
}

void Checker::reads_early(const at::Tensor& tensor, const Actor& by, const at::Tensor* through) {
  if (by.queue == kNone || by.queue == kHost || !has_memory(tensor)) return;
  const std::lock_guard lock(mutex_);
  enqueue(by.queue);
  const auto [place, region] = place_of(tensor);
  const Block& block = *place;
  const Access early{by, 0, 0, region, false, "read early", index_of(through)};
  for (auto a = block.accesses.rbegin(); a != block.accesses.rend() && a->serial > streams_[by.queue].last_full_edge; ++a) {
    // What the host has waited for is done.
    if (!a->write || a->by.queue != by.queue || knows(kHost, by.queue, a->time)) continue;
    if (!overlap(a->region, early.region) || are_apart(a->index, early.index)) continue;
    report(block, *a, early, CT_RACE_EARLY);
    return;
  }
}

}  // namespace ct

namespace ct::checker {

std::optional<Mark> begin(const Effects& effects, c10::ArrayRef<const c10::IValue> inputs, c10::Device device) {
  if (thread.kernel != Thread::kNoKernel) return std::nullopt;
  size_t touched = 0;
  while (touched < inputs.size() && (effects.arguments[touched] == Effects::none || !has_elements(inputs[touched]))) ++touched;
  if (touched == inputs.size()) return std::nullopt;
  thread.kernel = effects.edge < 0 ? Thread::kKernels : Thread::kOneKernel;
  const Queue queue = current_queue(device);
  const auto input = [&](auto index) -> const c10::IValue& { return inputs[static_cast<size_t>(index)]; };
  const std::string_view edge = effects.edge < 0 ? "full" : input(effects.edge).toStringView();
  if (edge != "early") return Checker::instance().full_edge(queue);  //edge:kernel-full-edge TestCheckStreams_FindsMistakes checked
  for (const Effects::Early& e : effects.early) {
    const c10::IValue& in = input(e.argument);
    if (!in.isTensor() || in.toTensor().device() != device) continue;
    Checker::instance().reads_early(in.toTensor(), actor(queue), e.through < 0 ? nullptr : &input(e.through).toTensor());
  }
  return std::nullopt;
}

}  // namespace ct::checker
