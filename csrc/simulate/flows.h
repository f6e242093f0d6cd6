// Messages in flight that share links. Their speeds are max-min fair: no message can be faster
// without making one slower that is not faster than it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace gradred {

class Flows {
 public:
  explicit Flows(const std::vector<double>& speeds);

  // Starts flow `id` at the current time of settle(). The flow is not faster than `stream`.
  void start(std::uint32_t id, double bytes, double stream,
             const std::vector<std::uint32_t>& links);
  void end(std::uint32_t id);

  // Computes the speeds that the starts and ends since the last call have changed, and calls
  // look_at(id, time, version) for flows that are to be looked at then by has_ended(). A later call
  // for a flow makes the earlier one void.
  template <class LookAt>
  void settle(double now, LookAt&& look_at) {
    find_changes(now);
    for (const std::uint32_t id : changes_) {
      Flow& flow = flows_[id];
      // A flow that ends later than expected is looked at in vain once, and then again.
      if (flow.ends >= flow.expected) continue;
      flow.expected = flow.ends;
      look_at(id, flow.ends, ++flow.version);
    }
    changes_.clear();
  }
  // Whether a flow ends at the time at which settle() wanted it to be looked at. If not, `again` is
  // the time at which to look again.
  bool has_ended(std::uint32_t id, double now, double& again) {
    again = flows_[id].expected = flows_[id].ends;
    return again <= now;
  }
  std::uint32_t version(std::uint32_t id) const { return flows_[id].version; }
  double speed(std::uint32_t id) const { return flows_[id].speed; }

 private:
  struct Use {
    std::uint32_t link = 0;
    std::uint32_t at = 0;  // position among the link's users
  };
  struct Flow {
    double left = 0;  // bytes at the time `since`
    double since = 0;
    double speed = 0, stream = 0;
    double found = 0;               // speed that share_out() has found, or negative
    double ends = 0, expected = 0;  // time of the end at this speed, and when it is looked at next
    std::uint32_t version = 0;
    std::uint32_t visit = 0;
    bool is_new = false;
    std::vector<Use> uses{};
  };
  struct User {
    std::uint32_t flow = 0, use = 0;
  };
  struct Link {
    double speed = 0;
    double demand = 0;          // sum of the streams of its users
    double left = 0;            // in share_out()
    std::uint32_t unknown = 0;  // users whose speed share_out() has not found yet
    std::uint32_t visit = 0;
    bool is_touched = false;
    bool was_full = false;  // the demand exceeded the speed after the last settle()
    std::vector<User> users{};

    bool is_full() const { return demand > speed * (1 + 1e-12); }
  };

  void touch(std::uint32_t link);
  void find_changes(double now);
  void collect(std::uint32_t id);
  void share_out();
  void settle_speed(std::uint32_t id, double speed);
  void apply(double now);

  std::vector<Flow> flows_;
  std::vector<Link> links_;
  std::vector<std::uint32_t> started_, touched_, changes_;
  std::vector<std::uint32_t> part_, part_links_;  // flows that share links, and these links
  std::uint32_t visit_ = 0;
};

}  // namespace gradred
