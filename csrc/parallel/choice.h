// Choices: which of two ways to do a piece of work is faster on the device, found by doing it both ways.
//
// Note [Trials]: what is measured are calls that the program makes anyway, one way and the other in turn, between two timing events of the
// stream: nothing is run for the sake of measuring, so what a call does happens as often as it is made. Eagerly that includes the time in
// which the device waits for the host, as it should. In the rehearsal of a capture it must not: a sleeping kernel ahead lets the host run
// ahead, and the device then finds all of the work, as in a graph. The two have decisions of their own.
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

// The middle one of some values.
double median(std::vector<double> values);

// One call of the work. The caller does it that way and, where it is measured, calls Choice::end.
struct Trial {
  bool second = false;  // the way
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
  // key: what the decision is for. graph: the work is the rehearsal or the capture of a graph. streams: used by the second way. A capture
  // and the CPU measure nothing.
  Trial begin(const ct_stream& stream, const std::string& key, bool graph, int streams);
  // Of a trial that is measured. Whether nothing is decided yet. Waits for the device where it was the last one for a graph.
  bool end(Trial& trial, const ct_stream& stream);
  // Whether that is decided; and to decide it, by times in microseconds that the caller has measured in its own way, and the share of
  // the first that the second way is to take less, or for the first way because nothing can be measured, which is no decision to be taken.
  bool decided(const std::string& key, bool graph);
  void settle(const std::string& key, bool graph, double first, double second, double gain);
  void keep_first(const std::string& key, bool graph);
  // How many microseconds the second way takes less; 0 where that is not decided, for the first, and where it takes no less.
  double gain(const std::string& key, bool graph);
  // Whether trials are under way.
  bool open(bool graph);
  // The next decision that was not taken yet.
  bool take(ct_decision* out);

 private:
  static constexpr size_t kWarm = 2;  // of the trials, the first one each way, which no time is taken from
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
    size_t waited = 0;  // how often the host did, for the device
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
