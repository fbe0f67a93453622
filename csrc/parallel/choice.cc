#include "parallel/choice.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/device.h"
#include "core/exec.h"
#include "core/status.h"
#include "graph/capture.h"
#include "kernels/sleep.h"

namespace ct {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds(Clock::duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

// Returns how many streams of a process can each have a hardware queue of their own.
int hardware_queues() {
  const char* text = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const int n = text == nullptr ? 0 : std::atoi(text);
  return n > 0 ? n : 8;
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Trial Choice::begin(const ct_stream& stream, const std::string& key, bool graph, int streams) {
  Trial trial;
  if (!stream.device.is_cuda()) return trial;
  const bool capturing = in_capture(stream);
  const std::lock_guard lock(mutex_);
  const Key of{graph, key};
  Entry& entry = entries_[of];
  if (!entry.decided && !capturing) decide(of, entry);
  trial.second = entry.second;
  trial.open = !entry.decided;
  if (entry.decided || capturing || entry.begun == trials_) return trial;
  trial.second = entry.begun % 2 == 1;
  trial.measured = true;
  trial.key = of;
  entry.streams = streams;
  if (graph && entry.begun >= kWarm) {
    double longest = 100;
    for (const auto& host : entry.host) {
      for (const double us : host) longest = std::max(longest, us);
    }
    trial.slept = std::min(2 * longest, 20e3);
    sleep(stream, static_cast<int64_t>(trial.slept * 1e3));
  }
  ++entry.begun;
  trial.begin = std::make_shared<const Recording>(stream, /*timing=*/true);
  trial.host_begin = Clock::now();
  return trial;
}

bool Choice::end(Trial& trial, const ct_stream& stream) {
  const double host = microseconds(Clock::now() - trial.host_begin);
  auto end = std::make_shared<const Recording>(stream, /*timing=*/true);
  std::vector<std::shared_ptr<const Recording>> last;  // after the last trial of a graph, the host waits for all trials
  {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[trial.key];
    entry.pending.push_back({trial.second, std::move(trial.begin), std::move(end), host, trial.slept});
    if (trial.key.first && !entry.decided && entry.begun == trials_) {
      for (const Sample& sample : entry.pending) last.push_back(sample.end);
    }
  }
  for (const auto& recording : last) cuda().synchronize_event(recording->native);  // without the lock, which other goroutines need
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[trial.key];
  decide(trial.key, entry);
  return !entry.decided;
}

void Choice::decide(const Key& key, Entry& entry) {
  if (entry.decided) return;  // another goroutine has decided
  auto sample = entry.pending.begin();
  for (; sample != entry.pending.end(); ++sample) {
    if (!sample->end->done()) break;
    entry.device[sample->second].push_back(1e3 * cuda().elapsed(sample->begin->native, sample->end->native));
    entry.host[sample->second].push_back(sample->host);
    if (sample->slept > 0 && sample->host > sample->slept) ++entry.waited;
  }
  entry.pending.erase(entry.pending.begin(), sample);
  if (entry.begun < trials_ || !entry.pending.empty()) return;
  if (entry.device[0].size() < kWarm || entry.device[1].size() < kWarm) {  // too many trials have failed: begin again
    entry = Entry{};
    return;
  }
  // The first call of each way is left out, because libraries load and choose kernels in it.
  const auto warmed = [](const std::vector<double>& all) { return std::vector<double>(all.begin() + kWarm / 2, all.end()); };
  settle(key, entry, median(warmed(entry.device[0])), median(warmed(entry.device[1])), median(warmed(entry.host[1])), gain_);
}

void Choice::settle(const Key& key, Entry& entry, double first, double second, double host, double gain) {
  // If the two ways take about the same time, the first way is better: it needs fewer streams and
  // less memory.
  entry.second = second < (1 - gain) * first;
  entry.decided = true;
  if (entry.second) entry.gain = std::max(0.0, first - second);
  ct_decision d{};
  std::strncpy(d.key, key.second.c_str(), sizeof(d.key) - 1);
  d.graph = key.first;
  d.second = entry.second;
  d.first_us = first;
  d.second_us = second;
  d.host_us = host;
  if (entry.second) d.why = second < first ? CT_FASTER : CT_NOT_WAITED_FOR;
  else if (2 * entry.waited > trials_) d.why = CT_HIDDEN_WAIT;
  else if (!key.first && host > 0.8 * second) d.why = CT_LAUNCH_BOUND;
  else if (entry.streams > hardware_queues()) d.why = CT_SHARED_QUEUE;
  else d.why = CT_FILLS_DEVICE;
  decisions_.push_back(d);
}

bool Choice::decided(const std::string& key, bool graph) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find({graph, key});
  return entry != entries_.end() && entry->second.decided;
}

void Choice::settle(const std::string& key, bool graph, double first, double second, double gain) {
  const std::lock_guard lock(mutex_);
  const Key of{graph, key};
  Entry& entry = entries_[of];
  if (!entry.decided) settle(of, entry, first, second, 0, gain);
}

void Choice::keep_first(const std::string& key, bool graph) {
  const std::lock_guard lock(mutex_);
  entries_[{graph, key}].decided = true;
}

double Choice::gain(const std::string& key, bool graph) {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find({graph, key});
  return entry == entries_.end() ? 0 : entry->second.gain;
}

bool Choice::open(bool graph) {
  const std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [graph](const auto& e) { return e.first.first == graph && e.second.begun > 0 && !e.second.decided; });
}

bool Choice::take(ct_decision* out) {
  const std::lock_guard lock(mutex_);
  if (taken_ == decisions_.size()) return false;
  *out = decisions_[taken_++];
  return true;
}

}  // namespace ct

struct ct_trial {
  ct_choice* const choice;
  ct::Trial trial;
};

extern "C" {

ct_choice* ct_choice_new(int32_t trials, double gain) noexcept {
  return new (std::nothrow) ct_choice(trials == 0 ? ct::Choice::kTrials : static_cast<size_t>(std::max(4, trials)), gain == 0 ? ct::Choice::kGain : gain);
}
void ct_choice_free(ct_choice* choice) noexcept { delete choice; }

ct_status* ct_choice_begin(ct_choice* choice, ct_exec x, const char* key, int32_t graph, int32_t streams, ct_trial** out,
                           int32_t* second, int32_t* state) noexcept {
  return ct::executed(x, [&] {
    ct_choice& c = ct::deref(choice, "choice");
    ct::Trial trial = c.choice.begin(*x.stream, &ct::deref(key, "key"), graph != 0, streams);
    *second = trial.second;
    *state = trial.open ? CT_OPEN : CT_DECIDED;
    *out = trial.measured ? new ct_trial{choice, std::move(trial)} : nullptr;
  });
}

ct_status* ct_trial_end(ct_exec x, ct_trial* trial, int32_t* state) noexcept {
  const std::unique_ptr<ct_trial> owned(trial);
  return ct::executed(x, [&] {
    ct_trial& t = ct::deref(trial, "trial");
    *state = t.choice->choice.end(t.trial, *x.stream) ? CT_OPEN : CT_DECIDED;
  });
}

void ct_trial_free(ct_trial* trial) noexcept { delete trial; }

int32_t ct_choice_open(ct_choice* choice, int32_t graph) noexcept { return choice != nullptr && choice->choice.open(graph != 0); }

int32_t ct_choice_take(ct_choice* choice, ct_decision* out) noexcept { return choice != nullptr && choice->choice.take(out); }

}  // extern "C"
