// A Choice finds which of two ways to do a piece of work is faster on the device. It tries each
// way.
//
// Note [Trials]: a trial is a call that the program makes anyway, between two timing events of
// the stream. The calls take the first way and the second way alternately. No call is made only
// for a measurement, so a call has its effects as often as the program makes it.
//
// In eager work a measured time includes the time in which the device waits for the host. That is
// right, because the program has this wait too. In the warm-up run of a capture, a measured time
// must not include that wait. There a kernel that sleeps runs before the work. The host then
// enqueues all of the work before the device begins it, as in a graph. A choice decides for eager
// work and for graphs separately.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cgotorch.h"
#include "core/event.h"
#include "core/stream.h"

namespace ct {

// Returns the median of values.
double median(std::vector<double> values);

// Trial is one call of the work. The caller takes the way that the trial names. If the call is
// measured, the caller then calls Choice::end.
struct Trial {
  bool second = false;  // the call takes the second way
  bool open = false;    // the choice is not decided yet
  bool measured = false;
  std::pair<bool, std::string> key;
  std::shared_ptr<const Recording> begin;
  std::chrono::steady_clock::time_point host_begin;
  double slept = 0;  // microseconds for which the kernel before the work sleeps
};

class Choice {
 public:
  static constexpr size_t kTrials = 12;
  static constexpr double kGain = 0.01;
  Choice(size_t trials, double gain) : trials_(trials), gain_(gain) {}
  // Begins a call of the work that `key` names. `graph` says that the work is the warm-up run or
  // the capture of a graph. `streams` is the number of streams that the second way uses. A call in
  // a capture or on the CPU is not measured.
  Trial begin(const ct_stream& stream, const std::string& key, bool graph, int streams);
  // Ends a trial that is measured. Returns whether the choice is still open. The last trial for a
  // graph waits for the device.
  bool end(Trial& trial, const ct_stream& stream);
  // decided reports whether the choice is decided. `settle` decides it by two times in
  // microseconds, which the caller has measured itself. `gain` is the share of the first time that
  // the second way must save. `keep_first` decides for the first way because nothing can be
  // measured. The function `take` does not return such a decision.
  bool decided(const std::string& key, bool graph);
  void settle(const std::string& key, bool graph, double first, double second, double gain);
  void keep_first(const std::string& key, bool graph);
  // Returns the microseconds that the second way saves. Returns 0 if the first way is chosen or
  // nothing is decided.
  double gain(const std::string& key, bool graph);
  // Reports whether trials of some work have begun while the choice for that work is not decided
  // yet.
  bool open(bool graph);
  // Writes to *out the next decision that no call of take has returned yet. Returns false if there
  // is none.
  bool take(ct_decision* out);

 private:
  static constexpr size_t kWarm = 2;  // trials that warm up: the first trial of each way gives no time
  struct Sample {
    bool second;
    std::shared_ptr<const Recording> begin, end;
    double host, slept;
  };
  struct Entry {
    size_t begun = 0;
    int streams = 0;
    std::vector<Sample> pending;
    std::vector<double> device[2], host[2];  // microseconds
    size_t waited = 0;  // how often the host waited for the device
    bool decided = false, second = false;
    double gain = 0;
  };
  using Key = std::pair<bool, std::string>;
  void decide(const Key& key, Entry& entry);
  void settle(const Key& key, Entry& entry, double first, double second, double host, double gain);

  const size_t trials_;
  const double gain_;  // the share of the first way's time that the second way must save
  std::mutex mutex_;
  std::map<Key, Entry> entries_;
  std::vector<ct_decision> decisions_;
  size_t taken_ = 0;
};

}  // namespace ct

struct ct_choice {
  ct_choice(size_t trials, double gain) : choice(trials, gain) {}
  ct::Choice choice;
};
