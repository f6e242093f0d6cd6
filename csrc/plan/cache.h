// Caches the plans of one communicator by the properties of the calls for which they were chosen.
// All ranks agree on these properties.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/signature.h"
#include "base/types.h"
#include "plan/plan.h"

namespace gradred {

struct PlanKey {
  Kind kind;
  DType dtype;
  Op op;
  std::size_t count;
  int root;
  std::string_view plan;                // the plan's name if the call asks for one
  std::shared_ptr<const Schedule> own;  // the caller's own schedule, if it gives one
  Wire wire;                            // that the call asks for
  bool waits;                           // the caller waits for the call
};

class PlanCache {
 public:
  // Returns the cached plan for `key`; if there is none, make() chooses one. Exceptions of make()
  // are passed on.
  template <class Make>
  std::shared_ptr<const Plan> get(const PlanKey& key, Make&& make) {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!entry->is(key)) continue;
      entries_.splice(entries_.begin(), entries_, entry);  // the most recently used plan is first
      return entry->plan;
    }
    entries_.push_front({key, std::string(key.plan), std::make_shared<const Plan>(make())});
    entries_.front().key.plan = entries_.front().name;
    if (entries_.size() > kMost) entries_.pop_back();
    return entries_.front().plan;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    entries_.clear();
  }

 private:
  static constexpr std::size_t kMost = 64;

  struct Entry {
    PlanKey key;
    std::string name;  // storage for key.plan
    std::shared_ptr<const Plan> plan;

    bool is(const PlanKey& other) const {
      return key.count == other.count && key.kind == other.kind && key.dtype == other.dtype &&
             key.op == other.op && key.root == other.root && key.own == other.own &&
             key.wire == other.wire && key.waits == other.waits && key.plan == other.plan;
    }
  };

  std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace gradred
