#include "simulate/flows.h"

#include <algorithm>
#include <limits>

namespace gradred {

Flows::Flows(const std::vector<double>& speeds) : links_(speeds.size()) {
  for (std::size_t i = 0; i < speeds.size(); ++i) links_[i].speed = speeds[i];
}

void Flows::touch(std::uint32_t link) {
  if (links_[link].is_touched) return;
  links_[link].is_touched = true;
  touched_.push_back(link);
}

void Flows::start(std::uint32_t id, double bytes, double stream,
                  const std::vector<std::uint32_t>& links) {
  if (id >= flows_.size()) flows_.resize(id + 1);
  Flow& flow = flows_[id];
  for (const std::uint32_t link : links) stream = std::min(stream, links_[link].speed);
  flow.left = bytes;
  flow.speed = 0;
  flow.expected = std::numeric_limits<double>::infinity();
  flow.stream = stream;
  flow.is_new = true;
  flow.uses.clear();
  started_.push_back(id);
  for (const std::uint32_t number : links) {
    Link& link = links_[number];
    flow.uses.push_back({number, static_cast<std::uint32_t>(link.users.size())});
    link.users.push_back({id, static_cast<std::uint32_t>(flow.uses.size() - 1)});
    link.demand += stream;
    touch(number);
  }
}

void Flows::end(std::uint32_t id) {
  Flow& flow = flows_[id];
  ++flow.version;
  for (const Use& use : flow.uses) {
    Link& link = links_[use.link];
    const User moved = link.users.back();
    link.users[use.at] = moved;
    flows_[moved.flow].uses[moved.use].at = use.at;
    link.users.pop_back();
    link.demand = link.users.empty() ? 0 : link.demand - flow.stream;
    touch(use.link);
  }
  flow.uses.clear();
}

// A link whose users cannot fill it limits none of them. So a change reaches other flows only over
// full links, or over links that were full before it.
void Flows::find_changes(double now) {
  ++visit_;
  const auto share = [&](std::uint32_t id) {
    if (flows_[id].visit == visit_) return;
    collect(id);
    share_out();
    apply(now);
  };
  for (const std::uint32_t number : touched_) {
    const Link& link = links_[number];
    if (!link.is_full() && !link.was_full) continue;
    for (const User& user : link.users) share(user.flow);
  }
  for (const std::uint32_t id : started_) {
    if (flows_[id].is_new) share(id);
  }
  started_.clear();
  for (const std::uint32_t number : touched_) {
    links_[number].is_touched = false;
    links_[number].was_full = links_[number].is_full();
  }
  touched_.clear();
}

// Finds all flows that are connected to this one by full links.
void Flows::collect(std::uint32_t id) {
  part_.assign(1, id);
  part_links_.clear();
  flows_[id].visit = visit_;
  for (std::size_t next = 0; next < part_.size(); ++next) {
    flows_[part_[next]].found = -1;
    for (const Use& use : flows_[part_[next]].uses) {
      Link& link = links_[use.link];
      if (link.visit == visit_ || !link.is_full()) continue;
      link.visit = visit_;
      link.left = link.speed;
      link.unknown = static_cast<std::uint32_t>(link.users.size());
      part_links_.push_back(use.link);
      for (const User& user : link.users) {
        if (flows_[user.flow].visit == visit_) continue;
        flows_[user.flow].visit = visit_;
        part_.push_back(user.flow);
      }
    }
  }
}

void Flows::settle_speed(std::uint32_t id, double speed) {
  Flow& flow = flows_[id];
  flow.found = speed;
  for (const Use& use : flow.uses) {
    Link& link = links_[use.link];
    if (link.visit != visit_) continue;
    link.left = std::max(0.0, link.left - speed);
    --link.unknown;
  }
}

// Progressive filling: the speeds of all flows rise together until a link is full or a flow has the
// speed of its stream; such flows are done, and the others rise further.
// Source: Bertsekas and Gallager, "Data Networks", 2nd edition, 1992, section 6.5.2.
void Flows::share_out() {
  std::ranges::sort(part_, {}, [&](std::uint32_t id) { return flows_[id].stream; });
  for (auto next = part_.begin();;) {
    while (next != part_.end() && flows_[*next].found >= 0) ++next;
    if (next == part_.end()) return;
    std::erase_if(part_links_, [&](std::uint32_t link) { return links_[link].unknown == 0; });
    double level = std::numeric_limits<double>::infinity();
    for (const std::uint32_t number : part_links_) {
      level = std::min(level, links_[number].left / links_[number].unknown);
    }
    if (flows_[*next].stream <= level) {
      for (auto slow = next; slow != part_.end() && flows_[*slow].stream <= level; ++slow) {
        if (flows_[*slow].found < 0) settle_speed(*slow, flows_[*slow].stream);
      }
      continue;
    }
    for (const std::uint32_t number : part_links_) {
      const Link& link = links_[number];
      if (link.unknown == 0 || link.left / link.unknown > level * (1 + 1e-12)) continue;
      for (const User& user : link.users) {
        if (flows_[user.flow].found < 0) settle_speed(user.flow, level);
      }
    }
  }
}

void Flows::apply(double now) {
  for (const std::uint32_t id : part_) {
    Flow& flow = flows_[id];
    if (flow.found == flow.speed && !flow.is_new) continue;
    if (!flow.is_new) flow.left = std::max(0.0, flow.left - flow.speed * (now - flow.since));
    flow.is_new = false;
    flow.since = now;
    flow.speed = flow.found;
    flow.ends = now + (flow.left > 0 ? flow.left / flow.speed : 0);
    changes_.push_back(id);
  }
}

}  // namespace gradred
