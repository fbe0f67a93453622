// Choices: which of two ways to do a piece of work is faster on the device. A choice does the work
// both ways.
//
// Note [Trials]: a trial is a call that the program makes anyway, between two timing events of the
// stream. The calls go one way and the other alternately. Nothing is run for the sake of measuring:
// a call's effects happen as often as it is made. Eagerly a time includes the time in which the
// device waits for the host, as it should. In the warm-up run of a capture it must not. A sleeping
// kernel ahead lets the host run ahead there, and the device then finds all of the work, as in a
// graph. Eager work and graphs have decisions of their own.
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

// The median of some values.
double median(std::vector<double> values);

// One call of the work. The caller takes that way and, where the call is measured, calls
// Choice::end.
struct Trial {
  bool second = false;  // the way to take
  bool open = false;    // nothing is decided yet
  bool measured = false;
  std::pair<bool, std::string> key;
  std::shared_ptr<const Recording> begin;
  std::chrono::steady_clock::time_point host_begin;
  double slept = 0;  // microseconds of the kernel ahead
};

class Choice {
 public:
  static constexpr size_t kTrials = 12;
  static constexpr double kGain = 0.01;
  Choice(size_t trials, double gain) : trials_(trials), gain_(gain) {}
  // Begins a call of the work. key: the work that the decision is for. graph: the work is the warm-up
  // run or the capture of a graph. streams: number that the second way uses. A capture and the CPU
  // measure nothing.
  Trial begin(const ct_stream& stream, const std::string& key, bool graph, int streams);
  // Ends a trial that is measured. Returns whether the choice is still open. The last trial for a
  // graph waits for the device.
  bool end(Trial& trial, const ct_stream& stream);
  // Whether the choice is decided. settle decides it by times in microseconds that the caller has
  // measured in its own way. gain: share of the first time that the second way has to save.
  // keep_first decides for the first way because nothing can be measured: take does not return such a
  // decision.
  bool decided(const std::string& key, bool graph);
  void settle(const std::string& key, bool graph, double first, double second, double gain);
  void keep_first(const std::string& key, bool graph);
  // The microseconds that the second way saves. 0 without a decision, with a decision for the first
  // way, and where it saves nothing.
  double gain(const std::string& key, bool graph);
  // Whether trials are under way.
  bool open(bool graph);
  // The next decision that was not taken yet.
  bool take(ct_decision* out);

 private:
  static constexpr size_t kWarm = 2;  // trials of both ways: the first trial of each way gives no time
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
  void decide(const Key& key, Entry& entry, bool wait);
  void settle(const Key& key, Entry& entry, double first, double second, double host, double gain);

  const size_t trials_;
  const double gain_;  // share of the first way's time
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
