// The plans of one communicator, by the agreed values of the calls that they were chosen for.
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
  std::string_view plan;                // that it asks for
  std::shared_ptr<const Schedule> own;  // likewise
  bool waits;                           // who makes the call
};

class PlanCache {
 public:
  // make() chooses where nothing is kept for the key; what it throws goes on.
  template <class Make>
  std::shared_ptr<const Plan> get(const PlanKey& key, Make&& make) {
    const std::lock_guard lock(mutex_);
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!entry->is(key)) continue;
      entries_.splice(entries_.begin(), entries_, entry);  // the last used stands first
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
    std::string name;  // what the key refers to
    std::shared_ptr<const Plan> plan;

    bool is(const PlanKey& other) const {
      return key.count == other.count && key.kind == other.kind && key.dtype == other.dtype &&
             key.op == other.op && key.root == other.root && key.own == other.own &&
             key.waits == other.waits && key.plan == other.plan;
    }
  };

  std::mutex mutex_;
  std::list<Entry> entries_;
};

}  // namespace gradred
