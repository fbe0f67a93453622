#include "check/early.h"

#include <algorithm>
#include <mutex>
#include <string_view>

#include "check/checker.h"
#include "check/clocks.h"
#include "check/thread.h"

namespace ct {

void Checker::begins(Queue queue) {
  if (queue == kNone || queue == kHost) return;
  const std::lock_guard lock(mutex_);
  streams_[queue].begun = serial_;
}

void Checker::reads_early(const at::Tensor& tensor, const Actor& by, const at::Tensor* through) {
  if (by.queue == kNone || by.queue == kHost || !has_memory(tensor)) return;
  const std::lock_guard lock(mutex_);
  enqueue(by.queue);
  const Block& block = block_of(tensor);
  const Access early{by, 0, 0, Region::of(tensor), false, "read early", index_of(through)};
  for (auto a = block.accesses.rbegin(); a != block.accesses.rend() && a->serial > streams_[by.queue].begun; ++a) {
    if (!a->write || a->kind == kAllocated || a->by.queue != by.queue || knows(kHost, by.queue, a->time)) continue;
    const bool apart = a->index && early.index && !(a->index->first == early.index->first && overlap(a->index->second, early.index->second));
    if (apart || !overlap(a->region, early.region)) continue;
    report(block, *a, early, CT_RACE_EARLY);
    return;
  }
}

}  // namespace ct

namespace ct::checker {

void begin(const Effects& effects, c10::ArrayRef<const c10::IValue> inputs, c10::Device device) {
  const auto untouched = [](Effects::Effect effect) { return effect == Effects::none; };
  if (thread.kernel != Thread::kNoKernel || std::all_of(effects.arguments.begin(), effects.arguments.end(), untouched)) return;
  thread.kernel = effects.edge < 0 ? Thread::kKernels : Thread::kOneKernel;
  const Queue queue = current_queue(device);
  const auto input = [&](auto index) -> const c10::IValue& { return inputs[static_cast<size_t>(index)]; };
  const std::string_view edge = effects.edge < 0 ? "full" : input(effects.edge).toStringView();
  if (edge == "full") Checker::instance().begins(queue);  //edge:kernel-full-edge TestCheckStreams_FindsMistakes checked
  if (edge != "early") return;
  for (const Effects::Early& e : effects.early) {
    const c10::IValue& in = input(e.argument);
    if (!in.isTensor() || in.toTensor().device() != device) continue;
    Checker::instance().reads_early(in.toTensor(), actor(queue), e.through < 0 ? nullptr : &input(e.through).toTensor());
  }
}

}  // namespace ct::checker
